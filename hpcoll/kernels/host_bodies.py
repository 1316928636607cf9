"""Bodies of the host kernels, which Numba compiles; `hpcoll.kernels.host` has their rules. Imported only to be compiled."""

from collections.abc import Callable
from types import FunctionType
from typing import Any

import numba
import numpy as np
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from hpcoll.base.errors import KernelError
from hpcoll.kernels.object_code import object_file
from hpcoll.kernels.operators import OPERATORS

BLOCK = 512  # elements folded at a time, so that partial results stay in the first-level cache
_LEVELS = 16  # partial results at most: of 4, 8, 16, ... sources


@intrinsic
def _room(typingctx, pointer):  # type: ignore[no-untyped-def]
    """Return stack memory for a block of a pointer's elements at each level."""

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        return cgutils.alloca_once(builder, context.get_data_type(pointer.dtype), BLOCK * _LEVELS)

    return pointer(pointer), codegen


@intrinsic
def _rounded(typingctx, array, value):  # type: ignore[no-untyped-def]
    """Return a value as an array's elements hold it: a user's function may compute in a wider type."""

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        return context.cast(builder, values[1], signature.args[1], array.dtype)

    return array.dtype(array, value), codegen


@njit(inline="always")
def fold_two(combine, dst, srcs, count) -> None:  # type: ignore[no-untyped-def]
    """Fold two sources."""
    out, first, second = carray(dst, count), carray(srcs[0], count), carray(srcs[1], count)
    # told apart, because a loop over memory that overlaps is not vectorised
    if out.ctypes.data == first.ctypes.data:
        for i in range(count):
            first[i] = combine(first[i], second[i])
    elif out.ctypes.data == second.ctypes.data:
        for i in range(count):
            second[i] = combine(first[i], second[i])
    else:
        for i in range(count):
            out[i] = combine(first[i], second[i])


@njit(inline="always")
def _fold(combine, dst, srcs, nsrcs, count):  # type: ignore[no-untyped-def]
    """Fold as the canonical expression (`hpcoll.base.canonical`), whatever the operands' place and the count."""
    if nsrcs == 2:
        fold_two(combine, dst, srcs, count)
        return
    out, room = carray(dst, count), carray(_room(dst), BLOCK * _LEVELS)
    for lo in range(0, count, BLOCK):
        n = min(BLOCK, count - lo)
        # Slices, since a loop whose index is a sum, which may be negative, is not vectorised; nor one that writes to what it reads.
        result = out[lo : lo + n]
        depth = 0
        for k in range(0, nsrcs - 1 if nsrcs % 4 == 1 else nsrcs, 4):
            partial = room[depth * BLOCK : depth * BLOCK + n]
            _fold_four(combine, partial, srcs, k, nsrcs, lo, n, count)
            depth += 1
            group = k // 4
            # as in a binary counter: two partial results of equally many sources become one
            while group % 2 and k + 4 < nsrcs:
                depth -= 1
                group //= 2
                _merge(combine, room, depth, n)
        if nsrcs % 4 == 1:
            last, top = (
                carray(srcs[nsrcs - 1], count)[lo : lo + n],
                room[(depth - 1) * BLOCK : (depth - 1) * BLOCK + n],
            )
            for i in range(n):
                top[i] = combine(top[i], last[i])
        while depth > 2:
            depth -= 1
            _merge(combine, room, depth, n)
        if depth == 2:
            left, right = room[:n], room[BLOCK : BLOCK + n]
            for i in range(n):
                result[i] = combine(left[i], right[i])
        else:
            for i in range(n):
                result[i] = room[i]


@njit(inline="always")
def _fold_four(combine, partial, srcs, k, nsrcs, lo, n, count):  # type: ignore[no-untyped-def]
    """Fold a block of two to four sources, from the k-th on."""
    a, b = carray(srcs[k], count)[lo : lo + n], carray(srcs[k + 1], count)[lo : lo + n]
    if nsrcs - k == 2:
        for i in range(n):
            partial[i] = combine(a[i], b[i])
        return
    c = carray(srcs[k + 2], count)[lo : lo + n]
    if nsrcs - k == 3:
        for i in range(n):
            partial[i] = combine(_rounded(partial, combine(a[i], b[i])), c[i])
        return
    d = carray(srcs[k + 3], count)[lo : lo + n]
    for i in range(n):
        partial[i] = combine(_rounded(partial, combine(a[i], b[i])), _rounded(partial, combine(c[i], d[i])))


@njit(inline="always")
def _merge(combine, room, depth, n):  # type: ignore[no-untyped-def]
    """Add the partial result at a level to the one below."""
    below, top = room[(depth - 1) * BLOCK : (depth - 1) * BLOCK + n], room[depth * BLOCK : depth * BLOCK + n]
    for i in range(n):
        below[i] = combine(below[i], top[i])


def _signature(dtype: np.dtype) -> Any:
    element = types.uint8 if dtype.kind == "b" else numba.from_dtype(dtype)
    return types.void(
        types.CPointer(element), types.CPointer(types.CPointer(element)), types.int64, types.int64
    )


def _kernel(function: Callable[[Any, Any], Any]) -> Callable[..., None]:
    """Return the fold of a function of two scalars."""
    # max, numpy.maximum, a function compiled before
    known = njit(function) if isinstance(function, FunctionType) else function

    @njit
    def combine(a, b):  # type: ignore[no-untyped-def]
        return known(a, b)

    def fold(dst, srcs, nsrcs, count):  # type: ignore[no-untyped-def]
        _fold(combine, dst, srcs, nsrcs, count)

    return fold


def kernel_file(name: str, dtype: np.dtype, symbol: str) -> bytes:
    """Return the object file of a built-in operator's kernel."""
    return object_file(_kernel(OPERATORS[name]), _signature(dtype), symbol)


def user_kernel(name: str, function: Callable[[Any, Any], Any], dtype: np.dtype) -> Any:
    """Return the kernel of a user's operator; its ``address`` is valid as long as it is kept.

    Raises:
        KernelError: the function does not compile for this type.
    """
    try:
        return numba.cfunc(_signature(dtype))(_kernel(function))
    except (numba.core.errors.NumbaError, TypeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise KernelError(f"operator {name} could not be compiled for {dtype}: {reason}") from error
