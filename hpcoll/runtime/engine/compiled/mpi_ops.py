"""Compiled: messages and collectives of the MPI library (`hpcoll.runtime.transports.mpi` finds its functions)."""

from numba import njit

from hpcoll.runtime.engine.compiled.ffi import INT, LONG, c_function, pointer, store_release
from hpcoll.runtime.engine.compiled.local_ops import address_of, clock, length
from hpcoll.runtime.program import call_fields as c
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program.opcodes import Code

_SEND, _WAIT = int(Code.SEND), int(Code.WAIT)
_INT = (1 << 32) - 1  # of a word whose first half the library has written

# buffer, count, datatype, peer, tag, comm, request
_transfer = c_function(INT, LONG, INT, LONG, INT, INT, LONG, LONG)
_test = c_function(INT, LONG, LONG, LONG)  # request, flag, status
_get_count = c_function(INT, LONG, LONG, LONG)  # status, datatype, count
_iprobe = c_function(INT, INT, INT, LONG, LONG, LONG)  # source, tag, comm, flag, status
_call = c_function(INT, *[LONG] * c.NARGUMENTS)


@njit(nogil=True)
def run_mpi(address, row, lane):  # type: ignore[no-untyped-def]
    """Run a RECV, SEND or WAIT: 0 while it has to wait, -1 when MPI failed or a message has another length."""
    state = pointer(address)
    slot = lane % state[f.WINDOW]
    request = (
        state[f.REQUESTS] + (slot * state[f.REQUESTS_PER_LANE] + row[f.REQUEST]) * state[f.REQUEST_NBYTES]
    )
    if row[f.CODE] == _WAIT:
        status = state[f.STATUS_AT]
        error = _test(state[f.TEST], (request, address + 8 * f.FLAG, status))
        if error == 0 and state[f.FLAG] & _INT == 0:
            return 0
        if row[f.NBYTES]:
            state[f.CAME], state[f.AWAITED] = f.MORE, row[f.NBYTES]
            if error == 0:
                _get_count(state[f.GET_COUNT], (status, state[f.BYTE], address + 8 * f.FLAG))
                state[f.CAME] = state[f.FLAG] & _INT
                fits = state[f.CAME] == state[f.AWAITED] or (
                    state[f.FORM] & f.CELLS and state[f.CAME] < state[f.AWAITED]
                )
                error = 0 if fits else state[f.TRUNCATED]
    elif row[f.NBYTES] == 0:
        return 1  # neither end sends what is empty, and the wait finds no request
    else:
        sends, data = row[f.CODE] == _SEND, address_of(state, row[f.BUFFER], row[f.DISPL], lane)
        nbytes = length(state, row, data) if sends else row[f.NBYTES]
        to = state[f.BYTE], row[f.PEER], state[f.CHECKED_TAG] + slot, state[f.COMM], request
        error = _transfer(state[f.ISEND] if sends else state[f.IRECV], (data, nbytes, *to))
    if error != 0:
        state[f.ERROR] = error
        return -1
    return 1


@njit(nogil=True)
def let_mpi_move(address):  # type: ignore[no-untyped-def]
    """Enter the library, which moves its messages in calls only: ask it for a message that never comes."""
    state = pointer(address)
    _iprobe(
        state[f.IPROBE], (0, state[f.LAST_TAG], state[f.COMM], address + 8 * f.FLAG, address + 8 * f.STATUS)
    )


@njit(nogil=True, forceinline=True)
def _argument(words, i, source, target, count):  # type: ignore[no-untyped-def]
    """Return the i-th argument of the C function."""
    if i == words[c.SOURCE_AT]:
        return source
    if i == words[c.TARGET_AT]:
        return target
    return count if words[c.COUNTS_AT] >> i & 1 else words[c.FIRST + i]


@njit(nogil=True)
def call_mpi(address, source, target, count):  # type: ignore[no-untyped-def]
    """Call a collective of the library's own (`MpiCall.address`); `DONE`, or `FAILED` with the library's code in the array."""
    words = pointer(address)
    history = words[c.HISTORY]
    pointer(history)[f.LIBRARY_METHOD] = words[c.METHOD]
    store_release(history + 8 * f.LIBRARY_BEGUN, pointer(history)[f.LIBRARY_BEGUN] + 1)
    room = address + 8 * c.CLOCK
    start = clock(words[c.CLOCK_GETTIME], room)
    arguments = (
        _argument(words, 0, source, target, count),
        _argument(words, 1, source, target, count),
        _argument(words, 2, source, target, count),
        _argument(words, 3, source, target, count),
        _argument(words, 4, source, target, count),
        _argument(words, 5, source, target, count),
        _argument(words, 6, source, target, count),
        _argument(words, 7, source, target, count),
    )
    words[c.ERROR] = _call(words[c.FUNCTION], arguments)
    store_release(history + 8 * f.LIBRARY_ENDED, pointer(history)[f.LIBRARY_BEGUN])
    if words[c.ERROR] != 0:
        return f.FAILED
    account = pointer(words[c.ACCOUNT])
    account[0] += 1
    account[1] += clock(words[c.CLOCK_GETTIME], room) - start
    account[2] += count * words[c.ELEMENT_NBYTES]
    return f.DONE
