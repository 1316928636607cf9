"""Compiled: the one function that Python calls, and the one that it calls by address. Imported only where it has to be compiled."""

from numba import njit

from hpcoll.kernels.object_code import object_file
from hpcoll.runtime.engine.compiled import call_lookup, interpreter, progress
from hpcoll.runtime.engine.compiled.ffi import release_gil, take_gil
from hpcoll.runtime.engine.compiled.resize import resize
from hpcoll.runtime.program.fields import ACTIVATE, CACHED, HOLD, LET_GO, RESIZE, RUN, START, UNPACK_RESULTS, WAIT

run_cached, run = call_lookup.run_cached, interpreter.run
start, activate, wait, serve = progress.start, progress.activate, progress.wait, progress.serve
hold, let_go = progress.hold, progress.let_go


def _call(what, a, b, c, d):  # type: ignore[no-untyped-def]
    """Call the function that the constant names with the other arguments, while other threads of Python run."""
    if what == CACHED:
        return run_cached(a, b, c, d)
    thread = release_gil(())
    answer = _answer(what, a, b, c, d)
    take_gil((thread,))
    return answer


@njit(nogil=True)
def _answer(what, a, b, c, d):  # type: ignore[no-untyped-def]
    if what == RUN:
        return run(a, b, c, d)
    if what == START:
        return start(a, b, c)
    if what == ACTIVATE:
        return activate(a, b, c)
    if what == WAIT:
        return wait(a, b, c, d)
    if what == RESIZE:
        return resize(a, b)
    if what == UNPACK_RESULTS:
        return call_lookup.unpack(a)
    if what == HOLD:
        return hold(a)
    if what == LET_GO:
        return let_go(a, b)
    return serve(a)


def advance_file(symbol: str) -> bytes:
    """Object file of `interpreter.advance`."""
    return object_file(interpreter.advance.py_func, "int32(int64)", symbol)


def dispatch_file(symbol: str) -> bytes:
    """Object file of `_call`, for Python."""
    return object_file(_call, "int64(int64, int64, int64, int64, int64)", symbol, for_python=True, on_objects=CACHED)
