"""Exact sums of arrays in GPU memory by kernels, where they have a floating type; of all else the host makes them."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from hpcoll.base.dtypes import kind
from hpcoll.base.errors import KernelError
from hpcoll.comm.arguments.gpu_staging import pack
from hpcoll.kernels import MAX_AXES
from hpcoll.kernels.digits import DigitWindow
from hpcoll.runtime.gpu.arrays import DeviceArray, stream_of
from hpcoll.runtime.gpu.device import Gpu, gpu_of, kernels
from hpcoll.runtime.gpu.digit_sums import GpuMatrix, digit_products, digit_sums

Words = np.ndarray[Any, Any]


def sums_on_gpu(x: DeviceArray, axes: tuple[int, ...], within: DigitWindow) -> Words | None:
    """Return the sums of elements over axes as digits in normal form; None where no kernel makes them.

    Args:
        x: Any type, any strides.
        axes: Of x, in ascending order.
        within: The digits that the result has: room for all numbers of x's type.

    Returns:
        int64, shape (parts, sums, ``within.nwords``), sums in C order of the other axes.
    """
    found = _parts(x, axes)
    if found is None:
        return None
    gpu, parts, _keep = found
    return np.stack([digit_sums(gpu, part, within) for part in parts])


def products_on_gpu(x: DeviceArray, y: DeviceArray, within: DigitWindow) -> Words | None:
    """Return the sum of the products of elements of two real arrays of one shape, shape (1, nwords); None where no kernel makes it."""
    if x.dtype != y.dtype or x.dtype.kind == "c" or x.ordinal != y.ordinal:
        return None
    axes = tuple(range(len(x.shape)))
    one, other = _parts(x, axes, in_order=True), _parts(y, axes, in_order=True)
    if one is None or other is None:
        return None
    return digit_products(one[0], one[1][0], other[1][0], within)


def squares_on_gpu(x: DeviceArray, within: DigitWindow) -> Words | None:
    """Return the sum of the squares of all elements, of the size of complex ones, as `products_on_gpu`."""
    found = _parts(x, tuple(range(len(x.shape))))
    if found is None:
        return None
    gpu, parts, _keep = found
    return np.sum([digit_products(gpu, part, part, within) for part in parts], 0)


def _parts(
    x: DeviceArray, axes: tuple[int, ...], *, in_order: bool = False
) -> tuple[Gpu, list[GpuMatrix], object] | None:
    """Return an array as matrices of its parts: a vector for each sum, behind the work of its producer; None where kernels cannot read it.

    Args:
        x: The array.
        axes: Of the elements of a vector.
        in_order: Keep the order of elements.

    Returns:
        The GPU, the matrices, and what owns copies of x.
    """
    if kind(x.dtype) not in ("f", "c") or not x.dtype.isnative or not _has_kernels():
        return None
    gpu, keep = gpu_of(x.ordinal), None
    kept = [axis for axis in range(len(x.shape)) if axis not in axes]
    nvectors, length = prod(x.shape[axis] for axis in kept), prod(x.shape[axis] for axis in axes)
    strides = x.strides if x.strides is not None else _packed(x.shape, x.dtype.itemsize)
    pointer, steps = (
        x.pointer,
        (_step(x.shape, strides, kept), _step(x.shape, strides, axes, any_order=not in_order)),
    )
    nparts = 2 if x.dtype.kind == "c" else 1
    real = np.dtype(f"f{x.dtype.itemsize // 2}") if nparts == 2 else x.dtype
    with gpu.entered():
        gpu.order(gpu.stream, stream_of(x, None, 0))
        if x.size and (None in steps or any(step % real.itemsize for step in steps if step)):
            if len(x.shape) > MAX_AXES:
                return None
            order = (*axes, *kept)
            shape, moved = tuple(x.shape[axis] for axis in order), tuple(strides[axis] for axis in order)
            packed = pack(gpu, x._replace(shape=shape, strides=moved))
            packed.fill(gpu.stream)
            keep, pointer, steps = (
                packed.memory,
                packed.memory.address,
                (x.dtype.itemsize, nvectors * x.dtype.itemsize),
            )
    across, along = ((step or 0) // real.itemsize for step in steps)
    first = GpuMatrix(pointer, real, nvectors, length, across, along)
    return gpu, [first._replace(pointer=pointer + part * real.itemsize) for part in range(nparts)], keep


def _has_kernels() -> bool:
    try:
        return bool(kernels())
    except KernelError:
        return False


def _packed(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Return the strides of C order."""
    return tuple(itemsize * prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _step(
    shape: Sequence[int], strides: Sequence[int], axes: Sequence[int], *, any_order: bool = False
) -> int | None:
    """Return the step in bytes from each place along some axes to the next, in C order or in that of memory; None where it varies."""
    used = [(strides[axis], shape[axis]) for axis in axes if shape[axis] != 1]
    if any_order:
        used.sort(key=lambda one: -abs(one[0]))
    if any(step != below * n for (step, _), (below, n) in pairwise(used)):
        return None
    return used[-1][0] if used else 0
