"""The compiled function that walks any program.

It knows a dozen opcodes and nothing of algorithms, operators or element types: reductions are calls to a kernel's address,
messages between nodes are calls to addresses in the MPI library, so that one cached machine code serves Open MPI and MPICH.
Messages on a node are lines of shared memory (`transports.shm` draws them). It never blocks: it returns after a while without
progress and is called again, which leaves Python the chance to see a signal. All state is in arrays, so that a
collective may be left and taken up again.
"""

from numba import njit

from hpcoll.runtime.engine.ffi import INT, LONG, c_function, exchange, pointer, sched_yield, store_release, usleep
from hpcoll.runtime.engine.gpu_ops import begin_gpu, enter, leave, run_gpu
from hpcoll.runtime.engine.local_ops import address_of, copy, nanoseconds, run_local
from hpcoll.runtime.engine.shm_ops import run_shm
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program.opcodes import NCOLUMNS, Code

_SEND, _WAIT, _COPY, _STAGE, _RECORD, _SYNC = (int(c) for c in (Code.SEND, Code.WAIT, Code.COPY, Code.STAGE, Code.RECORD, Code.SYNC))

_transfer = c_function(INT, LONG, INT, LONG, INT, INT, LONG, LONG)  # buffer, count, datatype, peer, tag, comm, request
_test = c_function(INT, LONG, LONG, LONG)  # request, flag, status
_iprobe = c_function(INT, INT, INT, LONG, LONG, LONG)  # source, tag, comm, flag, status


@njit(nogil=True)
def _run_lane(address, lane, row):  # type: ignore[no-untyped-def]
    """Walk a lane from a row on; returns the row that waits, or the lane's end; -1 when MPI failed."""
    state = pointer(address)
    slot = lane % state[f.WINDOW]
    requests = state[f.REQUESTS] + slot * state[f.REQUESTS_PER_LANE] * state[f.REQUEST_NBYTES]
    end = pointer(state[f.LANES])[3 * lane + 1]
    flag = address + 8 * f.FLAG
    while row < end:
        at = pointer(state[f.ROWS] + 8 * NCOLUMNS * row)
        code = at[0]
        asynchronous = state[f.GPU] != 0 and (_COPY <= code <= _STAGE or _RECORD <= code <= _SYNC)
        if asynchronous or code >= _STAGE:
            done = run_gpu(address, at, lane) if asynchronous else run_shm(address, at, lane)
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
        request = requests + at[1] * state[f.REQUEST_NBYTES]
        if code == _WAIT:
            error = _test(state[f.TEST], (request, flag, state[f.STATUS_IGNORE]))
            if error == 0 and state[f.FLAG] & 0xFFFFFFFF == 0:
                return row
        else:
            function = state[f.ISEND] if code == _SEND else state[f.IRECV]
            data = address_of(state, at[3], at[4], lane)
            error = _transfer(function, (data, at[5], state[f.BYTE], at[2], state[f.TAG] + slot, state[f.COMM], request))
        if error != 0:
            state[f.ERROR] = error
            return -1
        row += 1
    return row


@njit(nogil=True)
def begin(state, input_address, output_address):  # type: ignore[no-untyped-def]
    """Set a call's buffers and put the first lanes into their window_slots."""
    window_slots, lanes = pointer(state[f.WINDOW_SLOTS]), pointer(state[f.LANES])
    state[f.INPUT], state[f.OUTPUT], state[f.ENDED] = input_address, output_address, 0
    if state[f.COPY_NBYTES]:
        copy(state, state[f.COPY], input_address, state[f.COPY_NBYTES])
        state[f.INPUT] = state[f.COPY]
    for slot in range(state[f.WINDOW]):
        window_slots[2 * slot], window_slots[2 * slot + 1] = slot, lanes[3 * slot]
    state[f.WHERE_INPUT] = state[f.WHERE_OUTPUT] = -1
    if state[f.GPU]:
        state[f.ERROR] = -begin_gpu(state)
    if state[f.RINGS] == 0:
        return
    rings = pointer(state[f.RINGS])
    state[f.TURN] = rings[f.CALLS] % f.STAGING_SLOTS
    rings[f.CALLS] += 1
    ranges = pointer(rings[f.RANGES])
    for i in range(pointer(rings[f.NRANGES])[0]):
        for buffer in range(2):
            offset = state[f.INPUT + buffer] - ranges[3 * i]
            if offset >= 0 and state[f.INPUT + buffer] < ranges[3 * i + 1]:
                state[f.WHERE_INPUT + buffer] = ranges[3 * i + 2] + offset


