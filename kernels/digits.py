"""The fixed exact form of sums of floating-point numbers: digits, and what fits no digit as counts.

A number is a vector of int64 words. Digit ``i`` has the weight ``2**(32*i - 2176)``, so that `NDIGITS` of them hold the product of any two
float64 numbers. A `Window` of them holds the sums of one element type. Four words follow: how many addends were +inf, -inf, NaN, and
other than -0.0. An addend adds less than ``2**32`` to a digit, so a digit takes ``2**31 - 1`` of them before it has to be normalised.
Adding words adds numbers, in any order. In normal form all digits are at least 0 and below ``2**32``, and the last one has the sign; counts
are 0 or 1, and infinities are not counted beside a NaN. Equal sums then have equal words.

The form is Kulisch's long accumulator (Computer Arithmetic and Validity, 2008), with the carries saved.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpcoll.base.dtypes import is_bfloat16
from hpcoll.kernels.machine_code import load

DIGIT_BITS = 32
LOWEST = -2176  # the weight of digit 0 is 2**LOWEST
NDIGITS = 134
NCOUNTS = 4  # words after the digits: addends that were +inf, -inf, NaN, and other than -0.0
MOST_ADDENDS = 2**31 - 1  # between two normalisations

_BODIES = Path(__file__).with_name("digit_bodies.py")


class Format(NamedTuple):
    """An IEEE format, in integers."""

    fraction_bits: int
    exponent_bits: int

    @property
    def nbits(self) -> int:
        """The size of an element."""
        return 1 + self.exponent_bits + self.fraction_bits

    @property
    def lowest(self) -> int:
        """The exponent of the least subnormal number."""
        return 2 - (1 << (self.exponent_bits - 1)) - self.fraction_bits


FORMATS = {"float64": Format(52, 11), "float32": Format(23, 8), "float16": Format(10, 5), "bfloat16": Format(7, 8)}


class Window(NamedTuple):
    """The digits that a vector has."""

    first: int
    end: int

    @property
    def ndigits(self) -> int:
        """The number of digits."""
        return self.end - self.first

    @property
    def nwords(self) -> int:
        """The number of words, those of counts included."""
        return self.end - self.first + NCOUNTS


PRODUCTS = Window(0, NDIGITS)
WINDOWS = {"float64": Window(34, 102), "float32": Window(63, 75), "float16": Window(67, 72), "bfloat16": Window(63, 75)}


def format_name(dtype: np.dtype) -> str:
    """Return the name in `FORMATS` of a real floating type, or of a complex type's parts."""
    if is_bfloat16(dtype):
        return "bfloat16"
    return {"c8": "float32", "c16": "float64"}.get(f"{dtype.kind}{dtype.itemsize}") or f"float{8 * dtype.itemsize}"


def window(dtype: np.dtype) -> Window:
    """Return the digits of sums of a floating type; complex: of each part."""
    return WINDOWS[format_name(dtype)]


@cache
def address(name: str, form: str) -> int:
    """Return the address of a compiled function of `hpcoll.kernels.digit_bodies`, which has their signatures.

    Args:
        name: ``add``, ``normalise``, ``divide`` or ``round``.
        form: The name in `FORMATS` of elements; the empty string for functions of words alone.
    """

    def make(symbol: str) -> bytes:
        from hpcoll.kernels.digit_bodies import kernel_file

        return kernel_file(name, form, symbol)

    return load(f"digits_{name}_{form}", [_BODIES, Path(__file__)], make)


@cache
def _function(name: str, form: str, nargs: int) -> Callable[..., None]:
    """Return a compiled function for Python; it takes integers."""
    made: Callable[..., None] = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * nargs)(address(name, form))
    return made


def add(words: np.ndarray, x: np.ndarray, within: Window) -> None:
    """Add an array's elements to as many vectors, one to each.

    Args:
        words: int64, shape ``(n, within.nwords)``, contiguous.
        x: n real floating elements in native byte order, contiguous.
        within: The digits that the vectors have: room for all of x.
    """
    _function("add", format_name(x.dtype), 5)(x.ctypes.data, words.ctypes.data, x.size, within.first, within.ndigits)


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
