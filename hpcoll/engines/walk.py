"""The compiled function that walks any program. Floor 5.

It knows a dozen opcodes and nothing of algorithms, operators or element types: reductions are calls to a kernel's address,
messages between nodes are calls to addresses in the MPI library, so that one cached machine code serves Open MPI and MPICH.
Messages on a node are lines of shared memory (`hpcoll.transports.shm` draws them). It never blocks: it returns after a while without
progress and is called again, which leaves Python the chance to see a signal. All state is in arrays, so that a
collective may be left and taken up again.
"""

from numba import njit

from hpcoll.engines.foreign import (
    INT, LONG, VOID, clock_gettime, exchange, fence, foreign, load_acquire, memcpy, pointer, sched_yield, store_release, stream_line, usleep,
)  # fmt: skip
from hpcoll.ir import LINES
from hpcoll.program import BUFFERS, INLINE_NBYTES, MESSAGES, NCOLUMNS, STAGING, Code

DONE, PENDING, FAILED, BUSY = 0, 1, 2, 3
NAPS = 500  # passes in which a rank sleeps before Python gets a turn: some 30 ms

# Where things are in an engine's state array (int64). PLACES: per place of the window its lane and that lane's next row.
# INPUT, OUTPUT and SCRATCH are addresses in the order of `hpcoll.ir.Buffer`; WHERE_INPUT and WHERE_OUTPUT say where the first two are
# in shared memory, or -1. LANDED: per place and slot the address of a message that waits to be used. ERROR is the MPI library's
# code when FAILED, FLAG what MPI_Test answers; LOCK: address of
# a word that is 1 while a call runs; ACCOUNT: of calls and nanoseconds in them; CELL,
# NULL, STAND_IN, HANDLE_MASK: see `hpcoll.engines.progress.start`; TRUNCATED: MPI's code for a message of another length; BLOCK: address of
# room for a block, when results are too large for the caches, else 0; from OPERANDS on there is room for the addresses of the widest reduction's sources.
(
    NLANES, WINDOW, ROWS, SOURCES, LANES, PLACES, REQUESTS, REQUESTS_PER_LANE, REQUEST_NBYTES, SCRATCH_PER_LANE,
    INPUT, OUTPUT, SCRATCH, WHERE_INPUT, WHERE_OUTPUT, LANDED, SLOTS, STREAM, COMM, TAG, BYTE, STATUS_IGNORE, ISEND, IRECV, TEST,
    KERNEL, MEMCPY, SCHED_YIELD, USLEEP, CLOCK_GETTIME, ENDED, ERROR, FLAG, SPINS, YIELDS, STAGING_OF_LANE, TURN, CLOCK, CLOCK_NS, LOCK, ACCOUNT,
    STARTED, CELL, NULL, STAND_IN, HANDLE_MASK, TRUNCATED, BLOCK, OPERANDS,
) = range(49)  # fmt: skip

# In a stream's array (int64). LINES_AT, ACKS_AT, STAGING_AT: addresses in the shared window, the last of this rank's part.
# SENT, TAKEN, ACKED: addresses of this rank's counters, one per place and peer; USED: per place, bytes of CAPACITY handed out and where
# the lane at hand has its own. CALLS: of this stream, so far; STAGED: lanes that staged. SLOW_WRITES: whether
# staging in the caches was slow when last tried. BASES: addresses of what is mapped, by number;
# NRANGES: address of a number, RANGES: of as many triples (first address, last + 1, where) of memory that all ranks of the node map.
(
    LINES_AT, ACKS_AT, STAGING_AT, STAGING_WHERE, CAPACITY, NLOCAL, LOCAL_RANK, SENT, TAKEN, ACKED, USED, CALLS, STAGED,
    SLOW_WRITES, BASES, NRANGES, RANGES, STREAM_NFIELDS,
) = range(18)  # fmt: skip
OFFSET_BITS = 48  # "where" is the number of a mapping and an offset in it
LINE_NBYTES = 64
_LENGTH_BITS = 24  # of a message, in the word that announces it; more than a lane ever sends at once
STREAM_PLACES = 8  # of a stream: as many acknowledgements fill a line

