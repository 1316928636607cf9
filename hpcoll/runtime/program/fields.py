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
) = range(13)
DONE, PENDING, FAILED, BUSY = 0, 1, 2, 3  # answers of a run
# the program does not hold for these counts, or needs more scratch: nothing has happened
UNFIT, NO_ROOM = (
    6,
    7,
)
SPECIAL = 8  # done, and a cell of this rank's is flagged so: the call goes on, in parts
UNLIKE = 10  # done, and one rank is to combine the objects that came: the call goes on, with a part of cells
NOTED = 9  # done, and Python is to look at the log: the call took long, or it is time to compare calls
GO_ON, AS_BEFORE = 0, 1  # in place of the address of a call's counts
MORE = -1  # bytes than were awaited
STRETCH_NS = 30_000_000  # in which a rank sees nothing move, until it returns to Python
LOOKS = 8  # passes from one to the next: Open MPI looks at its sockets in every eighth call only

# Columns of a program's row; `hpcoll.runtime.program.opcodes.Code` says which ones an operation has. BUFFER, DISPL, NBYTES: what is sent,
# received, read or awaited. TO_BUFFER, TO_DISPL: where a result goes.
NCOLUMNS = 8  # one cache line
CODE, BUFFER, DISPL, NBYTES, IN_PLACE = 0, 3, 4, 5, 6
REQUEST, PEER = 1, 2  # of MPI messages
LOCAL_PEER, STAGED_DISPL, MESSAGE_SLOT, ALLOWED = 1, 2, 2, 2  # of messages between local peers
# of copies (the first two) and reductions
TO_BUFFER, TO_DISPL, COUNT, FIRST_SOURCE, NSOURCES, REDUCED_NBYTES, NFURTHER = range(1, 8)
EVENT = 1
READ, WRITTEN = 1, 2  # values of IN_PLACE: the peer reads a buffer, or writes it

