"""The one way from Python into compiled code.

One function is compiled, kept on disk under a name that holds a digest of all it was made from, and called without Numba's
dispatch, which would cost as much again as the call.
"""

import hashlib
from pathlib import Path

from numba import njit

from hpcoll.base.compile_once import once_per_node
from hpcoll.runtime.engine import call_cache, ffi, gpu_ops, interpreter, local_ops, mpi_collectives, mpi_ops, progress, shm_ops
from hpcoll.runtime.program import fields

RUN, CACHED, START, ACTIVATE, WAIT, SERVE = range(6)


run_cached, run = call_cache.run_cached, interpreter.run
start, activate, wait, serve = progress.start, progress.activate, progress.wait, progress.serve


def _call(what, a, b, c, d):  # type: ignore[no-untyped-def]
    """The function that the constant names, of the other arguments."""
    if what == CACHED:
        return run_cached(a, b, c, d)
    if what == RUN:
        return run(a, b, c, d)
    if what == START:
        return start(a, b, c)
    if what == ACTIVATE:
        return activate(a, b, c)
    if what == WAIT:
        return wait(a, b, c)
    return serve(a)


def _digest() -> str:
    """Of the functions and the constants that compiled code is made of, as they are in this process."""
    parts = [Path(ffi.__file__).read_bytes()]  # its intrinsics write code themselves
    for module in (ffi, fields, local_ops, mpi_ops, shm_ops, gpu_ops, mpi_collectives, interpreter, call_cache, progress):
        for name, value in sorted(vars(module).items()):
            code = getattr(getattr(value, "py_func", None), "__code__", None)
            if isinstance(value, int):
                parts.append(f"{name}={value}".encode())
            elif code is not None:
                parts.append(code.co_code + repr((name, code.co_consts, code.co_names, code.co_varnames)).encode())
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


_call.__qualname__ = _call.__name__ = f"call_{_digest()}"
with once_per_node(_call.__name__, __file__):
    _compiled = njit("int64(int64, int64, int64, int64, int64)", nogil=True, cache=True)(_call)
call_compiled = _compiled.overloads[_compiled.signatures[0]].entry_point
