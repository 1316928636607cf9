"""The fixed exact form of sums of floating-point numbers: digits, and what fits no digit as counts.

A number is a vector of int64 words. Digit ``i`` has the weight ``2**(32*i - 2176)``, so that `NDIGITS` of them hold the product of any two
float64 numbers. A `DigitWindow` of them holds the sums of one element type. Four words follow: how many addends were +inf, -inf, NaN, and
other than -0.0. An addend adds less than ``2**32`` to a digit, so a digit takes ``2**31 - 1`` of them before it has to be normalised.
Adding words adds numbers, in any order. In normal form all digits are at least 0 and below ``2**32``, and the last one has the sign; counts
are 0 or 1, and infinities are not counted beside a NaN. Equal sums then have equal words.

The form is Kulisch's long accumulator (Computer Arithmetic and Validity, 2008), with the carries saved.
"""

from typing import NamedTuple

import numpy as np

from hpcoll.base.dtypes import is_bfloat16

DIGIT_BITS = 32
LOWEST = -2176  # the weight of digit 0 is 2**LOWEST
NDIGITS = 134
NCOUNTS = 4  # words after the digits: addends that were +inf, -inf, NaN, and other than -0.0
MOST_ADDENDS = 2**31 - 1  # between two normalisations


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


FORMATS = {
    "float64": Format(52, 11),
    "float32": Format(23, 8),
    "float16": Format(10, 5),
    "bfloat16": Format(7, 8),
}


class DigitWindow(NamedTuple):
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


PRODUCTS = DigitWindow(0, NDIGITS)
WINDOWS = {
    "float64": DigitWindow(34, 102),
    "float32": DigitWindow(63, 75),
    "float16": DigitWindow(67, 72),
    "bfloat16": DigitWindow(63, 75),
}


def format_name(dtype: np.dtype) -> str:
    """Return the name in `FORMATS` of a real floating type, or of a complex type's parts."""
    if is_bfloat16(dtype):
        return "bfloat16"
    return {"c8": "float32", "c16": "float64"}.get(
        f"{dtype.kind}{dtype.itemsize}"
    ) or f"float{8 * dtype.itemsize}"


def window(dtype: np.dtype) -> DigitWindow:
    """Return the digits of sums of a floating type; complex: of each part."""
    return WINDOWS[format_name(dtype)]
