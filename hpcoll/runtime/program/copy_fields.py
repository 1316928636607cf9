"""The fields of what compiled code reads of a call on host copies of GPU arrays."""

NOT_STORED = 11  # answer besides those of `hpcoll.runtime.engine.compiled.interpreter.run`: done, but the result is not on the GPU

# Addresses unless another thing is said; the first five of functions of the CUDA driver.
(
    IS_CAPTURING,
    ADDRESS_RANGE,
    COPY_ASYNC,
    SYNCHRONIZE,
    RECORD_EVENT,
    EVENT,  # handle of the event behind which ENGINE's one-shot kernel runs, on the arrays themselves; 0: copies stand for them
    ENGINE,  # of a persistent request, or of a one-shot kernel; 0: the call is looked for in TABLE
    TABLE,  # of calls, as the three that follow an argument of `call_lookup.run_cached`
    SEND,
    RECV,
    OP,
    HOME,  # stream on which the result goes home; 0: the caller's
    FOUND,  # two words of room for answers of the driver
    _,
    SENT,  # the first side
    RECEIVED,  # the second side
    NFIELDS,
) = *range(14), 14, 18, 22
# A side; no bytes: there is none.
HOST, NBYTES, FETCHED, STORED = range(4)
