"""An array as terms: arrays of floating-point numbers whose sum it is, and the contiguous pieces that kernels read."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from hpcoll.base.dtypes import is_bfloat16, is_extended, kind

_PIECE = 1 << 16  # elements of a copy, for arrays that kernels cannot read where they are
_LOW = (1 << 32) - 1

Array = np.ndarray[Any, Any]


class Term(NamedTuple):
    """Numbers to add to one part of a sum."""

    part: int  # 0: real, 1: imaginary
    array: Array  # real floating, any strides and byte order


def is_exact_type(dtype: np.dtype) -> bool:
    """Say whether numbers of a type can be added exactly: integers, and floating types, real and complex, up to float64."""
    return kind(dtype) != "" and not is_extended(dtype) and dtype.itemsize <= (16 if dtype.kind == "c" else 8)


def terms(x: Array) -> list[Term]:
    """Return arrays of floating-point numbers whose sum is x."""
    if x.dtype.kind == "c":
        return [Term(0, x.real), Term(1, x.imag)]
    if x.dtype.kind == "b" or (x.dtype.kind in "iu" and x.dtype.itemsize <= 4):
        return [Term(0, x.astype(np.float64))]
    if x.dtype.kind in "iu":  # more digits than a float64 has
        return [
            Term(0, (x & ~x.dtype.type(_LOW)).astype(np.float64)),
            Term(0, (x & x.dtype.type(_LOW)).astype(np.float64)),
        ]
    return [Term(0, x)]


def in_order(x: Array) -> Array:
    """Return a view of the same elements in the order of memory."""
    x = x[tuple(slice(None, None, -1 if step < 0 else 1) for step in x.strides)]
    return x.transpose(sorted(range(x.ndim), key=lambda axis: -x.strides[axis]))


def is_readable(x: Array) -> bool:
    """Say whether kernels can read elements where they are."""
    return x.dtype.isnative and x.flags.aligned


def pieces(*arrays: Array, most: int) -> Iterator[tuple[Array, ...]]:
    """Yield the elements of arrays of one shape and type in pieces, contiguous and in native byte order; in any order, but in step."""
    views = [in_order(arrays[0])] if len(arrays) == 1 else list(arrays)
    if all(is_readable(view) and view.flags.c_contiguous for view in views):
        flat = [view.reshape(-1) for view in views]
        for start in range(0, flat[0].size, most):
            yield tuple(array[start : start + most] for array in flat)
        return
    dtype = views[0].dtype.newbyteorder("=")
    views = [_bits(view) for view in views]
    flags = ["readonly", "contig", "aligned", "nbo"]
    types = [view.dtype.newbyteorder("=") for view in views]
    nditer: Any = np.nditer
    how = ["external_loop", "buffered", "zerosize_ok"]
    with nditer(views, how, [flags] * len(views), types, order="K", buffersize=_PIECE) as iterator:
        for buffers in iterator:
            yield tuple(
                array.view(dtype) for array in (buffers if isinstance(buffers, tuple) else (buffers,))
            )


def _bits(x: Array) -> Array:
    """Return bfloat16, which NumPy's iterators do not know well, as its bits."""
    return x.view(np.uint16) if is_bfloat16(x.dtype) else x