@njit(nogil=True)
def turn(address):  # type: ignore[no-untyped-def]
    """Give every lane in flight a turn: 1 when something moved, 0 when nothing did, -1 when MPI or the GPU failed."""
    state = pointer(address)
    if state[f.GPU] == 0:
        return _run_lanes(address)
    moved = -1
    if state[f.ERROR] == 0:
        state[f.ERROR] = -enter(state)
        moved = -1 if state[f.ERROR] else _run_lanes(address)
        leave(state)
    return moved


@njit(nogil=True)
def _run_lanes(address):  # type: ignore[no-untyped-def]
    state = pointer(address)
    nlanes, window = state[f.NLANES], state[f.WINDOW]
    window_slots, lanes = pointer(state[f.WINDOW_SLOTS]), pointer(state[f.LANES])
    moved = 0
    for slot in range(window):
        lane, row = window_slots[2 * slot], window_slots[2 * slot + 1]
        if lane >= nlanes:
            continue
        reached = _run_lane(address, lane, row)
        if reached < 0:
            return -1
        if reached != row or reached == lanes[3 * lane + 1]:
            moved = 1
        if reached == lanes[3 * lane + 1]:
            state[f.ENDED] += 1
            lane += window
            window_slots[2 * slot] = lane
            reached = lanes[3 * lane] if lane < nlanes else 0
        window_slots[2 * slot + 1] = reached
    if not moved and state[f.RINGS] and state[f.REQUESTS_PER_LANE]:
        # lanes may wait for ranks of the node alone, and these for what MPI has yet to send for this one: it moves in calls only
        _iprobe(state[f.IPROBE], (0, state[f.LAST_TAG], state[f.COMM], address + 8 * f.FLAG, state[f.STATUS_IGNORE]))
    return moved


@njit(nogil=True)
def run(address, input_address, output_address, start):  # type: ignore[no-untyped-def]
    """Run a program's lanes; the GIL is released while messages travel.

    Args:
        address: `hpcoll.runtime.engine.host_engine.HostEngine.address`.
        input_address, output_address: Where INPUT and OUTPUT start; ignored when going on.
        start: 1 to begin a call, 0 to go on with one.
    Returns:
        `DONE`; `PENDING` when nothing has moved for a while; `FAILED` when MPI returned an error; `BUSY` when something else runs
        on what this engine needs alone: nothing has happened then.
    """
    state = pointer(address)
    if start:
        if not exchange(state[f.LOCK], 0, 1):
            return f.BUSY
        begin(state, input_address, output_address)
        state[f.STARTED] = nanoseconds(address)
    idle = 0
    while state[f.ENDED] < state[f.NLANES]:
        moved = turn(address)
        if moved < 0:
            return f.FAILED
        idle = 0 if moved else idle + 1
        if idle > state[f.YIELDS] and idle % f.LOOKS == 0:
            usleep(state[f.USLEEP], (1,))
        elif idle > state[f.SPINS]:
            sched_yield(state[f.SCHED_YIELD], ())
        if idle > state[f.YIELDS] + f.NAPS * f.LOOKS:
            return f.PENDING
    account = pointer(state[f.ACCOUNT])
    account[0] += 1
    account[1] += nanoseconds(address) - state[f.STARTED]
    store_release(state[f.LOCK], 0)
    return f.DONE
