"""Compiled: a region of the program is entered or left (`hpcoll.comm.status.regions`)."""

from numba import njit

from hpcoll.runtime.engine.compiled.ffi import LONG, VOID, capi_function, pointer
from hpcoll.runtime.program import call_fields as c
from hpcoll.runtime.program import object_fields as o

_vectorcall = capi_function(o.VECTORCALL, LONG, LONG, LONG, LONG, LONG)
_keep = capi_function("Py_IncRef", VOID, LONG)


def cross(words, arguments, nargs):  # type: ignore[no-untyped-def]
    """Enter a region, or leave it where there are arguments, those of ``__exit__``. Return None; 0 where an error is set.

    The words are an array object, of the fields of a region.
    """
    address = pointer(words)[c.DATA]
    if nargs == 0:
        return _cross(address, o.OUTER, o.INNER, o.ENTERS)
    return _cross(address, o.INNER, o.OUTER, o.LEAVES)


@njit(nogil=True)
def _cross(address, before, after, otherwise):  # type: ignore[no-untyped-def]
    """Set the number ``after`` where the process is in region ``before``; else call the function of Python ``otherwise``."""
    words = pointer(address)
    number = pointer(words[o.NUMBER_AT])
    if number[0] != words[before]:
        return _vectorcall((words[otherwise], address + 8 * o.REGION, 1, 0))
    number[0] = words[after]
    _keep((words[o.NOTHING],))
    return words[o.NOTHING]
