"""Results of exact sums, each rounded once: means and square roots."""

from math import isqrt
from typing import Any

import numpy as np

from hpcoll.kernels.digits import DIGIT_BITS, LOWEST, NCOUNTS, WINDOWS, DigitWindow, as_integer, divide, format_name, rounded

_MOST_DIVISOR = 2**31  # of the compiled division
_SLAB = 1 << 12  # vectors that are widened at a time
_ROOTS = WINDOWS["float64"]  # its first digit is the root of the first digit of products


def _from_integers(numbers: list[int], words: np.ndarray[Any, Any], width: int) -> np.ndarray[Any, Any]:
    """Return vectors in normal form of integers, in units of their first digit, with the counts of others."""
    made = np.zeros((len(numbers), width + NCOUNTS), np.int64)
    for vector, number in zip(made, numbers, strict=True):
        size = DIGIT_BITS // 8 * (width - 1)
        vector[: width - 1] = np.frombuffer((number % (1 << 8 * size)).to_bytes(size, "little"), "<u4")
        vector[width - 1] = number >> 8 * size
    made[:, -NCOUNTS:] = words[:, -NCOUNTS:]
    return made


def means(words: np.ndarray[Any, Any], within: DigitWindow, count: int, dtype: np.dtype) -> np.ndarray[Any, Any]:
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
        wide[:, low : low + within.ndigits], wide[:, -NCOUNTS:] = part[:, :-NCOUNTS], part[:, -NCOUNTS:]
        _carry_top(wide, low + within.ndigits - 1)
        if count < _MOST_DIVISOR:
            divide(wide, count)
        else:
            pairs = [divmod(as_integer(vector), count) for vector in wide]
            wide = _from_integers([quotient | (rest != 0) for quotient, rest in pairs], wide, whole.ndigits)
        results[start : start + _SLAB] = rounded(wide, whole.first, dtype)
    return results


def _carry_top(words: np.ndarray[Any, Any], top: int) -> None:
    """Spread the sign of the last digit that was in use over those above it."""
    for i in range(top, words.shape[-1] - NCOUNTS - 1):
        words[:, i + 1] += words[:, i] >> DIGIT_BITS
        words[:, i] &= (1 << DIGIT_BITS) - 1


def roots(words: np.ndarray[Any, Any], within: DigitWindow, dtype: np.dtype) -> np.ndarray[Any, Any]:
    """Return the square roots of the numbers of vectors in normal form, none negative, correctly rounded."""
    numbers = [as_integer(vector) << DIGIT_BITS * within.first for vector in words]
    found = [isqrt(number) for number in numbers]
    exact = [root | (root * root != number) for root, number in zip(found, numbers, strict=True)]
    return rounded(_from_integers(exact, words, _ROOTS.ndigits), _ROOTS.first, dtype)


assert 2 * (DIGIT_BITS * _ROOTS.first + LOWEST) == LOWEST
