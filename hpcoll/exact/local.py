"""Sums of this process's arrays, added to vectors of digits."""

from itertools import pairwise, product
from math import prod

import numpy as np

from hpcoll.exact.terms import Array, Term, is_readable, pieces
from hpcoll.kernels.digits import DigitWindow
from hpcoll.kernels.sums import MOST_ELEMENTS, add_columns, add_products, add_rows

_SLAB = 1 << 20  # elements that are copied at a time, for kernels that cannot read them where they are


def add_term(words: Array, x: Array, axes: tuple[int, ...], within: DigitWindow) -> None:
    """Add the sums of real floating elements over axes.

    Args:
        words: int64, shape ``(n, within.nwords)``, contiguous, with a vector for each place along the other axes, in C order.
        x: Any strides and byte order.
        axes: Of x, in ascending order.
        within: The digits that the vectors have: room for all of x.
    """
    if len(axes) == x.ndim:
        for (piece,) in pieces(x, most=MOST_ELEMENTS):
            add_rows(words, piece[None], within)
        return
    if not x.size:
        return
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    matrix = _matrix(x, list(axes), kept)
    if matrix is not None:
        _add_matrix(words, matrix, within)
        return
    moved = x.transpose(*axes, *kept)
    step = max(_SLAB * len(moved) // x.size, 1)
    for start in range(0, len(moved), step):
        slab = moved[start : start + step]
        _add_matrix(words, slab.reshape(-1, len(words)), within)


def _matrix(x: Array, axes: list[int], kept: list[int]) -> Array | None:
    """Return a view of x whose first axis stands for some of its axes and whose second for the others; None where memory has no such."""
    shape = []
    strides = []
    for some in (axes, kept):
        some = [axis for axis in some if x.shape[axis] != 1]
        if any(x.strides[outer] != x.strides[other] * x.shape[other] for outer, other in pairwise(some)):
            return None
        shape.append(prod(x.shape[axis] for axis in some))
        strides.append(x.strides[some[-1]] if some else x.itemsize)
    return np.lib.stride_tricks.as_strided(x, shape, strides, writeable=False)


def _add_matrix(words: Array, x: Array, within: DigitWindow) -> None:
    """Add the sum of each column to its vector."""
    x = x[:: -1 if x.strides[0] < 0 else 1]
    step = x.strides[1]
    itemsize = x.itemsize
    in_rows = (
        x.strides[0] == itemsize and step % itemsize == 0 and (step >= len(x) * itemsize or x.shape[1] == 1)
    )
    in_columns = step == itemsize and x.strides[0] % itemsize == 0
    if not is_readable(x) or not (in_rows or in_columns):
        x = np.ascontiguousarray(x, x.dtype.newbyteorder("="))
        in_rows = False
    if in_rows and len(x) > 1:
        add_rows(words, x.T, within)
    else:
        add_columns(words, x if x.strides[1] == itemsize else np.ascontiguousarray(x), within)


def add_term_products(words: Array, x: Term, y: Term, within: DigitWindow) -> None:
    """Add the products of elements of two arrays of one shape to a complex vector: ``words`` has a vector for each part."""
    one = x.array
    other = y.array
    if one.dtype != other.dtype:  # float64 has the numbers of all other types
        one = one.astype(np.float64)
        other = other.astype(np.float64)
    if x.part and y.part:
        one = -one
    for some, more in pieces(one, other, most=MOST_ELEMENTS):
        add_products(words[(x.part + y.part) % 2, None], some[None], more[None], within)


def add_products_along(
    words: Array,
    x: Array,
    y: Array,
    axes: tuple[int, ...],
    within: DigitWindow,
) -> None:
    """Add the sums over axes of the products of two real arrays of one shape and type; the other arguments as of `add_term`."""
    if not x.size:
        return
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    one = x.transpose(*kept, *axes)
    other = y.transpose(*kept, *axes)
    count = prod(x.shape[axis] for axis in axes)
    if not kept or count > _SLAB:
        for i, place in enumerate(product(*(range(x.shape[axis]) for axis in kept))):
            for some, more in pieces(one[place], other[place], most=MOST_ELEMENTS):
                add_products(words[i, None], some[None], more[None], within)
        return
    step = max(_SLAB * len(one) // x.size, 1)
    for start in range(0, len(one), step):
        some = _rows(one[start : start + step], count)
        more = some if y is x else _rows(other[start : start + step], count)
        at = start * (len(words) // len(one))
        add_products(words[at : at + len(some)], some, more, within)


def _rows(x: Array, n: int) -> Array:
    """Return rows of n elements, contiguous and in native byte order."""
    return np.ascontiguousarray(x, x.dtype.newbyteorder("=")).reshape(-1, n)
