"""Host reduction kernels: ``dst = srcs[0] op srcs[1] op ...``, compiled by Numba.; imports the ground floor only.

A kernel is an address with the C signature ``void(T *dst, T **srcs, int64 nsrcs, int64 count)``; the engine calls it
through that address, so that one compiled engine serves every operator and element type. Kernels are compiled when first
asked for and cached on disk. Rules that every kernel keeps:

- integers wrap; bool is one byte, 0 or 1; logical operators give 0 or 1;
- NaN propagates through min and max, and both give +0.0 for zeros of either sign, so that ``a op b`` and ``b op a``
  have the same bits;
- ``dst`` may be any one of the sources, but may not overlap one partly.
"""

from collections.abc import Callable
from functools import lru_cache
from types import FunctionType
from typing import Any

import numba
import numpy as np
from numba import carray, njit, types

from hpcoll.base.compile_once import once_per_node
from hpcoll.base.errors import KernelError
from hpcoll.base.ops import ReduceOp

_BLOCK = 2048  # elements folded at a time, so that the partial result stays in the first-level cache


@njit(inline="always")
def _fold(combine, dst, srcs, nsrcs, count):  # type: ignore[no-untyped-def]
    out = carray(dst, count)
    first, second = carray(srcs[0], count), carray(srcs[1], count)
    if nsrcs == 2:
        if out.ctypes.data == first.ctypes.data:  # told apart, because a loop over memory that overlaps is not vectorised
            for i in range(count):
                first[i] = combine(first[i], second[i])
        elif out.ctypes.data == second.ctypes.data:
            for i in range(count):
                second[i] = combine(first[i], second[i])
        else:
            for i in range(count):
                out[i] = combine(first[i], second[i])
        return
    partial = np.empty(min(count, _BLOCK), out.dtype)
    for lo in range(0, count, _BLOCK):
        n = min(_BLOCK, count - lo)
        for i in range(n):
            partial[i] = combine(first[lo + i], second[lo + i])
        for k in range(2, nsrcs - 1):
            more = carray(srcs[k], count)
            for i in range(n):
                partial[i] = combine(partial[i], more[lo + i])
        last = carray(srcs[nsrcs - 1], count)
        for i in range(n):
            out[lo + i] = combine(partial[i], last[lo + i])


@njit
def _add(a, b):  # type: ignore[no-untyped-def]
    return a + b


@njit
def _multiply(a, b):  # type: ignore[no-untyped-def]
    return a * b


@njit
def _minimum(a, b):  # type: ignore[no-untyped-def]
    return a if a < b or a != a else b


@njit
def _maximum(a, b):  # type: ignore[no-untyped-def]
    return a if a > b or a != a else b


@njit
def _minimum_real(a, b):  # type: ignore[no-untyped-def]
    return (a if a < b or a != a else b) + np.uint8(0)


@njit
def _maximum_real(a, b):  # type: ignore[no-untyped-def]
    return (a if a > b or a != a else b) + np.uint8(0)


@njit
def _logical_and(a, b):  # type: ignore[no-untyped-def]
    return (a != 0) & (b != 0)


@njit
def _logical_or(a, b):  # type: ignore[no-untyped-def]
    return (a != 0) | (b != 0)


@njit
def _logical_xor(a, b):  # type: ignore[no-untyped-def]
    return (a != 0) ^ (b != 0)


@njit
def _bit_and(a, b):  # type: ignore[no-untyped-def]
    return a & b


@njit
def _bit_or(a, b):  # type: ignore[no-untyped-def]
    return a | b


@njit
def _bit_xor(a, b):  # type: ignore[no-untyped-def]
    return a ^ b


# One plain function per operator, not a closure over the combiner: Numba's disk cache cannot recognise closures.
def _sum(dst, srcs, nsrcs, count):  # type: ignore[no-untyped-def]
    _fold(_add, dst, srcs, nsrcs, count)