# A core writes five times faster to memory than to lines that lie in the cache of a core with which it shares none; where it does share
# one, the cache is twice as fast. So a writer times what it writes in the caches, and when that was slow, only tries again at times.
_UNCACHED_NBYTES = 4096  # shorter pieces stay in the cache
_PROBE_NBYTES = 16384  # of a message worth timing
_FAST_BYTES_PER_NS = 5
_TRIAL = 32  # lanes
BLOCK_NBYTES = 8192

_SEND, _RECV, _WAIT, _COPY = int(Code.SEND), int(Code.RECV), int(Code.WAIT), int(Code.COPY)
_STAGE, _POST, _AWAIT, _ACK, _DRAIN, _RESERVE = (int(c) for c in (Code.STAGE, Code.POST, Code.AWAIT, Code.ACK, Code.DRAIN, Code.RESERVE))
_INT, _LONG, _VOID = INT, LONG, VOID
_STAGING, _OUTPUT, _SCRATCH, _MESSAGES = STAGING, 1, BUFFERS - 1, MESSAGES

_transfer = foreign(_INT, _LONG, _INT, _LONG, _INT, _INT, _LONG, _LONG)  # buffer, count, datatype, peer, tag, comm, request
_test = foreign(_INT, _LONG, _LONG, _LONG)  # request, flag, status
_fold = foreign(_VOID, _LONG, _LONG, _LONG, _LONG)  # destination, sources, number of sources, count


@njit(nogil=True, inline="always")
def _stream_place(state, place):  # type: ignore[no-untyped-def]
    """Which place of the stream a place of the window is in this call; short calls take all in turn, so as to use fresh memory."""
    return (place + state[TURN]) % STREAM_PLACES


@njit(nogil=True, inline="always")
def _staging(state, lane):  # type: ignore[no-untyped-def]
    """Offset of a lane's staging memory in this rank's part of the window."""
    stream, place = pointer(state[STREAM]), _stream_place(state, lane % state[WINDOW])
    return place * stream[CAPACITY] + pointer(stream[USED])[2 * place + 1]


@njit(nogil=True, inline="always")
def _address(state, buffer, displ, lane):  # type: ignore[no-untyped-def]
    """Address of a displacement in one of the buffers, seen from a lane."""
    place = lane % state[WINDOW]
    if buffer == _SCRATCH:
        return state[SCRATCH] + place * state[SCRATCH_PER_LANE] + displ
    if buffer >= _MESSAGES:
        return pointer(state[LANDED])[place * state[SLOTS] + buffer - _MESSAGES] + displ
    if buffer == _STAGING:
        return pointer(state[STREAM])[STAGING_AT] + _staging(state, lane) + displ
    return state[INPUT + buffer] + pointer(state[LANES])[3 * lane + 2] + displ


@njit(nogil=True)
def _copy_uncached(state, destination, source, nbytes):  # type: ignore[no-untyped-def]
    """Copy past the caches."""
    head = min(nbytes, -destination % LINE_NBYTES)
    tail = (nbytes - head) % LINE_NBYTES
    memcpy(state[MEMCPY], (destination, source, head))
    for at in range(head, nbytes - tail, LINE_NBYTES):
        stream_line(destination + at, source + at)
    memcpy(state[MEMCPY], (destination + nbytes - tail, source + nbytes - tail, tail))


