"""Compiled: calls of the MPI library's own collectives."""

from numba import njit

from hpcoll.runtime.engine.compiled.ffi import INT, LONG, c_function, pointer, store_release
from hpcoll.runtime.engine.compiled.local_ops import clock
from hpcoll.runtime.program import call_fields as c
from hpcoll.runtime.program import fields as f

_call = c_function(INT, *[LONG] * c.NARGUMENTS)


@njit(nogil=True, forceinline=True)
def _argument(words, i, source, target, count):  # type: ignore[no-untyped-def]
    if i == words[c.SOURCE_AT]:
        return source
    if i == words[c.TARGET_AT]:
        return target
    return count if words[c.COUNTS_AT] >> i & 1 else words[c.FIRST + i]


@njit(nogil=True)
def call_mpi(address, source, target, count):  # type: ignore[no-untyped-def]
    """Call the MPI library; `DONE`, or `FAILED` with its code in the array."""
    words = pointer(address)
    history = words[c.HISTORY]
    pointer(history)[f.LIBRARY_METHOD] = words[c.METHOD]
    store_release(history + 8 * f.LIBRARY_BEGUN, pointer(history)[f.LIBRARY_BEGUN] + 1)
    room = address + 8 * c.CLOCK
    start = clock(words[c.CLOCK_GETTIME], room)
    arguments = (
        _argument(words, 0, source, target, count), _argument(words, 1, source, target, count),
        _argument(words, 2, source, target, count), _argument(words, 3, source, target, count),
        _argument(words, 4, source, target, count), _argument(words, 5, source, target, count),
        _argument(words, 6, source, target, count), _argument(words, 7, source, target, count),
    )  # fmt: skip
    words[c.ERROR] = _call(words[c.FUNCTION], arguments)
    store_release(history + 8 * f.LIBRARY_ENDED, pointer(history)[f.LIBRARY_BEGUN])
    if words[c.ERROR] != 0:
        return f.FAILED
    account = pointer(words[c.ACCOUNT])
    account[0] += 1
    account[1] += clock(words[c.CLOCK_GETTIME], room) - start
    account[2] += count * words[c.ELEMENT_NBYTES]
    return f.DONE
