"""The library of C functions. Their parameters are those of `hpcoll.runtime.gpu.cuda.FUNCTIONS`."""

from __future__ import annotations

import ctypes
import sys
import traceback
from collections.abc import Callable
from ctypes import c_int, c_void_p
from typing import TYPE_CHECKING, Any

from cuda_double.calls_memory import MemoryCalls
from cuda_double.calls_work import WorkCalls
from cuda_double.failures import NAMES, NOT_INITIALIZED, UNKNOWN, Failure, require
from hpcoll.runtime.gpu.cuda import FUNCTIONS

if TYPE_CHECKING:
    from cuda_double.double import Double

_ALWAYS = ("cuInit", "cuDriverGetVersion", "cuGetErrorName")  # of no device
_PROBE = "cuPointerGetAttribute"


class _AllCalls(MemoryCalls, WorkCalls):
    pass


class Library:
    """The stand-in for libcuda.so.1: every function as a C function, by name."""

    def __init__(self, double: Double) -> None:
        self.calls = _AllCalls(double)
        for name, types in FUNCTIONS.items():
            # An output of type char* arrives as its address.
            prototype = ctypes.CFUNCTYPE(
                c_int, *(c_void_p if one is ctypes.c_char_p else one for one in types)
            )
            setattr(self, name, prototype(self._guarded(double, name, getattr(self.calls, name))))

    def _guarded(self, double: Double, name: str, call: Callable[..., int | None]) -> Callable[..., int]:
        def guarded(*arguments: Any) -> int:
            with double.lock:
                double.calls[name] += 1
                try:
                    require(self.calls.started or name in _ALWAYS, NOT_INITIALIZED, "comes before cuInit")
                    self._fail_as_told(double, name)
                    return call(*arguments) or 0
                except Failure as failure:
                    if name != _PROBE:
                        double.failures.append(f"{name}: {NAMES.get(failure.code, b'?').decode()}: {failure}")
                    return failure.code
                except Exception:  # of the double: nothing may leave a C function
                    double.failures.append(f"{name}: {traceback.format_exc()}")
                    traceback.print_exc(file=sys.stderr)
                    return UNKNOWN

        return guarded

    def _fail_as_told(self, double: Double, name: str) -> None:
        if name in double.failing:
            remaining, code = double.failing.pop(name)
            require(remaining, code, "was told to fail")
            double.failing[name] = remaining - 1, code