@njit(nogil=True)
def _fold_uncached(address, destination, row):  # type: ignore[no-untyped-def]
    """REDUCE into memory that is too large to stay in the caches: block by block, each streamed out."""
    state = pointer(address)
    operands = address + 8 * OPERANDS
    nbytes, count, nsources = row[6], row[3], row[5]
    block = BLOCK_NBYTES // (nbytes // count)
    for lo in range(0, count, block):
        n = min(block, count - lo)
        _fold(state[KERNEL], (state[BLOCK], operands, nsources, n))
        _copy_uncached(state, destination + lo * (nbytes // count), state[BLOCK], n * (nbytes // count))
        for i in range(nsources):
            state[OPERANDS + i] += n * (nbytes // count)


@njit(nogil=True)
def _local(address, row, lane):  # type: ignore[no-untyped-def]
    """COPY and REDUCE."""
    state = pointer(address)
    destination = _address(state, row[1], row[2], lane)
    uncached = state[BLOCK] != 0 and row[1] == _OUTPUT
    if row[0] == _COPY:
        source = _address(state, row[3], row[4], lane)
        if uncached:
            _copy_uncached(state, destination, source, row[5])
        else:
            memcpy(state[MEMCPY], (destination, source, row[5]))
    else:
        sources = pointer(state[SOURCES])
        for i in range(row[5]):
            at = 2 * (row[4] + i)
            state[OPERANDS + i] = _address(state, sources[at], sources[at + 1], lane)
            uncached &= state[OPERANDS + i] != destination
        if uncached:
            _fold_uncached(address, destination, row)
        else:
            _fold(state[KERNEL], (destination, address + 8 * OPERANDS, row[5], row[3]))
    if uncached:
        fence()


@njit(nogil=True)
def nanoseconds(address):  # type: ignore[no-untyped-def]
    """A clock that only goes forward."""
    state = pointer(address)
    clock_gettime(state[CLOCK_GETTIME], (1, address + 8 * CLOCK))
    return state[CLOCK] * 1000000000 + state[CLOCK + 1]


@njit(nogil=True, inline="always")
def _acks(stream, reader, writer):  # type: ignore[no-untyped-def]
    return stream[ACKS_AT] + (reader * stream[NLOCAL] + writer) * LINE_NBYTES


@njit(nogil=True, inline="always")
def _unread(stream, peer, place):  # type: ignore[no-untyped-def]
    """Messages that a peer has not yet used, of all posted to it in this place."""
    at = place * stream[NLOCAL] + peer
    sent, acked = pointer(stream[SENT])[at], pointer(stream[ACKED])
    if acked[at] < sent:
        acked[at] = load_acquire(_acks(stream, peer, stream[LOCAL_RANK]) + 8 * place)
    return sent - acked[at]


@njit(nogil=True, inline="always")
def _line(stream, source, destination, place, number):  # type: ignore[no-untyped-def]
    nlocal = stream[NLOCAL]
    return stream[LINES_AT] + (((place * nlocal + source) * nlocal + destination) * LINES + number % LINES) * LINE_NBYTES


@njit(nogil=True)
def _post(state, stream, row, lane, place):  # type: ignore[no-untyped-def]
    """POST; 0 while all lines to the peer hold messages that it has not used."""
    peer, at = row[1], place * stream[NLOCAL] + row[1]
    sent = pointer(stream[SENT])
    number = sent[at]
    if number - pointer(stream[ACKED])[at] >= LINES and _unread(stream, peer, place) >= LINES:
        return 0
    line = _line(stream, stream[LOCAL_RANK], peer, place, number)
    if row[5] <= INLINE_NBYTES:
        memcpy(state[MEMCPY], (line + 8, _address(state, row[3], row[4], lane), row[5]))
    elif row[6] and state[WHERE_INPUT + row[3]] >= 0:
        pointer(line)[1] = state[WHERE_INPUT + row[3]] + pointer(state[LANES])[3 * lane + 2] + row[4]
    else:
        pointer(line)[1] = stream[STAGING_WHERE] + _staging(state, lane) + row[2] 
    store_release(line, (number + 1 << _LENGTH_BITS) + row[5])
    sent[at] = number + 1
    return 1


@njit(nogil=True)
def _await(state, stream, row, lane, place):  # type: ignore[no-untyped-def]
    """AWAIT; 0 while the message is not there, -1 when it has another length."""
    taken, at = pointer(stream[TAKEN]), place * stream[NLOCAL] + row[1]
    number = taken[at]
    line = _line(stream, row[1], stream[LOCAL_RANK], place, number)
    announced = load_acquire(line)
    if announced >> _LENGTH_BITS != number + 1:
        return 0
    if announced & ((1 << _LENGTH_BITS) - 1) != row[5]:
        state[ERROR] = state[TRUNCATED]
        return -1
    data = line + 8
    if row[5] > INLINE_NBYTES:
        where = pointer(line)[1]
        data = pointer(stream[BASES])[where >> OFFSET_BITS] + (where & ((1 << OFFSET_BITS) - 1))
    pointer(state[LANDED])[lane % state[WINDOW] * state[SLOTS] + row[2]] = data
    taken[at] = number + 1
    return 1


@njit(nogil=True, inline="always")
def _uncached(stream, nbytes):  # type: ignore[no-untyped-def]
    return stream[SLOW_WRITES] and nbytes >= _UNCACHED_NBYTES and stream[STAGED] % _TRIAL


@njit(nogil=True)
def _stage(address, stream, destination, source, nbytes):  # type: ignore[no-untyped-def]
    """Copy into the window, past the caches where that is better."""
    state = pointer(address)
    if _uncached(stream, nbytes):
        _copy_uncached(state, destination, source, nbytes)
        fence()
    elif nbytes < _PROBE_NBYTES:
        memcpy(state[MEMCPY], (destination, source, nbytes))
    else:
        start = nanoseconds(address)
        memcpy(state[MEMCPY], (destination, source, nbytes))
        stream[SLOW_WRITES] = int(nanoseconds(address) - start > nbytes // _FAST_BYTES_PER_NS)


@njit(nogil=True)
def _near(address, row, lane):  # type: ignore[no-untyped-def]
    """The operations on shared memory: 0 while one has to wait, -1 when it failed."""
    state = pointer(address)
    stream, place, code = pointer(state[STREAM]), _stream_place(state, lane % state[WINDOW]), row[0]
    if code == _POST:
        return _post(state, stream, row, lane, place)
    if code == _AWAIT:
        return _await(state, stream, row, lane, place)
    if code == _ACK:
        at = _acks(stream, stream[LOCAL_RANK], row[1]) + 8 * place
        store_release(at, pointer(at)[0] + 1)
    elif code == _STAGE:
        if not (row[6] and state[WHERE_INPUT + row[3]] >= 0):
            _stage(address, stream, _address(state, _STAGING, row[2], lane), _address(state, row[3], row[4], lane), row[5])
    elif code == _DRAIN:
        return int(state[WHERE_INPUT + row[3]] < 0 or _unread(stream, row[1], place) == 0)
    else:
        return _reserve(state, stream, place)
    return 1


@njit(nogil=True)
def _reserve(state, stream, place):  # type: ignore[no-untyped-def]
    """RESERVE: the next free bytes of the place; from its start again only when all that was staged there has been used."""
    used = pointer(stream[USED] + 16 * place)
    if used[0] + state[STAGING_OF_LANE] > stream[CAPACITY]:
        for peer in range(stream[NLOCAL]):
            if _unread(stream, peer, place) > 0:
                return 0
        used[0] = 0
    used[1] = used[0]
    used[0] += state[STAGING_OF_LANE]
    stream[STAGED] += 1
    return 1


@njit(nogil=True)
def _run_lane(address, lane, row):  # type: ignore[no-untyped-def]
    """Walk a lane from a row on; returns the row that waits, or the lane's end; -1 when MPI failed."""
    state = pointer(address)
    place = lane % state[WINDOW]
    requests = state[REQUESTS] + place * state[REQUESTS_PER_LANE] * state[REQUEST_NBYTES]
    end = pointer(state[LANES])[3 * lane + 1]
    flag = address + 8 * FLAG
    while row < end:
        at = pointer(state[ROWS] + 8 * NCOLUMNS * row)
        code = at[0]
        if code >= _STAGE:
            done = _near(address, at, lane)
            if done < 0:
                return -1
            if done == 0:
                return row
            row += 1
            continue
        if code >= _COPY:
            _local(address, at, lane)
            row += 1
            continue
        request = requests + at[1] * state[REQUEST_NBYTES]
        if code == _WAIT:
            error = _test(state[TEST], (request, flag, state[STATUS_IGNORE]))
            if error == 0 and state[FLAG] & 0xFFFFFFFF == 0:
                return row
        else:
            function = state[ISEND] if code == _SEND else state[IRECV]
            data = _address(state, at[3], at[4], lane)
            error = _transfer(function, (data, at[5], state[BYTE], at[2], state[TAG] + place, state[COMM], request))
        if error != 0:
            state[ERROR] = error
            return -1
        row += 1
    return row


@njit(nogil=True)
def begin(state, input_address, output_address):  # type: ignore[no-untyped-def]
    """Set a call's buffers and put the first lanes into their places."""
    places, lanes = pointer(state[PLACES]), pointer(state[LANES])
    state[INPUT], state[OUTPUT], state[ENDED] = input_address, output_address, 0
    for place in range(state[WINDOW]):
        places[2 * place], places[2 * place + 1] = place, lanes[3 * place]
    state[WHERE_INPUT] = state[WHERE_OUTPUT] = -1
    if state[STREAM] == 0:
        return
    stream = pointer(state[STREAM])
    state[TURN] = stream[CALLS] % STREAM_PLACES
    stream[CALLS] += 1
    ranges = pointer(stream[RANGES])
    for i in range(pointer(stream[NRANGES])[0]):
        for buffer in range(2):
            offset = state[INPUT + buffer] - ranges[3 * i]
            if 0 <= offset and state[INPUT + buffer] < ranges[3 * i + 1]:
                state[WHERE_INPUT + buffer] = ranges[3 * i + 2] + offset


@njit(nogil=True)
def turn(address):  # type: ignore[no-untyped-def]
    """Give every lane in flight a turn: 1 when something moved, 0 when nothing did, -1 when MPI failed."""
    state = pointer(address)
    nlanes, window = state[NLANES], state[WINDOW]
    places, lanes = pointer(state[PLACES]), pointer(state[LANES])
    moved = 0
    for place in range(window):
        lane, row = places[2 * place], places[2 * place + 1]
        if lane >= nlanes:
            continue
        reached = _run_lane(address, lane, row)
        if reached < 0:
            return -1
        if reached != row or reached == lanes[3 * lane + 1]:
            moved = 1
        if reached == lanes[3 * lane + 1]:
            state[ENDED] += 1
            lane += window
            places[2 * place] = lane
            reached = lanes[3 * lane] if lane < nlanes else 0
        places[2 * place + 1] = reached
    return moved


@njit(nogil=True)
def run(address, input_address, output_address, start):  # type: ignore[no-untyped-def]
    """Run a program's lanes; the GIL is released while messages travel.

    Args:
        address: `hpcoll.engines.host.HostEngine.address`.
        input_address, output_address: Where INPUT and OUTPUT start; ignored when going on.
        start: 1 to begin a call, 0 to go on with one.
    Returns:
        `DONE`; `PENDING` when nothing has moved for a while; `FAILED` when MPI returned an error; `BUSY` when something else runs
        on what this engine needs alone: nothing has happened then.
    """
    state = pointer(address)
    if start:
        if not exchange(state[LOCK], 0, 1):
            return BUSY
        begin(state, input_address, output_address)
        state[STARTED] = nanoseconds(address)
    idle = 0
    while state[ENDED] < state[NLANES]:
        moved = turn(address)
        if moved < 0:
            return FAILED
        idle = 0 if moved else idle + 1
        if idle > state[YIELDS]:
            usleep(state[USLEEP], (1,))
        elif idle > state[SPINS]:
            sched_yield(state[SCHED_YIELD], ())
        if idle > state[YIELDS] + NAPS:
            return PENDING
    account = pointer(state[ACCOUNT])
    account[0] += 1
    account[1] += nanoseconds(address) - state[STARTED]
    store_release(state[LOCK], 0)
    return DONE
