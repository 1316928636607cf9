"""The fields of arrays that Python fills and compiled code works on."""

# Functions that Python calls: see `hpcoll.runtime.engine.compiled.dispatch`.
(
    RUN,
    CACHED,
    START,
    ACTIVATE,
    WAIT,
    SERVE,
    RESIZE,
    HOLD,
    LET_GO,
    PACK,
    UNPACK,
    FLOATS,
    ON_OBJECT,
    COPIED,
) = range(14)
DONE, PENDING, FAILED, BUSY = 0, 1, 2, 3  # answers of a run, as those that follow
UNFIT = 6  # the program does not hold for these counts: nothing has happened
NO_ROOM = 7  # it needs more scratch: nothing has happened
SPECIAL = 8  # done, and a cell of this rank's is flagged so: the call goes on, in parts
NOTED = 9  # done, and Python is to look at the log: the call took long, or it is time to compare calls
UNLIKE = 10  # done, and one rank is to combine the objects that came: the call goes on, with a part of cells
GO_ON, AS_BEFORE = 0, 1  # in place of the address of a call's counts
MORE = -1  # bytes than were awaited
STRETCH_NS = 30_000_000  # in which a rank sees nothing move, until it returns to Python
LOOKS = 8  # passes from one to the next: Open MPI looks at its sockets in every eighth call only

# Columns of a program's row; `hpcoll.runtime.program.opcodes.Code` says which ones an operation has.
NCOLUMNS = 8  # one cache line
CODE, BUFFER, DISPL, NBYTES, IN_PLACE = 0, 3, 4, 5, 6  # what is sent, received, read or awaited
REQUEST, PEER = 1, 2  # of MPI messages
LOCAL_PEER, STAGED_DISPL, MESSAGE_SLOT, ALLOWED = 1, 2, 2, 2  # of messages between local peers
# where a result goes, of copies (the first two) and reductions
TO_BUFFER, TO_DISPL, COUNT, FIRST_SOURCE, NSOURCES, REDUCED_NBYTES, NFURTHER = range(1, 8)
EVENT = 1
GRID = 5  # blocks of a kernel
READ, WRITTEN = 1, 2  # values of IN_PLACE: the peer reads a buffer, or writes it