def _prod(dst, srcs, nsrcs, count):  # type: ignore[no-untyped-def]
    _fold(_multiply, dst, srcs, nsrcs, count)


def _min(dst, srcs, nsrcs, count):  # type: ignore[no-untyped-def]
    _fold(_minimum, dst, srcs, nsrcs, count)


def _max(dst, srcs, nsrcs, count):  # type: ignore[no-untyped-def]
    _fold(_maximum, dst, srcs, nsrcs, count)


def _min_real(dst, srcs, nsrcs, count):  # type: ignore[no-untyped-def]
    _fold(_minimum_real, dst, srcs, nsrcs, count)


def _max_real(dst, srcs, nsrcs, count):  # type: ignore[no-untyped-def]
    _fold(_maximum_real, dst, srcs, nsrcs, count)


def _land(dst, srcs, nsrcs, count):  # type: ignore[no-untyped-def]
    _fold(_logical_and, dst, srcs, nsrcs, count)


def _lor(dst, srcs, nsrcs, count):  # type: ignore[no-untyped-def]
    _fold(_logical_or, dst, srcs, nsrcs, count)


def _lxor(dst, srcs, nsrcs, count):  # type: ignore[no-untyped-def]
    _fold(_logical_xor, dst, srcs, nsrcs, count)


def _band(dst, srcs, nsrcs, count):  # type: ignore[no-untyped-def]
    _fold(_bit_and, dst, srcs, nsrcs, count)


def _bor(dst, srcs, nsrcs, count):  # type: ignore[no-untyped-def]
    _fold(_bit_or, dst, srcs, nsrcs, count)


def _bxor(dst, srcs, nsrcs, count):  # type: ignore[no-untyped-def]
    _fold(_bit_xor, dst, srcs, nsrcs, count)


_KERNELS: dict[str, Callable[..., None]] = {
    "sum": _sum, "prod": _prod, "min": _min, "max": _max, "min_real": _min_real, "max_real": _max_real,
    "land": _land, "lor": _lor, "lxor": _lxor, "band": _band, "bor": _bor, "bxor": _bxor,
}  # fmt: skip


def _signature(dtype: np.dtype) -> Any:
    element = types.uint8 if dtype.kind == "b" else numba.from_dtype(dtype)
    return types.void(types.CPointer(element), types.CPointer(types.CPointer(element)), types.int64, types.int64)


def _user_kernel(function: Callable[[Any, Any], Any]) -> Callable[..., None]:
    known = njit(function) if isinstance(function, FunctionType) else function  # max, numpy.maximum, a function compiled before

    @njit
    def combine(a, b):  # type: ignore[no-untyped-def]
        return known(a, b)

    def fold(dst, srcs, nsrcs, count):  # type: ignore[no-untyped-def]
        _fold(combine, dst, srcs, nsrcs, count)

    return fold


@lru_cache(maxsize=256)
def _compile(name: str, function: Callable[[Any, Any], Any] | None, dtype: np.dtype) -> Any:
    try:
        if function is not None:
            return numba.cfunc(_signature(dtype))(_user_kernel(function))
        with once_per_node(f"{name} {dtype}", __file__):
            return numba.cfunc(_signature(dtype), cache=True)(_KERNELS[name])
    except (numba.core.errors.NumbaError, TypeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise KernelError(f"operator {name} could not be compiled for {dtype}: {reason}") from error


def kernel_address(op: ReduceOp, dtype: np.dtype) -> int:
    """Address of the compiled fold of an operator for one element type; stays valid as long as the process.

    Args:
        op: Operator; average and premultiplied sum are sums here (their factors are applied outside the fold).
        dtype: Native NumPy type; not float16, bfloat16 or long double.
    Raises:
        KernelError: the operator's function does not compile for this type.
    """
    name = "sum" if op.average or op.premultiplier is not None else op.name
    if dtype.kind == "f" and name in ("min", "max") and op.function is None:
        name += "_real"
    return int(_compile(name, op.function, dtype).address)
