"""Compiled: the function that Python calls, and object files of it and of what runs lanes. Imported only to be compiled."""

from numba import njit

from hpcoll.kernels.object_code import object_file
from hpcoll.runtime.engine.compiled import call_lookup, interpreter, mapped_ops, progress, region_calls
from hpcoll.runtime.engine.compiled.copied_calls import run_copied
from hpcoll.runtime.engine.compiled.ffi import release_gil, take_gil
from hpcoll.runtime.engine.compiled.object_calls import call_on_object
from hpcoll.runtime.engine.compiled.spec_reader import read_floats
from hpcoll.runtime.program import fields as f


def _call(what, a, b, c, d):  # type: ignore[no-untyped-def]
    """Call the function that the constant names with the other arguments without the GIL, but for those on objects."""
    if what == f.CACHED:
        return call_lookup.run_cached(a, b, c, d)
    if what == f.ON_OBJECT:
        return call_on_object(a, b)
    if what == f.FLOATS:
        return read_floats(a, b, c, d)
    if what == f.COPIED:
        return run_copied(a, b, c, d)
    thread = release_gil(())
    answer = _answer(what, a, b, c, d)
    take_gil((thread,))
    return answer


@njit(nogil=True)
def _answer(what, a, b, c, d):  # type: ignore[no-untyped-def]
    """Do what is asked for without the GIL; answer as the function that does it."""
    if what == f.RUN:
        return interpreter.run(a, b, c, d)
    if what == f.START:
        return progress.start(a, b, c)
    if what == f.ACTIVATE:
        return progress.activate(a, b, c)
    if what == f.WAIT:
        return progress.wait(a, b, c, d)
    if what == f.RESIZE:
        return interpreter.resize(a, b)
    if what == f.HOLD:
        return progress.hold(a)
    if what == f.LET_GO:
        return progress.let_go(a, b)
    if what in (f.PACK, f.UNPACK):
        return mapped_ops.move(a, b, 0, c, d, what == f.UNPACK)
    return progress.serve(a)


def advance_file(symbol: str) -> bytes:
    """Return the object file of `interpreter.advance`."""
    return object_file(interpreter.advance.py_func, "int32(int64)", symbol)


def advance_noting_file(symbol: str) -> bytes:
    """Return the object file of `interpreter.advance_noting`."""
    return object_file(interpreter.advance_noting.py_func, "int32(int64)", symbol)


def engine_file(symbol: str) -> bytes:
    """Return the object file of `_call`, for Python."""
    return object_file(
        _call, "int64(int64, int64, int64, int64, int64)", symbol, for_python=True, on_objects=f.CACHED
    )


def region_file(symbol: str) -> bytes:
    """Return the object file of `region_calls.cross`."""
    return object_file(region_calls.cross, "int64(int64, int64, int64)", symbol)
