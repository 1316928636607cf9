"""Arguments of exact sums: arrays and axes, read and checked."""

import operator
from typing import Any

import numpy as np

from hpcoll.base.errors import ArgumentError, ArgumentTypeError, like
from hpcoll.base.text import quoted
from hpcoll.comm.gpu.mirror import on_host
from hpcoll.exact.terms import Array, is_exact_type
from hpcoll.runtime.gpu.arrays import device_array


def exact_array(x: Any) -> Array:
    """Return an argument as an array on the host, where what is on a GPU is copied to.

    Raises:
        ArgumentError: No array of integers or floating-point numbers up to float64.
    """
    try:
        on_gpu = device_array(x)
        array: Array = np.asarray(x) if on_gpu is None else on_host(on_gpu)
    except Exception as error:
        # whatever an object raises that is asked for its elements: the other ranks have to be told
        raise like(error, f"exact sums need an array that can be read: {error}") from error
    if np.ma.isMaskedArray(x):
        raise ArgumentTypeError("exact sums need an array without a mask, got a masked one")
    if not is_exact_type(array.dtype):
        raise ArgumentTypeError(
            f"exact sums need integers or floating-point numbers up to float64, got {array.dtype}"
        )
    return array


def sorted_axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return axes counted from the first one, in ascending order.

    Raises:
        ArgumentError: Not axes of an array that has ``ndim``.
    """
    try:
        axes = sorted(
            range(ndim)[operator.index(number)]
            for number in ((axis,) if hasattr(axis, "__index__") else axis)
        )
    except (IndexError, TypeError):
        axes = [0, 0]
    if len(set(axes)) < len(axes) or not axes:
        raise ArgumentError(f"axis needs different axes of an array that has {ndim}, got {quoted(axis)}")
    return tuple(axes)
