"""``hpcoll bench``: measures collectives and checks their answers.

    command      arguments                              modes        blocking, persistent, nonblocking, overlapped calls
    run          from arguments to a report             device       arrays in GPU memory
    request      what to measure, if it can be done     nccl         NCCL, called through its C library
    session      all sizes and contenders of a run      measure      timing
    contenders   what is compared: rows of the report   traffic      bytes that calls move through memory
    cases        buffers and calls of a collective      results      percentiles and bandwidths
    messages     sizes, contents, expected results      report       text and JSON
    runs         earlier results, read                  plot         drawings
"""
