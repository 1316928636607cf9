"""The fields of the table of collectives in flight, which threads advance (`hpcoll.runtime.engine.compiled.progress`)."""

FREE, QUEUED, RUNNING, ENDED_WELL, ENDED_BADLY = range(5)  # states of a slot
# The table (int64).
(
    HIGH,  # slots that may be in use
    STOP,  # the progress thread is to end
    PARKED,  # it waits on SEMAPHORE
    WAITERS,  # threads that move operations themselves, so that it need not hurry
    COMPLETE,  # address of MPI_Grequest_complete
    SEMAPHORE,
    SEM_WAIT,
    SEM_POST,
    SCHED_YIELD,
    USLEEP,
    CLOCK_GETTIME,
    CLOCK,  # room for two words
    CLOCK_NS,
    SLOTS,
) = range(14)
# A slot.
(
    ENGINE,
    STATE,
    OWNER,
    TICKETS,  # address of the number of operations that its message context has ended
    TICKET,
    HANDLE,  # of the generalized request
    INPUT,
    OUTPUT,
    SLOT,
) = range(9)