# In an engine's array (int64), its state. WINDOW_SLOTS: per window slot its lane and that lane's next row. INPUT, OUTPUT, SCRATCH:
# addresses in the order of `ir.Buffer`; WHERE_INPUT and WHERE_OUTPUT say where the first two are in symmetric memory, or -1. LANDED: per
# window slot and message slot the address of a message that waits to be used. ERROR: the MPI library's code when FAILED; FLAG: what
# MPI_Test answers; LOCK: address of a word that is 1 while a call runs; ACCOUNT: as in `hpcoll.comm.plans.ledger.Account`; CELL, NULL,
# STAND_IN, HANDLE_MASK: see `hpcoll.runtime.engine.compiled.progress.start`; LAST_TAG: one that no message has; TRUNCATED: MPI's code for
# a message of another length; STAGING_OF_LANE: bytes; FIRST_STAGING_SLOT: of window slot 0 in this call; BLOCK: address of room for a block
# when results are too large for the caches, else 0; COPY: where COPY_NBYTES of INPUT are copied first, because results overwrite them; GPU:
# address of the table below, or 0 when buffers are in host memory. Of symbolic sizes (`hpcoll.base.sizes`): COUNTS: address of the
# variables, of which NCOUNTS behind the first are the call's; RECORDS, RECORDS_END: what follows from them; ROOM: bytes at SCRATCH,
# COPY_ROOM: at COPY, NEEDED: what was too much for one of them. ELEMENTS: of the message, for texts; LEDGER_NBYTES: for the ledger. CAME,
# AWAITED: bytes of a message that was of another length, or `MORE`. HELD: a request has it, which is in flight or has not been waited for.
# ADVANCE: address of a compiled function. SPINS, STAYS, YIELDS, LINGERS: of the wait policy. PROCESS_VM_READV, ERRNO_LOCATION: of functions
# of C; LOCAL_VECTOR, REMOTE_VECTOR: address and bytes of what the first one writes and reads; REREAD: bytes of this call that were read
# from a peer's own memory to be combined; HANDED_OUT: the result of the latest reduction was staged with it; TURNS: calls in which writes
# were slow, READS: messages of the latest are read in its own memory, STAGED_NS, READ_NS: least time per 4 KiB of the one way and the
# other. SIGNATURE: what all ranks must call alike but for the count; COUNTED: what stands for that, or for all counts, in units of SIGNED
# bytes, 0 where ranks may have others; CHECKED: what
# every message between local peers has of both and of all calls before; CHECKED_TAG: the first tag of those of the MPI library, which is
# TAG and TAG_STEP for each of TAG_CHECKS values of such a check. LOG: address of the array of a `CallLog`,
# NUMBERED: the number of the call in it, ISSUED: when the program issued a call that waits for its turn, else 0. GET_COUNT: address of
# MPI_Get_count; FORM: `CELLS`, `PART`, both or 0; of CELLS_SENT in INPUT and CELLS_RECEIVED in OUTPUT, each of CELL_NBYTES; KINDS: which
# kinds of objects all ranks combine alike, see below. INPUT_MAP,
# OUTPUT_MAP: addresses of the maps below by which the buffers lie in memory, 0: contiguous; BOUNCE: of BOUNCE_NBYTES for what has a map
# on both sides. STATUS: room for a status, at STATUS_AT unless a request of somebody else's is tested. From OPERANDS on there is room for
# the addresses of the widest reduction's sources.
(
    NLANES,
    WINDOW,
    ROWS,
    SOURCES,
    LANES,
    WINDOW_SLOTS,
    REQUESTS,
    REQUESTS_PER_LANE,
    REQUEST_NBYTES,
    SCRATCH_PER_LANE,
    INPUT,
    OUTPUT,
    SCRATCH,
    WHERE_INPUT,
    WHERE_OUTPUT,
    LANDED,
    NMESSAGES,
    RINGS,
    COMM,
    TAG,
    BYTE,
    STATUS_AT,
    ISEND,
    IRECV,
    TEST,
    IPROBE,
    LAST_TAG,
    KERNEL,
    MEMCPY,
    SCHED_YIELD,
    USLEEP,
    CLOCK_GETTIME,
    ENDED,
    ERROR,
    FLAG,
    SPINS,
    STAYS,
    YIELDS,
    LINGERS,
    STAGING_OF_LANE,
    FIRST_STAGING_SLOT,
    CLOCK,
    CLOCK_NS,
    LOCK,
    ACCOUNT,
    STARTED,
    CELL,
    NULL,
    STAND_IN,
    HANDLE_MASK,
    TRUNCATED,
    BLOCK,
    COPY,
    COPY_NBYTES,
    GPU,
    COUNTS,
    NCOUNTS,
    RECORDS,
    RECORDS_END,
    ROOM,
    COPY_ROOM,
    NEEDED,
    ELEMENTS,
    LEDGER_NBYTES,
    CAME,
    AWAITED,
    HELD,
    MADVISE,
    ADVANCE,
    PROCESS_VM_READV,
    ERRNO_LOCATION,
    LOCAL_VECTOR,
    _,
    REMOTE_VECTOR,
    _,
    REREAD,
    HANDED_OUT,
    TURNS,
    READS,
    STAGED_NS,
    READ_NS,
    SIGNATURE,
    SIGNED,
    COUNTED,
    CHECKED,
    CHECKED_TAG,
    TAG_STEP,
    TAG_CHECKS,
    LOG,
    NUMBERED,
    ISSUED,
    GET_COUNT,
    FORM,
    CELLS_SENT,
    CELLS_RECEIVED,
    CELL_NBYTES,
    KINDS,
    INPUT_MAP,
    OUTPUT_MAP,
    BOUNCE,
    STATUS,
    _,
    _,
    _,
    _,
    _,
    _,
    _,
    OPERANDS,
) = range(109)
# Values of FORM. In a call of cells each message is one, and moves no more bytes than it has: the first word of a cell is the length behind
# its head of CELL_HEAD_NBYTES, with a flag where it is special. A part goes on with a call that has been noted, and not every rank need
# take part in it: a message without bytes is none.
CELLS, PART = 1, 2
# The second word of a cell says of which kinds its object is. PLAIN: numbers, text, and lists, tuples and dicts of these alone, which no
# program's code loads; SEQUENCE: a list or a tuple, of anything. KINDS has ASKS where ranks combine objects, and the kinds that the
# operator makes the same object of in every process; where all cells share one of these, each rank combines them by itself.
PLAIN, SEQUENCE, ANY_KIND, ASKS = 1, 2, 3, 4
CELL_HEAD_NBYTES, CELL_FLAG = 16, 1 << 40