# In an engine's array (int64), its state.
(
    NLANES,
    WINDOW,
    ROWS,
    SOURCES,
    LANES,
    WINDOW_SLOTS,  # address: per window slot its lane and that lane's next row
    REQUESTS,
    REQUESTS_PER_LANE,
    REQUEST_NBYTES,
    SCRATCH_PER_LANE,
    INPUT,  # addresses of the three buffers, in the order of `ir.Buffer`
    OUTPUT,
    SCRATCH,
    WHERE_INPUT,  # where INPUT is in symmetric memory, or -1
    WHERE_OUTPUT,  # the same of OUTPUT
    LANDED,  # address: per window slot and message slot the address of a message that waits to be used
    NMESSAGES,
    RINGS,
    COMM,
    TAG,
    BYTE,
    STATUS_AT,  # address of room for a status: STATUS, unless a request of somebody else's is tested
    ISEND,
    IRECV,
    TEST,
    IPROBE,
    LAST_TAG,  # one that no message has
    KERNEL,
    MEMCPY,
    SCHED_YIELD,
    USLEEP,
    CLOCK_GETTIME,
    ENDED,
    ERROR,  # the MPI library's code when FAILED, or one of those below
    FLAG,  # what MPI_Test answers
    SPINS,  # of the wait policy, as the three that follow
    STAYS,
    YIELDS,
    LINGERS,
    STAGING_OF_LANE,  # bytes
    FIRST_STAGING_SLOT,  # of window slot 0 in this call
    CLOCK,
    CLOCK_NS,
    LOCK,  # address of a word that is 1 while a call runs
    ACCOUNT,  # address, as in `hpcoll.comm.plans.ledger.Account`
    STARTED,
    CELL,  # of a persistent request, as the three that follow: `hpcoll.runtime.engine.compiled.progress.start`
    NULL,
    STAND_IN,
    HANDLE_MASK,
    TRUNCATED,  # the MPI library's code for a message of another length
    BLOCK,  # address of room for a block when results are too large for the caches, else 0
    COPY,  # address to which COPY_NBYTES of INPUT are copied first, because results overwrite them
    COPY_NBYTES,
    GPU,  # address of the table below; 0: buffers are in host memory
    COUNTS,  # address of the variables of symbolic sizes (`hpcoll.base.sizes`)
    NCOUNTS,  # how many of these, behind the first, are the call's counts
    RECORDS,  # address of what follows from the counts
    RECORDS_END,
    ROOM,  # bytes at SCRATCH
    COPY_ROOM,  # bytes at COPY
    NEEDED,  # bytes that were too many for one of these
    ELEMENTS,  # of the message, for texts
    LEDGER_NBYTES,  # for the ledger
    CAME,  # bytes of a message of another length, or `MORE`
    AWAITED,  # bytes that it should have had
    HELD,  # a request has the engine, which is in flight or has not been waited for
    MADVISE,
    ADVANCE,  # address of a compiled function
    PROCESS_VM_READV,
    ERRNO_LOCATION,
    LOCAL_VECTOR,  # address and bytes of what process_vm_readv writes
    _,
    REMOTE_VECTOR,  # address and bytes of what it reads
    _,
    REREAD,  # bytes of this call that were read from a peer's own memory to be combined
    HANDED_OUT,  # the result of the latest reduction was staged with it
    TURNS,  # calls in which writes were slow
    READS,  # messages of the latest call are read in its own memory
    STAGED_NS,  # least time per 4 KiB where messages were staged
    READ_NS,  # least time per 4 KiB where they were read
    SIGNATURE,  # what all ranks must call alike, but for the count
    SIGNED,  # bytes in which COUNTED counts; 0: ranks may have other counts
    COUNTED,  # what stands for the count, or for all counts
    CHECKED,  # what every message between local peers has of these, and of all calls before
    CHECKED_TAG,  # the first tag of the MPI library's messages: TAG, and TAG_STEP for each value of such a check
    TAG_STEP,
    TAG_CHECKS,  # the number of its values
    LOG,  # address of the array of a `CallLog`
    NUMBERED,  # the number of the call in it
    ISSUED,  # when the program issued a call that waits for its turn, else 0
    GET_COUNT,  # address of MPI_Get_count
    FORM,  # `CELLS`, `PART`, both or 0
    CELLS_SENT,  # cells in INPUT
    CELLS_RECEIVED,  # cells in OUTPUT
    CELL_NBYTES,  # bytes of each
    KINDS,  # which kinds of objects all ranks combine alike, see below
    INPUT_MAP,  # address of the map below by which INPUT lies in memory; 0: contiguous
    OUTPUT_MAP,  # the same of OUTPUT
    BOUNCE,  # address of BOUNCE_NBYTES for what has a map on both sides
    STATUS,  # room for a status
    _,
    _,
    _,
    _,
    _,
    _,
    _,
    OPERANDS,  # from here on room for the addresses of the widest reduction's sources
) = range(109)
# Values of FORM.
CELLS = 1  # each message is a cell: its first word is the bytes behind its head, and no more bytes move
PART = 2  # of a call that has been noted, in which not every rank need take part: without bytes no message
# Kinds of the object in a cell, in its second word; where all cells share one of KINDS, each rank combines them by itself.
PLAIN = 1  # numbers, text, and lists, tuples and dicts of these alone, which no program's code loads
SEQUENCE = 2  # a list or a tuple, of anything
ANY_KIND = 3
ASKS = 4  # of KINDS: ranks combine objects
CELL_HEAD_NBYTES, CELL_FLAG = 16, 1 << 40  # the flag of the first word: the cell is special

