"""Vectors of digits (`hpcoll.kernels.digit_form`) for Python: compiled functions that add to them, normalise, divide and round them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcoll.kernels.digit_form import (
    DIGIT_BITS,
    FORMATS,
    LOWEST,
    MOST_ADDENDS,
    NCOUNTS,
    NDIGITS,
    PRODUCTS,
    WINDOWS,
    DigitWindow,
    Format,
    format_name,
    window,
)
from hpcoll.kernels.machine_code import integer_function

__all__ = [
    "DIGIT_BITS",
    "FORMATS",
    "LOWEST",
    "MOST_ADDENDS",
    "NCOUNTS",
    "NDIGITS",
    "PRODUCTS",
    "WINDOWS",
    "DigitWindow",
    "Format",
    "add",
    "as_integer",
    "divide",
    "format_name",
    "normalise",
    "rounded",
    "window",
]


def _function(name: str, form: str, nargs: int) -> Callable[..., None]:
    """Return a compiled function of `hpcoll.kernels.digit_bodies`, which has their signatures.

    Args:
        name: ``add``, ``normalise``, ``divide`` or ``round``.
        form: The name in `FORMATS` of elements; the empty string for functions of words alone.
        nargs: Of its arguments.
    """
    return integer_function(nargs, f"digits_{name}_{form}", ("digit_bodies", "digit_form"), name, form)


def add(words: np.ndarray, x: np.ndarray, within: DigitWindow) -> None:
    """Add an array's elements to as many vectors, one to each.

    Args:
        words: int64, shape ``(n, within.nwords)``, contiguous.
        x: n real floating elements in native byte order, contiguous.
        within: The digits that the vectors have: room for all of x.
    """
    _function("add", format_name(x.dtype), 5)(
        x.ctypes.data, words.ctypes.data, x.size, within.first, within.ndigits
    )


def normalise(words: np.ndarray) -> None:
    """Bring vectors, the rows of a contiguous int64 array, to normal form."""
    _function("normalise", "", 3)(words.ctypes.data, _rows(words), words.shape[-1] - NCOUNTS)


def divide(words: np.ndarray, divisor: int) -> None:
    """Divide vectors in normal form by an integer above 0 and below ``2**31``.

    The quotient is rounded down to the least digit, whose last bit is set where there is a remainder. So it rounds correctly to any type
    whose least number is at least four times that digit's weight.
    """
    _function("divide", "", 4)(words.ctypes.data, _rows(words), words.shape[-1] - NCOUNTS, divisor)


def rounded(words: np.ndarray, first: int, dtype: np.dtype, *, to_odd: bool = False) -> np.ndarray:
    """Return the numbers of vectors in normal form, rounded to nearest, ties to even.

    Args:
        words: int64, shape ``(n, nwords)``, contiguous.
        first: Number of the vectors' first digit.
        dtype: A real floating type.
        to_odd: Round towards zero instead, and set the last bit where that changes the number. A second rounding, to a type that is at
            least two bits shorter, is then as one.

    Returns:
        n elements. Zero is -0.0 where no addend was other than -0.0. Infinities of both signs, or a NaN, make NaN.
    """
    out = np.empty(_rows(words), dtype)
    _function("round", format_name(dtype), 6)(
        words.ctypes.data, out.ctypes.data, out.size, first, words.shape[-1] - NCOUNTS, to_odd
    )
    return out


def as_integer(words: Any) -> int:
    """Return the number of a vector's digits, in units of its first digit's weight."""
    return sum(int(digit) << DIGIT_BITS * i for i, digit in enumerate(words[:-NCOUNTS]))


def _rows(words: np.ndarray) -> int:
    return words.size // words.shape[-1]