# In the array of a `Rings` (int64). SLOTS_AT, ACKS_AT, STAGING_AT: addresses in the window, the last of this rank's staging slots.
# SENT, TAKEN, ACKED: addresses of this rank's counters, one per staging slot and peer; USED: per staging slot, bytes of CAPACITY
# handed out, where the lane at hand has its own, and how many have pages by now, which they are given POPULATED_AT_ONCE. STAGED:
# lanes that staged. SLOW_WRITES: how much oftener staging in the caches was slow than fast. BASES: addresses of what is mapped,
# by number; NRANGES: address of a number, RANGES: of as many triples (first address, last + 1, where) of memory that all local peers map.
# READ_FROM: messages of so many bytes and more are read where they lie in their sender's own memory; it is one of READ_FROM_USUALLY and
# READ_FROM_SLOW, the latter while writes are slow and that is faster; PIDS: address of the process of each local rank; PIECES_AT: of
# PIECES_NBYTES of room.
(
    SLOTS_AT,
    ACKS_AT,
    STAGING_AT,
    STAGING_WHERE,
    CAPACITY,
    NLOCAL,
    LOCAL_RANK,
    SENT,
    TAKEN,
    ACKED,
    USED,
    STAGED,
    SLOW_WRITES,
    BASES,
    NRANGES,
    RANGES,
    POPULATED_AT_ONCE,
    READ_FROM,
    READ_FROM_USUALLY,
    READ_FROM_SLOW,
    PIDS,
    PIECES_AT,
    RINGS_NFIELDS,
) = range(23)
OFFSET_BITS = 48  # "where" is the number of a window and an offset in it
OWN_MEMORY = 1 << 13  # in place of that number: the sender's own memory, and an address in its process
PIECES_NBYTES = 64 << 10  # of messages that are combined, read piece by piece so that they stay in the cache
# error: the own memory of a peer cannot be read; that, the peer's local rank << 16, and the system's error number
UNREADABLE = 1 << 42
MADV_POPULATE_WRITE = 23  # of Linux
FULL = 1 << 41  # error: the system has no more shared memory
# Errors: a peer calls something else; a call of some rank has failed; it was given up.
MISMATCH, ALARMED, GIVEN_UP = FULL + 1, FULL + 2, FULL + 3
# In the array of a `CallLog` (int64). CALLS: so far; CHAIN: of all fingerprints so far, so that a call which was another on some rank shows
# in all messages from then on; HISTORY: address of what this rank tells of its latest calls, ALARM: of a word that is not 0 once a call
# failed; RECORDED: address of what is known of the last calls, in this process alone; PROCESS: address of the process's words, OWN_SPENT:
# nanoseconds spent in calls of this log; DUE: number of the call at which calls are to be compared; TOOK: nanoseconds of the latest
# blocking call, LONG: from which on it took long. STEPS: address of the steps of its calls, where they are noted.
CALLS, CHAIN, HISTORY, ALARM, RECORDED, PROCESS, OWN_SPENT, DUE, TOOK, LONG, STEPS, LOG_NFIELDS = range(12)
# The history of a rank's calls (int64), in shared memory where it has local peers: one cache line with how many have begun and ended, and
# when the last one has, in nanoseconds; on the message context of blocking calls also how many blocking collectives of the MPI library's
# own hpcoll has begun and ended on the caller's communicator, and which one the last is; in which life of the message context the rank
# makes no more calls; and one line for each of the last REMEMBERED calls, by their number: number, signature, count, what the calls before
# it were, and what stands for all counts.
BEGUN, CALLS_ENDED, ENDED_AT, LIBRARY_BEGUN, LIBRARY_ENDED, LIBRARY_METHOD, LAST = range(7)
NUMBER, ITS_SIGNATURE, ITS_COUNT, ITS_CHAIN, ITS_COUNTED = range(5)
REMEMBERED, HISTORY_NBYTES = 15, 16 * 64
# Of such a record, by the call's number: signature, count, and nanoseconds at its begin and end, 0 while it has not ended. ITS_SPENT:
# nanoseconds that this process had spent in calls of other logs when it began. ITS_NAMES: number of its region, and of its place from bit
# PLACE_AT on (`hpcoll.comm.status.names`). Of a call in flight also when the program began to wait for it, and stopped, 0 where it
# never did.
ITS_BEGIN, ITS_SPENT, ITS_END, ITS_NAMES, ITS_WAIT_BEGIN, ITS_WAIT_END, RECORD_NFIELDS = range(2, 9)
PLACE_AT = 32
REGION_BITS = (1 << PLACE_AT) - 1
# Of the process (int64), for all its logs: number of the region in which the program is; nanoseconds in collectives so far; of those in
# blocking ones that did not end at once, and of these on a core.
REGION, SPENT, LINGERED, ON_CORE, PROCESS_NFIELDS = range(5)
# in the block that is written, and how many full ones are kept behind it
RECORDS_HOT, RECORD_BLOCKS = (
    256,
    20,
)
# Steps (int64), which are rows of programs that were run: how many were noted so far, taken by whoever reads them, and lost because there
# was no room; of the latest call its number, start and channels; when the latest step ended. Behind that is room for STEPS_ROOM of them.
# STEP_WHAT: the code, the segment and the peer, the last two plus 1 and 0 where there is none. Local peers are local ranks. STEP_NBYTES: -1
# of cells.
STEPS_NOTED, STEPS_TAKEN, STEPS_LOST, STEPS_CALL, STEPS_STARTED, STEPS_CHANNELS, STEPS_AT, FIRST_STEP = range(
    8
)
STEP_CALL, STEP_BEGIN, STEP_END, STEP_WHAT, STEP_NBYTES, STEP_NFIELDS = range(6)
STEPS_ROOM = 1 << 16
STEP_SEGMENT_AT, STEP_PEER_AT = 8, 36
# Where fields of a signature are (`hpcoll.comm.plans.signature`) by which it is seen whether calls may differ in the element type.
ELEMENT_AT, ELEMENT_BITS, OP_AT, OP_BITS = 6, 6, 12, 16
ONE_BYTE = 3  # element types up to that one, of one byte or not known, are alike if nothing is combined
# an odd number, by which counts that differ a little give fingerprints that differ much
SPREAD = -7046029254386353131
STAGING_SLOTS = 8  # of rings: as many acknowledgements fill a cache line
BLOCK_NBYTES = 8192  # of a result that goes past the caches
BOUNCE_NBYTES = 16384

