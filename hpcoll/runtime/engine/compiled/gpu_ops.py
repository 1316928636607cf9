"""Compiled: a program's operations on GPU memory, by calls of the CUDA driver.

Copies and reductions go to the stream of the lane's window slot and end when they like. The program orders what others read: a RECORD
behind the operation, a SYNC before its result is handed out.
"""

from numba import njit

from hpcoll.kernels import MAX_DESTINATIONS, MAX_SOURCES, WIDE_NBYTES
from hpcoll.kernels.one_shot_layout import NPARAMETERS as ONE_SHOT_NPARAMETERS
from hpcoll.runtime.engine.compiled.ffi import INT, LONG, c_function, call_with_address, load_acquire, pointer
from hpcoll.runtime.engine.compiled.local_ops import address_of
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program.opcodes import STAGING, Code

_COPY, _REDUCE, _STAGE, _RECORD = int(Code.COPY), int(Code.REDUCE), int(Code.STAGE), int(Code.RECORD)
_ONE_SHOT, _COMPARED = int(Code.ONE_SHOT), int(Code.COMPARED)
_NOT_READY = 600

_copy = c_function(INT, LONG, LONG, LONG, LONG)  # destination, source, nbytes, stream
# function, grid, block, shared, stream, parameters
_launch = c_function(INT, LONG, INT, INT, INT, INT, INT, INT, INT, LONG, LONG, LONG)
_record = c_function(INT, LONG, LONG)  # event, stream
_wait = c_function(INT, LONG, LONG, INT)  # stream, event, flags
_open = c_function(INT, LONG, LONG)  # local rank, slot


@njit(nogil=True, forceinline=True)
def _stream_of(state, gpu, lane):  # type: ignore[no-untyped-def]
    return pointer(gpu[f.STREAMS])[lane % state[f.WINDOW] % gpu[f.NSTREAMS]]


@njit(nogil=True, forceinline=True)
def _event_of(state, gpu, lane, event):  # type: ignore[no-untyped-def]
    return pointer(gpu[f.EVENTS])[lane % state[f.WINDOW] * gpu[f.NEVENTS] + event]


@njit(nogil=True)
def enter(state):  # type: ignore[no-untyped-def]
    """Make the GPU's context current in this thread, which may work on another GPU; 0, or the driver's error."""
    gpu = pointer(state[f.GPU])
    code = call_with_address(gpu[f.GET_CURRENT], (state[f.GPU] + 8 * f.BEFORE,))
    if code == 0 and gpu[f.BEFORE] != gpu[f.CONTEXT]:
        code = call_with_address(gpu[f.SET_CURRENT], (gpu[f.CONTEXT],))
    return code


@njit(nogil=True)
def leave(state):  # type: ignore[no-untyped-def]
    """Let the context be what it was before `enter`."""
    gpu = pointer(state[f.GPU])
    if gpu[f.BEFORE] != gpu[f.CONTEXT]:
        call_with_address(gpu[f.SET_CURRENT], (gpu[f.BEFORE],))


@njit(nogil=True)
def begin_gpu(state):  # type: ignore[no-untyped-def]
    """Let all streams wait for the caller's earlier work; 0, or the driver's error."""
    gpu = pointer(state[f.GPU])
    code = enter(state)
    for slot in range(gpu[f.NSTREAMS]):
        if code == 0:
            code = _wait(gpu[f.WAIT_EVENT], (_stream_of(state, gpu, slot), _event_of(state, gpu, slot, 0), 0))
    leave(state)
    return code


@njit(nogil=True)
def where_of(state, address):  # type: ignore[no-untyped-def]
    """Return slot and offset by which peers find memory that they may map; -1 for memory that was not exported."""
    gpu = pointer(state[f.GPU])
    ranges = pointer(gpu[f.EXPORTED])
    for i in range(pointer(gpu[f.NEXPORTED])[0]):
        if ranges[3 * i] <= address < ranges[3 * i + 1]:
            return ranges[3 * i + 2] + address - ranges[3 * i]
    return -1


@njit(nogil=True)
def address_at(state, peer, where):  # type: ignore[no-untyped-def]
    """Return the address of a peer's GPU memory in this process, which maps it when it is first named; 0 when that fails."""
    gpu = pointer(state[f.GPU])
    slot = (where >> f.OFFSET_BITS) - f.FIRST_SLOT
    mapped = pointer(gpu[f.MAPPED] + 16 * (peer * f.NSLOTS + slot))
    generation = load_acquire(gpu[f.DIRECTORY] + f.SLOT_NBYTES * (peer * f.NSLOTS + slot))
    if mapped[0] != generation and _open(gpu[f.OPEN], (peer, slot)) == 0:
        return 0
    return mapped[1] + (where & ((1 << f.OFFSET_BITS) - 1))


