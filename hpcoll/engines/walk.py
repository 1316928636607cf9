"""The compiled function that walks any program. Floor 5.

It knows a dozen opcodes and nothing of algorithms, operators or element types: reductions are calls to a kernel's address,
messages between nodes are calls to addresses in the MPI library, so that one cached machine code serves Open MPI and MPICH.
Messages on a node are lines of shared memory (`hpcoll.transports.shm` draws them). It never blocks: it returns after a while without
progress and is called again, which leaves Python the chance to see a signal. All state is in arrays, so that a
collective may be left and taken up again.
"""

from numba import njit

from hpcoll.engines.foreign import INT, LONG, exchange, foreign, pointer, sched_yield, store_release, usleep
from hpcoll.engines.local import address_of, copy, nanoseconds, run_local
from hpcoll.engines.near import run_near
from hpcoll.engines.state import (
    ACCOUNT,
    BUSY,
    BYTE,
    CALLS,
    COMM,
    COPY,
    COPY_NBYTES,
    DONE,
    ENDED,
    ERROR,
    FAILED,
    FLAG,
    INPUT,
    IRECV,
    ISEND,
    LANES,
    LOCK,
    NAPS,
    NLANES,
    NRANGES,
    OUTPUT,
    PENDING,
    PLACES,
    RANGES,
    REQUEST_NBYTES,
    REQUESTS,
    REQUESTS_PER_LANE,
    ROWS,
    SCHED_YIELD,
    SPINS,
    STARTED,
    STATUS_IGNORE,
    STREAM,
    STREAM_PLACES,
    TAG,
    TEST,
    TURN,
    USLEEP,
    WHERE_INPUT,
    WHERE_OUTPUT,
    WINDOW,
    YIELDS,
)  # fmt: skip
from hpcoll.program import NCOLUMNS, Code

_SEND, _WAIT, _COPY, _STAGE = int(Code.SEND), int(Code.WAIT), int(Code.COPY), int(Code.STAGE)

_transfer = foreign(INT, LONG, INT, LONG, INT, INT, LONG, LONG)  # buffer, count, datatype, peer, tag, comm, request
_test = foreign(INT, LONG, LONG, LONG)  # request, flag, status


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
            done = run_near(address, at, lane)
            if done < 0:
                return -1
            if done == 0:
                return row
            row += 1
            continue
        if code >= _COPY:
            run_local(address, at, lane)
            row += 1
            continue
        request = requests + at[1] * state[REQUEST_NBYTES]
        if code == _WAIT:
            error = _test(state[TEST], (request, flag, state[STATUS_IGNORE]))
            if error == 0 and state[FLAG] & 0xFFFFFFFF == 0:
                return row
        else:
            function = state[ISEND] if code == _SEND else state[IRECV]
            data = address_of(state, at[3], at[4], lane)
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
    if state[COPY_NBYTES]:
        copy(state, state[COPY], input_address, state[COPY_NBYTES])
        state[INPUT] = state[COPY]
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
            if offset >= 0 and state[INPUT + buffer] < ranges[3 * i + 1]:
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