# In the array of a `Rings` (int64). Addresses unless another thing is said.
(
    SLOTS_AT,  # in the window, as the two that follow
    ACKS_AT,
    STAGING_AT,  # of this rank's staging slots
    STAGING_WHERE,
    CAPACITY,
    NLOCAL,
    LOCAL_RANK,
    SENT,  # of this rank's counters, one per staging slot and peer, as the two that follow
    TAKEN,
    ACKED,
    USED,  # per staging slot: bytes of CAPACITY handed out, where the lane at hand has its own, how many have pages by now
    STAGED,  # the number of lanes that staged
    SLOW_WRITES,  # how much oftener staging in the caches was slow than fast
    BASES,  # of the addresses of what is mapped, by number
    NRANGES,  # of the number of RANGES
    RANGES,  # of triples (first address, last + 1, where) of memory that all local peers map
    POPULATED_AT_ONCE,  # bytes that are given pages together
    ASKED_PAGES,  # the most bytes in which lanes have gone round, for the pages that all slots get at once; -1: the system had none
    READ_FROM,  # bytes from which on messages are read in their sender's own memory: one of the two that follow
    READ_FROM_USUALLY,
    READ_FROM_SLOW,  # while writes are slow and that is faster
    PIDS,  # of the process of each local rank
    PIECES_AT,  # of PIECES_NBYTES of room
    RINGS_NFIELDS,
) = range(24)
OFFSET_BITS = 48  # "where" is the number of a window and an offset in it
OWN_MEMORY = 1 << 13  # in place of that number: the sender's own memory, and an address in its process
PIECES_NBYTES = 64 << 10  # of messages that are combined, read piece by piece so that they stay in the cache
# error: a peer's own memory cannot be read; with its local rank << 16, and the system's error number
UNREADABLE = 1 << 42
MADV_POPULATE_WRITE = 23  # of Linux
FULL = 1 << 41  # error: the system has no more shared memory
MISMATCH = FULL + 1  # error: a peer calls something else
ALARMED = FULL + 2  # error: a call of some rank has failed
GIVEN_UP = FULL + 3  # error: the call was given up
# In the array of a `CallLog` (int64).
(
    CALLS,  # so far
    CHAIN,  # of all fingerprints so far: a call that was another on some rank shows in all messages from then on
    HISTORY,  # address of what this rank tells of its latest calls
    ALARM,  # address of a word that is not 0 once a call failed
    RECORDED,  # address of what is known of the last calls, in this process alone
    PROCESS,  # address of the process's words
    OWN_SPENT,  # nanoseconds in calls of this log
    DUE,  # number of the call at which calls are to be compared
    TOOK,  # nanoseconds of the latest blocking call
    LONG,  # nanoseconds from which on it took long
    STEPS,  # address of the steps of its calls, where they are noted
    LOG_NFIELDS,
) = range(12)
# The history of a rank's calls (int64), in shared memory where it has local peers. Its first cache line.
(
    BEGUN,
    CALLS_ENDED,
    ENDED_AT,  # nanoseconds, of the last one
    LIBRARY_BEGUN,  # the MPI library's own blocking collectives on the caller's communicator, as the two that follow
    LIBRARY_ENDED,
    LIBRARY_METHOD,  # which one the last is
    LAST,  # in which life of the message context the rank makes no more calls
) = range(7)
# A line for each of the last REMEMBERED calls, by their number.
(
    NUMBER,
    ITS_SIGNATURE,
    ITS_COUNT,
    ITS_CHAIN,  # what the calls before it were
    ITS_COUNTED,  # what stands for all counts
) = range(5)
REMEMBERED, HISTORY_NBYTES = 15, 16 * 64
# Of a record, by the call's number; signature and count come first; times are nanoseconds, 0 where there is none.
(
    ITS_BEGIN,
    ITS_SPENT,  # what this process had spent in calls of other logs when it began
    ITS_END,
    ITS_NAMES,  # number of its region, and of its place from bit PLACE_AT on (`hpcoll.comm.status.names`)
    ITS_WAIT_BEGIN,  # the program began to wait for the call in flight
    ITS_WAIT_END,
    RECORD_NFIELDS,
) = range(2, 9)
PLACE_AT = 32
REGION_BITS = (1 << PLACE_AT) - 1
# Of the process (int64), for all its logs.
(
    REGION,  # number of the region in which the program is
    SPENT,  # nanoseconds in collectives so far
    LINGERED,  # of these in blocking ones that did not end at once
    ON_CORE,  # of LINGERED on a core
    PROCESS_NFIELDS,
) = range(5)
RECORDS_HOT = 256  # in the block that is written
RECORD_BLOCKS = 20  # full ones that are kept behind it
# Steps (int64), which are rows of programs that were run.
(
    STEPS_NOTED,  # so far
    STEPS_TAKEN,  # by whoever reads them
    STEPS_LOST,  # because there was no room
    STEPS_CALL,  # number of the latest call, as the two that follow
    STEPS_STARTED,
    STEPS_CHANNELS,
    STEPS_AT,  # when the latest step ended
    FIRST_STEP,  # room for STEPS_ROOM of them
) = range(8)
(
    STEP_CALL,
    STEP_BEGIN,
    STEP_END,
    STEP_WHAT,  # the code, and the segment and the peer, a local rank for local peers, each plus 1; 0: none
    STEP_NBYTES,  # -1 of cells
    STEP_NFIELDS,
) = range(6)
STEPS_ROOM = 1 << 16
STEP_SEGMENT_AT, STEP_PEER_AT = 8, 36
# Where fields of a signature are (`hpcoll.comm.plans.signature`) by which it is seen whether calls may differ in the element type.
ELEMENT_AT, ELEMENT_BITS, OP_AT, OP_BITS = 6, 6, 12, 16
ONE_BYTE = 3  # element types up to that one, of one byte or not known, are alike if nothing is combined
SPREAD = -7046029254386353131  # odd: counts that differ a little give fingerprints that differ much
STAGING_SLOTS = 8  # of rings: as many acknowledgements fill a cache line
BLOCK_NBYTES = 8192  # of a result that goes past the caches
BOUNCE_NBYTES = 16384