@njit(nogil=True)
def _reduce(state, gpu, row, lane):  # type: ignore[no-untyped-def]
    """Launch the kernel of a row that reduces, which takes as many addresses as any row has; return the driver's answer."""
    values, operands = pointer(gpu[f.VALUES]), pointer(state[f.SOURCES])
    nsources, nfurther, first = row[f.NSOURCES], row[f.NFURTHER], row[f.FIRST_SOURCE]
    for i in range(MAX_DESTINATIONS):  # those that are not in use repeat one that is
        at = 2 * (first + nsources + min(i, nfurther) - 1)
        further = i > 0 and nfurther > 0
        buffer, displ = (operands[at], operands[at + 1]) if further else (row[f.TO_BUFFER], row[f.TO_DISPL])
        values[i] = address_of(state, buffer, displ, lane)
    values[MAX_DESTINATIONS] = 1 + nfurther
    for i in range(MAX_SOURCES):
        at = 2 * (first + min(i, nsources - 1))
        values[MAX_DESTINATIONS + 1 + i] = address_of(state, operands[at], operands[at + 1], lane)
    values[MAX_DESTINATIONS + MAX_SOURCES + 1], values[MAX_DESTINATIONS + MAX_SOURCES + 2] = (
        nsources,
        row[f.COUNT],
    )
    blocks = min(gpu[f.MOST_BLOCKS], -(-row[f.REDUCED_NBYTES] // (gpu[f.BLOCK_THREADS] * WIDE_NBYTES)))
    return _launched(state, gpu, lane, blocks)


@njit(nogil=True)
def _one_shot(state, gpu, row, lane):  # type: ignore[no-untyped-def]
    """Launch a one-shot kernel; what all its calls have alike stands among the parameters already."""
    values = pointer(gpu[f.VALUES])
    values[1] = address_of(state, row[f.BUFFER], row[f.DISPL], lane)
    values[2] = address_of(state, row[f.TO_BUFFER], row[f.TO_DISPL], lane)
    values[ONE_SHOT_NPARAMETERS - 1] = state[f.CHECKED]
    return _launched(state, gpu, lane, row[f.GRID])


@njit(nogil=True)
def _launched(state, gpu, lane, blocks):  # type: ignore[no-untyped-def]
    """Launch the engine's kernel; 0, or the driver's error."""
    launch = (
        gpu[f.FUNCTION],
        blocks,
        1,
        1,
        gpu[f.BLOCK_THREADS],
        1,
        1,
        0,
        _stream_of(state, gpu, lane),
        gpu[f.PARAMETERS],
        0,
    )
    return _launch(gpu[f.LAUNCH], launch)


@njit(nogil=True)
def run_gpu(address, row, lane):  # type: ignore[no-untyped-def]
    """Run a COPY, REDUCE, STAGE, RECORD, SYNC, ONE_SHOT or COMPARED: 0 while it has to wait, -1 when it failed."""
    state = pointer(address)
    gpu, code = pointer(state[f.GPU]), row[f.CODE]
    if code in (_COPY, _STAGE):
        to, displ = (STAGING, row[f.STAGED_DISPL]) if code == _STAGE else (row[f.TO_BUFFER], row[f.TO_DISPL])
        source = address_of(state, row[f.BUFFER], row[f.DISPL], lane)
        error = _copy(
            gpu[f.COPY_ASYNC],
            (address_of(state, to, displ, lane), source, row[f.NBYTES], _stream_of(state, gpu, lane)),
        )
    elif code == _REDUCE:
        error = _reduce(state, gpu, row, lane)
    elif code == _RECORD:
        error = _record(
            gpu[f.RECORD_EVENT], (_event_of(state, gpu, lane, row[f.EVENT]), _stream_of(state, gpu, lane))
        )
    elif code == _ONE_SHOT:
        error = _one_shot(state, gpu, row, lane)
    elif code == _COMPARED:
        error = 0
        if pointer(gpu[f.STOP])[0] != 0:
            state[f.ERROR] = f.MISMATCH
            return -1
    else:
        error = call_with_address(gpu[f.QUERY_EVENT], (_event_of(state, gpu, lane, row[f.EVENT]),))
        if error == _NOT_READY:
            return 0
    if error != 0:
        state[f.ERROR] = -error  # the sign tells it from an error of MPI
    return 1 if error == 0 else -1