# Tables of `hpcoll.runtime.program.layouts` (int64). A layout's: SIZE: packed bytes of an element; EXTENT: from one to the next; NPIECES
# pieces with NLOOPS loops each, which are behind what a piece begins with. A map's: NBLOCKS blocks, with the packed position of each, its
# displacement in memory and the address of its layout's table.
SIZE, EXTENT, NPIECES, NLOOPS, PIECES = range(5)
PACKED_AT, PIECE_OFFSET, PIECE_NBYTES, PIECE_NFIELDS = range(4)
NBLOCKS, BLOCKS = range(2)
BLOCK_AT, BLOCK_DISPL, BLOCK_LAYOUT, BLOCK_NFIELDS = range(4)

# In a GPU engine's table (int64). BEFORE: the thread's context before CONTEXT became current. Addresses of the driver's functions;
# FUNCTION: handle of the reduction kernel; STREAMS: address of NSTREAMS streams' handles, which window slots take in turn; EVENTS: of
# NEVENTS events' handles per window slot, the first of which is reached when the caller's earlier work is done; PARAMETERS, VALUES: of a
# kernel's parameters and of pointers to them; PINNED: host memory, PINNED_PER_LANE bytes per window slot.
# EXPORTED: address of NEXPORTED triples (first address, last + 1, where) of memory that peers may map; DIRECTORY: of what all local peers
# export, in shared memory: per local rank NSLOTS slots of SLOT_NBYTES, which begin with a generation; MAPPED: of the generation and
# address of each of them in this process; OPEN: of a function that maps one.
(
    CONTEXT,
    BEFORE,
    GET_CURRENT,
    SET_CURRENT,
    COPY_ASYNC,
    LAUNCH,
    RECORD_EVENT,
    QUERY_EVENT,
    WAIT_EVENT,
    FUNCTION,
    STREAMS,
    NSTREAMS,
    EVENTS,
    NEVENTS,
    MOST_BLOCKS,
    BLOCK_THREADS,
    PARAMETERS,
    VALUES,
    PINNED,
    PINNED_PER_LANE,
    EXPORTED,
    NEXPORTED,
    DIRECTORY,
    MAPPED,
    OPEN,
    GPU_NFIELDS,
) = range(26)
FIRST_SLOT = 4096  # numbers from here on are slots of the sender's GPU memory, those below are windows
NSLOTS, SLOT_NBYTES = 1024, 128
UNMAPPED = 1 << 40  # error: a peer's GPU memory cannot be mapped here
