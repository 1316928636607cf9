"""The digits that the vectors of an array of sums have: as many as its numbers need, and more when others come."""

import numpy as np

from hpcoll.exact.terms import Array, pieces
from hpcoll.kernels.digits import DIGIT_BITS, FORMATS, LOWEST, NCOUNTS, DigitWindow, format_name, normalise
from hpcoll.kernels.sums import MOST_ELEMENTS, exponents

LEAST_DIGITS = 6  # room for two levels of sums and their carries
UNITS = DigitWindow(66, 66 + LEAST_DIGITS)  # has digit 68, whose weight is 1


def needed(x: Array, power: int = 1) -> DigitWindow:
    """Return the digits that sums of an array's finite numbers, or of their squares, need; and some where all are zero.

    Args:
        x: Real floating.
        power: 1, or 2 for squares and errors of their rounding.
    """
    windows = [exponents(piece) for (piece,) in pieces(x, most=MOST_ELEMENTS)]
    least = min((bounds[0] for bounds in windows), default=1)
    greatest = max((bounds[1] for bounds in windows), default=0)
    if least > greatest:
        return UNITS
    form = FORMATS[format_name(x.dtype)]
    low = power * max(least - form.fraction_bits, form.lowest)
    high = power * (greatest + 1) - 1
    first = (low - LOWEST) // DIGIT_BITS
    return DigitWindow(first, max((high - LOWEST) // DIGIT_BITS + 3, first + LEAST_DIGITS))


def union(one: DigitWindow, other: DigitWindow) -> DigitWindow:
    """Return the digits of both."""
    return DigitWindow(min(one.first, other.first), max(one.end, other.end))


def widened(words: Array, old: DigitWindow, new: DigitWindow) -> Array:
    """Return vectors with the digits of a window that holds theirs; vectors in normal form stay so."""
    if new == old:
        return words
    wide = np.zeros((*words.shape[:-1], new.nwords), np.int64)
    start = old.first - new.first
    wide[..., start : start + old.ndigits] = words[..., :-NCOUNTS]
    wide[..., -NCOUNTS:] = words[..., -NCOUNTS:]
    normalise(wide)
    return wide


def least(words: Array, old: DigitWindow) -> tuple[Array, DigitWindow]:
    """Return vectors in normal form with the fewest digits that hold them all: equal sums have equal windows, and equal words."""
    wide = widened(words, old, DigitWindow(old.first, old.end + 2))
    rows = wide.reshape(-1, wide.shape[-1])
    digits, signs = rows[:, : -NCOUNTS - 1], rows[:, -NCOUNTS - 1 :][:, :1]  # 0 or -1
    used = np.flatnonzero((digits != (signs & (1 << DIGIT_BITS) - 1)).any(0))
    places = np.flatnonzero(digits.any(0))
    if places.size:
        low = int(places[0])
        end = int(used[-1]) + 1 if used.size else 0
        window = DigitWindow(old.first + low, old.first + end + 1)
    else:
        low = 0
        end = 0
        window = DigitWindow(0, 1)
    kept = np.concatenate([digits[:, low:end], signs, rows[:, -NCOUNTS:]], axis=1)
    return kept.reshape(*words.shape[:-1], window.nwords), window
