"""``hpcoll bench``: measures collectives and checks their answers.

    command      arguments                              modes        blocking, persistent, nonblocking, overlapped calls
    run          from arguments to a report             device       arrays in GPU memory
    request      what to measure, if it can be done     nccl         NCCL, called through its C library
    sizes        message sizes                          measure      timing
    session      all sizes and contenders of a run      results      percentiles and bandwidths
    contenders   what is compared: rows of the report   report       text, JSON and CSV
    cases        buffers and calls of a collective      plot         pictures
    values       what messages hold

``hpcoll bench-torch``, the backend of torch.distributed beside gloo: torch_command, torch_run, torch_report.
"""
