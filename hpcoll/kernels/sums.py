"""Exact sums of arrays at memory speed: host kernels that add rows, columns and products of elements to vectors of digits.

`hpcoll.kernels.extraction` has the method, `hpcoll.kernels.digit_form` the form of the result. The sum is exact for all data. Data whose
numbers are at most ``2**78`` times the least of them in size are read once; others take up to ten times as long.
"""

from collections.abc import Callable

import numpy as np

from hpcoll.kernels.digit_form import FORMATS, DigitWindow, format_name
from hpcoll.kernels.machine_code import integer_function
from hpcoll.kernels.sum_room import ROOM

MOST_ELEMENTS = 2**30  # of one call: no digit overflows

_MODULES = "sum_bodies", "extraction", "float_bits", "digit_bodies", "digit_form", "sum_room"


def _function(name: str, form: str, nargs: int) -> Callable[..., None]:
    return integer_function(nargs, f"sum_{name}_{form}", _MODULES, name, form)


def _call(
    name: str,
    x: np.ndarray,
    sizes: tuple[int, ...],
    words: np.ndarray,
    within: DigitWindow,
    *others: np.ndarray,
) -> None:
    assert format_name(x.dtype) in FORMATS
    room = np.empty(ROOM, np.int64)
    pointers = [array.ctypes.data for array in (x, *others)]
    arguments = (*pointers, *sizes, words.ctypes.data, within.first, within.ndigits, room.ctypes.data)
    _function(name, format_name(x.dtype), len(arguments))(*arguments)


def add_rows(words: np.ndarray, x: np.ndarray, within: DigitWindow) -> None:
    """Add the elements of each row to a vector.

    Args:
        words: int64, shape ``(nrows, within.nwords)``, contiguous, in normal form; it is not in normal form afterwards.
        x: Real floating, native byte order, shape ``(nrows, n)``, rows without gaps and not before each other; n at most `MOST_ELEMENTS`.
        within: The digits that the vectors have: room for all of x.
    """
    _call("rows", x, (x.shape[0], x.strides[0] // x.itemsize, x.shape[1]), words, within)


def add_columns(words: np.ndarray, x: np.ndarray, within: DigitWindow) -> None:
    """Add the elements of each column to a vector; as `add_rows`, with a vector for each column of x."""
    _call("columns", x, (x.shape[0], x.strides[0] // x.itemsize, x.shape[1]), words, within)


def add_products(words: np.ndarray, x: np.ndarray, y: np.ndarray, within: DigitWindow) -> None:
    """Add the products of two arrays' elements, those of each row to a vector.

    Args:
        words: As of `add_rows`.
        x: Real floating, native byte order, shape ``(nrows, n)``, contiguous; n at most `MOST_ELEMENTS`.
        y: As x, of the same type and shape.
        within: `hpcoll.kernels.digits.PRODUCTS`, or digits that have room for all products.
    """
    _call("products", x, x.shape, words, within, y)


def exponents(x: np.ndarray) -> tuple[int, int]:
    """Return the exponents of the least and of the greatest finite number of a contiguous array; zeros have none.

    The least is above the greatest where there is no such number.
    """
    bounds = np.empty(2, np.int64)
    _function("exponents", format_name(x.dtype), 3)(x.ctypes.data, x.size, bounds.ctypes.data)
    return int(bounds[0]), int(bounds[1])
