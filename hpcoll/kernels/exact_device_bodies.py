"""Bodies of the GPU kernels of exact sums; as `hpcoll.kernels.bodies`, whose rules they keep."""

from typing import Any

import numpy as np
from numba import cuda, types

from hpcoll.kernels import MAX_DESTINATIONS, MAX_SOURCES
from hpcoll.kernels.expansions import ROUNDED_SUMS, vectors
from hpcoll.kernels.numbers import number

_NAN = {"float16": 0x7E00, "bfloat16": 0x7FC0}  # bits of the one NaN of half types
_SUMMED = types.int64, *[types.float64] * MAX_SOURCES


def exact_fold(dtype: np.dtype) -> tuple[Any, Any]:
    """Arguments as of `hpcoll.kernels.bodies.fold`: the rounded sum of the sources, in all destinations; complex numbers by their parts."""
    nparts = 2 if dtype.kind == "c" else 1
    part = np.dtype(f"f{dtype.itemsize // 2}") if nparts == 2 else dtype
    stored, widen, total = _adder(part)

    def kernel(d0, d1, d2, d3, d4, d5, d6, d7, ndestinations, s0, s1, s2, s3, s4, s5, s6, s7, nsources, count):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        while i < nparts * count:
            x0, x1 = widen(s0[i]), widen(s1[i])
            x2 = widen(s2[i]) if nsources > 2 else x1
            x3 = widen(s3[i]) if nsources > 3 else x1
            x4 = widen(s4[i]) if nsources > 4 else x1
            x5 = widen(s5[i]) if nsources > 5 else x1
            x6 = widen(s6[i]) if nsources > 6 else x1
            x7 = widen(s7[i]) if nsources > 7 else x1
            result = total(nsources, x0, x1, x2, x3, x4, x5, x6, x7)
            d0[i] = result
            if ndestinations > 1:
                d1[i] = result
            if ndestinations > 2:
                d2[i] = result
            if ndestinations > 3:
                d3[i] = result
            if ndestinations > 4:
                d4[i] = result
            if ndestinations > 5:
                d5[i] = result
            if ndestinations > 6:
                d6[i] = result
            if ndestinations > 7:
                d7[i] = result
            i += cuda.gridsize(1)

    pointer = types.CPointer(stored)
    return kernel, types.void(*[pointer] * MAX_DESTINATIONS, types.int64, *[pointer] * MAX_SOURCES, types.int64, types.int64)


def _adder(dtype: np.dtype) -> tuple[Any, Any, Any]:
    """Return the Numba type of an element in memory, a function that makes it float64, and one that gives the rounded sum of 8 of them."""
    one = number(dtype)
    widen = vectors.calls(one.widen, types.float64(one.stored))
    if dtype.name not in _NAN:
        return one.stored, widen, vectors.calls(ROUNDED_SUMS[dtype.name], one.stored(*_SUMMED))
    nan, odd = _NAN[dtype.name], vectors.calls(ROUNDED_SUMS[dtype.name], types.float32(*_SUMMED))
    narrow = vectors.calls(one.narrow, one.stored(types.float32))

    def total(n, x0, x1, x2, x3, x4, x5, x6, x7):  # type: ignore[no-untyped-def]
        value = odd(n, x0, x1, x2, x3, x4, x5, x6, x7)
        return narrow(value) if value == value else np.uint16(nan)

    return one.stored, widen, vectors.calls(total, one.stored(*_SUMMED))