# Tables of `hpcoll.runtime.program.layouts` (int64). A layout's.
(
    SIZE,  # packed bytes of an element
    EXTENT,  # bytes from one to the next
    NPIECES,
    NLOOPS,  # of each piece, which are behind what it begins with
    PIECES,
) = range(5)
PACKED_AT, PIECE_OFFSET, PIECE_NBYTES, PIECE_NFIELDS = range(4)  # a piece's
NBLOCKS, BLOCKS = range(2)  # a map's
# A block's.
(
    BLOCK_AT,  # packed position
    BLOCK_DISPL,  # displacement in memory
    BLOCK_LAYOUT,  # address of its layout's table
    BLOCK_NFIELDS,
) = range(4)

# In a GPU engine's table (int64). Addresses of the driver's functions unless another thing is said.
(
    CONTEXT,  # the GPU's context
    BEFORE,  # the thread's context before that became current
    GET_CURRENT,
    SET_CURRENT,
    COPY_ASYNC,
    LAUNCH,
    RECORD_EVENT,
    QUERY_EVENT,
    WAIT_EVENT,
    FUNCTION,  # handle of the reduction kernel
    STREAMS,  # address of NSTREAMS streams' handles, which window slots take in turn
    NSTREAMS,
    EVENTS,  # address of NEVENTS events' handles per window slot; the first is reached when the caller's earlier work is done
    NEVENTS,
    MOST_BLOCKS,
    BLOCK_THREADS,
    PARAMETERS,  # address of pointers to a kernel's parameters
    VALUES,  # address of these parameters
    PINNED,  # address of host memory, PINNED_PER_LANE bytes per window slot
    PINNED_PER_LANE,
    EXPORTED,  # address of triples (first address, last + 1, where) of memory that peers may map
    NEXPORTED,  # address of their number
    DIRECTORY,  # address of what all local peers export: per rank NSLOTS of SLOT_NBYTES, each of which begins with a generation
    MAPPED,  # address of the generation and address of each of these slots in this process
    OPEN,  # address of a function that maps one
    STOP,  # address of the word of a one-shot kernel's channel
    GPU_NFIELDS,
) = range(27)
FIRST_SLOT = 4096  # numbers from here on are slots of the sender's GPU memory, those below are windows
NSLOTS, SLOT_NBYTES = 1024, 128
UNMAPPED = 1 << 40  # error: a peer's GPU memory cannot be mapped here
