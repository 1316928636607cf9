"""``hpcoll bench``: measures collectives and checks their answers.

command      arguments                              modes        blocking, persistent, nonblocking, overlapped calls
run          from arguments to a report             device       arrays in GPU memory
request      the request, and checks of it          nccl         NCCL, called through its C library
session      all sizes and contenders of a run      measure      timing
watch        other programs on the cores            beside       calls beside mpi4py's
contenders   the rows of the report                 report       percentiles, bandwidths, text and JSON
cases        buffers and calls of a collective      earlier      drawings of these and of earlier results
messages     sizes, contents, expected results      plan         planning of calls, without MPI
"""
