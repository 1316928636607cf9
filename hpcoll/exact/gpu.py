"""Arrays in GPU memory, whose exact sums kernels make, or the host of copies of their blocks."""

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from hpcoll.comm.arguments.host_mirror import Mirror
from hpcoll.exact.gpu_kernels import products_on_gpu, squares_on_gpu, sums_on_gpu
from hpcoll.exact.local import add_term
from hpcoll.exact.terms import terms
from hpcoll.kernels.digits import DigitWindow, normalise
from hpcoll.runtime.gpu.arrays import DeviceArray, KnownArray, stream_of

_BLOCK_NBYTES = 1 << 26  # of a copy


def add_gpu(words: np.ndarray[Any, Any], x: DeviceArray, axes: tuple[int, ...], within: DigitWindow) -> None:
    """Add the sums of elements over axes to vectors on the host.

    Args:
        words: int64, in normal form before and after, shape (parts, sums, ``within.nwords``), sums in C order of the other axes.
        x: Any type that can be added, any strides.
        axes: Of x, in ascending order.
        within: The digits that the vectors have: room for all numbers of x's type.
    """
    found = sums_on_gpu(x, axes, within)
    if found is not None and _is_added(words[: len(found)], found):
        return
    for (piece,) in host_pieces(x, along=axes):
        for term in terms(piece):
            add_term(words[term.part], term.array, axes, within)
            normalise(words)


def add_gpu_products(words: np.ndarray[Any, Any], x: Any, y: Any, within: DigitWindow) -> bool:
    """Add the products of all elements of two arrays to a vector, where kernels can; else say False, and the host does it.

    Args:
        words: In normal form before and after, shape (1, ``within.nwords``).
        x: NumPy's array, or one on a GPU.
        y: As x, and of its shape.
        within: As of `add_gpu`.
    """
    on_gpu = isinstance(x, DeviceArray) and isinstance(y, DeviceArray)
    return _is_added(words, products_on_gpu(x, y, within) if on_gpu else None)


def add_gpu_squares(words: np.ndarray[Any, Any], x: Any, within: DigitWindow) -> bool:
    """Add the squares of all elements to a vector, those of the size of complex ones; as `add_gpu_products`."""
    return len(words) == 1 and _is_added(
        words, squares_on_gpu(x, within) if isinstance(x, DeviceArray) else None
    )


def _is_added(words: np.ndarray[Any, Any], found: np.ndarray[Any, Any] | None) -> bool:
    if found is None:
        return False
    words += found
    normalise(words)
    return True


def host_pieces(
    *arrays: np.ndarray[Any, Any] | DeviceArray, along: tuple[int, ...] | None = None
) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield arrays of one shape as arrays on the host: those of GPUs block by block, along their first axis.

    Args:
        arrays: NumPy's or on a GPU.
        along: Axes that pieces may be cut along; None: any.
    """
    shape = arrays[0].shape
    nbytes = prod(shape) * max(one.dtype.itemsize for one in arrays)
    on_host = all(isinstance(one, np.ndarray) for one in arrays)
    if on_host or not shape or nbytes <= _BLOCK_NBYTES or (along is not None and 0 not in along):
        yield tuple(_on_host(one) for one in arrays)
        return
    step = max(_BLOCK_NBYTES * shape[0] // nbytes, 1)
    for start in range(0, shape[0], step):
        yield tuple(_on_host(_rows(one, start, min(start + step, shape[0]))) for one in arrays)


def _rows(x: Any, start: int, end: int) -> Any:
    """Return some places of the first axis."""
    if isinstance(x, np.ndarray):
        return x[start:end]
    step = x.strides[0] if x.strides is not None else prod(x.shape[1:]) * x.dtype.itemsize
    return x._replace(pointer=x.pointer + start * step, shape=(end - start, *x.shape[1:]))


def _on_host(x: Any) -> np.ndarray[Any, Any]:
    if isinstance(x, np.ndarray):
        return x
    mirror = Mirror((KnownArray(x),), {0: x}, None, set(), {stream_of(x, None, 0)})
    mirror.fetch(everything=True)
    found: np.ndarray[Any, Any] = mirror.arguments[0]
    return found
