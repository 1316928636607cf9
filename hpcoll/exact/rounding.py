"""Results of exact sums, each rounded once: means and square roots."""

from math import isqrt

import numpy as np

from hpcoll.base.dtypes import is_bfloat16
from hpcoll.exact.terms import Array
from hpcoll.kernels.digits import (
    DIGIT_BITS,
    LOWEST,
    NCOUNTS,
    WINDOWS,
    DigitWindow,
    add,
    as_integer,
    divide,
    format_name,
    normalise,
    rounded,
)

_MOST_DIVISOR = 2**31  # of the compiled division
_SLAB = 1 << 12  # vectors that are widened at a time
_DOUBLE = np.dtype(np.float64)
_SPLITTER = 2.0**27 + 1  # of a float64 into two numbers of 26 bits (Veltkamp 1968)
_LEAST = 2.0**-800  # no float64 here under- or overflows between it and its inverse
_ROOTS = WINDOWS["float64"]  # its first digit is the root of the first digit of products


def _from_integers(numbers: list[int], words: Array, width: int) -> Array:
    """Return vectors in normal form of integers, in units of their first digit, with the counts of others."""
    made = np.zeros((len(numbers), width + NCOUNTS), np.int64)
    for vector, number in zip(made, numbers):
        size = DIGIT_BITS // 8 * (width - 1)
        vector[: width - 1] = np.frombuffer((number % (1 << 8 * size)).to_bytes(size, "little"), "<u4")
        vector[width - 1] = number >> 8 * size
    made[:, -NCOUNTS:] = words[:, -NCOUNTS:]
    return made


def means(words: Array, within: DigitWindow, count: int, dtype: np.dtype) -> Array:
    """Return the numbers of vectors in normal form divided by a count, correctly rounded; NaN where the count is 0."""
    if count == 0:
        return np.full(len(words), np.nan, dtype)
    form = WINDOWS[format_name(dtype)]
    whole = DigitWindow(min(within.first, form.first), max(within.end, form.end))
    results = np.empty(len(words), dtype)
    for start in range(0, len(words), _SLAB):
        part = words[start : start + _SLAB]
        wide = np.zeros((len(part), whole.nwords), np.int64)
        low = within.first - whole.first
        wide[:, low : low + within.ndigits] = part[:, :-NCOUNTS]
        wide[:, -NCOUNTS:] = part[:, -NCOUNTS:]
        _carry_top(wide, low + within.ndigits - 1)
        if count < _MOST_DIVISOR:
            divide(wide, count)
        else:
            pairs = [divmod(as_integer(vector), count) for vector in wide]
            wide = _from_integers([quotient | (rest != 0) for quotient, rest in pairs], wide, whole.ndigits)
        results[start : start + _SLAB] = rounded(wide, whole.first, dtype)
    return results


def _carry_top(words: Array, top: int) -> None:
    """Spread the sign of the last digit that was in use over those above it."""
    for i in range(top, words.shape[-1] - NCOUNTS - 1):
        words[:, i + 1] += words[:, i] >> DIGIT_BITS
        words[:, i] &= (1 << DIGIT_BITS) - 1


def roots(words: Array, within: DigitWindow, dtype: np.dtype) -> Array:
    """Return the square roots of the numbers of vectors in normal form, none negative, correctly rounded."""
    results = np.empty(len(words), dtype)
    for start in range(0, len(words), _SLAB):
        part = words[start : start + _SLAB]
        slab = results[start : start + _SLAB]
        slab[:], sure = _close_roots(part, within, dtype)
        if not sure.all():
            slab[~sure] = _integer_roots(part[~sure], within, dtype)
    return results


def _close_roots(words: Array, within: DigitWindow, dtype: np.dtype) -> tuple[Array, Array]:
    """Return roots, and which are certain: both ends of an interval that holds the root are rounded to one number (Ziv 1991).

    A number is ``near + left``, two float64 numbers, but for ``2**-106`` of itself. Its root is ``root + t`` with ``root = sqrt(near)``,
    ``t = (near - root**2 + left) / (2 * root)``, but for less than ``2**-103`` of itself. The remainder ``near - root**2`` is exact.
    """
    shift = (within.first + within.end) // 2 + LOWEST // DIGIT_BITS  # digits, so that the window is about 1
    shifted = DigitWindow(within.first - shift - 2, within.end - shift + 1)
    wide = np.zeros((len(words), shifted.nwords), np.int64)
    wide[:, 2 : 2 + within.ndigits] = words[:, :-NCOUNTS]
    wide[:, -NCOUNTS:] = words[:, -NCOUNTS:]
    normalise(wide)
    with np.errstate(all="ignore"):
        near = rounded(wide, shifted.first, _DOUBLE)
        usable = (near > _LEAST) & (near < 1 / _LEAST)
        near[~usable] = 1.0
        add(wide, -near, shifted)
        normalise(wide)
        root = np.sqrt(near)
        high = root * _SPLITTER
        high -= high - root
        low = root - high
        square = root * root
        error = low * low - (square - high * high - 2 * (high * low))  # of the square (Dekker 1971)
        t = (near - square - error + rounded(wide, shifted.first, _DOUBLE)) / (2 * root)
        least, most = (
            np.ldexp(root + (t + sign * root * 2.0**-100), DIGIT_BITS // 2 * shift) for sign in (-1, 1)
        )
        usable &= least > np.finfo(_DOUBLE).smallest_normal
        if is_bfloat16(dtype):
            least = least.astype(np.float32)
            most = most.astype(np.float32)
        if dtype != _DOUBLE:  # a number in between might be rounded otherwise than either rounded end
            least = np.nextafter(least, -np.inf)
            most = np.nextafter(most, np.inf)
        close = least.astype(dtype)
        return close, usable & (close == most.astype(dtype))


def _integer_roots(words: Array, within: DigitWindow, dtype: np.dtype) -> Array:
    numbers = [as_integer(vector) << DIGIT_BITS * within.first for vector in words]
    whole = [isqrt(number) for number in numbers]
    exact = [root | (root * root != number) for root, number in zip(whole, numbers)]
    return rounded(_from_integers(exact, words, _ROOTS.ndigits), _ROOTS.first, dtype)


assert 2 * (DIGIT_BITS * _ROOTS.first + LOWEST) == LOWEST
