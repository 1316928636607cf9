"""Correctly rounded sums of up to 8 numbers, as scalar functions for GPU kernels.

TwoSum (Knuth; Dekker 1971) gives a rounded sum and its error, both as numbers. Adding a number to an expansion, which is a sum of numbers
that do not overlap, from its smallest one up, gives an expansion (Shewchuk 1997, grow-expansion). So 8 sources become one of 8 numbers
in 28 TwoSums, all in registers. Its numbers are added from the largest down until something is lost: that, and the sign of what follows,
say how to round (Hettinger's ``math.fsum``).

float32 and the half types are added in float64, where nothing overflows; mostly the sum of 8 is exact there. float64 that may overflow is
added in two parts, the larger one divided by 256. No product is fused with a sum. Every NaN is the one NaN of NumPy.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types

from hpcoll.kernels import MAX_SOURCES

if numba.config.ENABLE_CUDASIM:
    from hpcoll.kernels import simulated as vectors
else:
    from hpcoll.kernels import vectors  # type: ignore[no-redef]

double_bits, double_of_bits = vectors.double_bits, vectors.double_of_bits

NAN = np.nan
LARGE = 2.0**1020  # 8 numbers below it have a sum
SCALE, UNSCALE = 2.0**-8, 2.0**8
GRID = 2.0**-1052  # what is divided by 256 is a multiple of it, and stays exact
FINE = 2.0**-1000  # numbers from here on are multiples of it
ROUNDER = 1.5 * FINE  # whose last bit is GRID
TRACE = 2.0**-1070  # for what is lost below GRID / 256
MIDDLE = 2.0**900  # far from overflow, and far above what is lost
CUT = 1 << 29  # in the bits of a float64, the last one of a float32

_F8, _I8 = types.float64, types.int64
_SOURCES = [_F8] * MAX_SOURCES
_EXPANSION = types.UniTuple(_F8, MAX_SOURCES)


def _two_sum(a, b):  # type: ignore[no-untyped-def]
    """Return RN(a + b), and what is lost."""
    s = a + b
    back = s - a
    return s, (a - (s - back)) + (b - back)


two_sum = vectors.calls(_two_sum, types.UniTuple(_F8, 2)(_F8, _F8))


def _expansion(n, x0, x1, x2, x3, x4, x5, x6, x7):  # type: ignore[no-untyped-def]
    """Return numbers that do not overlap, smallest first, whose sum is that of the first n; zeros among them."""
    c1, c0 = two_sum(x0, x1)
    c2 = c3 = c4 = c5 = c6 = c7 = 0.0
    if n > 2:
        q, c0 = two_sum(x2, c0)
        c2, c1 = two_sum(q, c1)
    if n > 3:
        q, c0 = two_sum(x3, c0)
        q, c1 = two_sum(q, c1)
        c3, c2 = two_sum(q, c2)
    if n > 4:
        q, c0 = two_sum(x4, c0)
        q, c1 = two_sum(q, c1)
        q, c2 = two_sum(q, c2)
        c4, c3 = two_sum(q, c3)
    if n > 5:
        q, c0 = two_sum(x5, c0)
        q, c1 = two_sum(q, c1)
        q, c2 = two_sum(q, c2)
        q, c3 = two_sum(q, c3)
        c5, c4 = two_sum(q, c4)
    if n > 6:
        q, c0 = two_sum(x6, c0)
        q, c1 = two_sum(q, c1)
        q, c2 = two_sum(q, c2)
        q, c3 = two_sum(q, c3)
        q, c4 = two_sum(q, c4)
        c6, c5 = two_sum(q, c5)
    if n > 7:
        q, c0 = two_sum(x7, c0)
        q, c1 = two_sum(q, c1)
        q, c2 = two_sum(q, c2)
        q, c3 = two_sum(q, c3)
        q, c4 = two_sum(q, c4)
        q, c5 = two_sum(q, c5)
        c7, c6 = two_sum(q, c6)
    return c0, c1, c2, c3, c4, c5, c6, c7


expansion = vectors.calls(_expansion, _EXPANSION(_I8, *_SOURCES))


def _lengthen(x, c0, c1, c2, c3, c4, c5, c6, c7):  # type: ignore[no-untyped-def]
    """Return an expansion with one number more."""
    x, c0 = two_sum(x, c0)
    x, c1 = two_sum(x, c1)
    x, c2 = two_sum(x, c2)
    x, c3 = two_sum(x, c3)
    x, c4 = two_sum(x, c4)
    x, c5 = two_sum(x, c5)
    x, c6 = two_sum(x, c6)
    x, c7 = two_sum(x, c7)
    return c0, c1, c2, c3, c4, c5, c6, c7, x


lengthen = vectors.calls(_lengthen, types.UniTuple(_F8, MAX_SOURCES + 1)(_F8, *_EXPANSION))


def _absorb(high, low, rest, c):  # type: ignore[no-untyped-def]
    """Add the next smaller number of an expansion; behind the first loss, keep only one that shows the sign of what follows."""
    if low == 0.0:
        s = high + c
        return s, c - (s - high), rest
    return high, low, c if rest == 0.0 else rest


absorb = vectors.calls(_absorb, types.UniTuple(_F8, 3)(*[_F8] * 4))


def _sum_up(high, c7, c6, c5, c4, c3, c2, c1, c0):  # type: ignore[no-untyped-def]
    """Return the nearest number to an expansion where none is as near, what that loses, and a number with the sign of the rest."""
    high, low, rest = absorb(high, 0.0, 0.0, c7)
    high, low, rest = absorb(high, low, rest, c6)
    high, low, rest = absorb(high, low, rest, c5)
    high, low, rest = absorb(high, low, rest, c4)
    high, low, rest = absorb(high, low, rest, c3)
    high, low, rest = absorb(high, low, rest, c2)
    high, low, rest = absorb(high, low, rest, c1)
    return absorb(high, low, rest, c0)


sum_up = vectors.calls(_sum_up, types.UniTuple(_F8, 3)(*[_F8] * 9))


def _nearest(high, low, rest):  # type: ignore[no-untyped-def]
    """Return the number nearest to what `sum_up` gives, ties to even: where two are as near, the rest decides."""
    twice = low + low
    beside = high + twice
    return beside if rest != 0.0 and (low > 0.0) == (rest > 0.0) and beside - high == twice else high


nearest = vectors.calls(_nearest, _F8(_F8, _F8, _F8))


def _to_odd(high, low):  # type: ignore[no-untyped-def]
    """Return the one of two neighbours whose last bit is set; the sum of ``high`` and ``low`` is between them, or is ``high``."""
    bits = double_bits(high)
    if low == 0.0 or bits & 1:
        return high
    return double_of_bits(bits + 1 if (low > 0.0) == (high > 0.0) else bits - 1)


to_odd = vectors.calls(_to_odd, _F8(_F8, _F8))


def _larger(most, x):  # type: ignore[no-untyped-def]
    return abs(x) if abs(x) > most else most


larger = vectors.calls(_larger, _F8(_F8, _F8))


def _special(x):  # type: ignore[no-untyped-def]
    """Return an infinity or a NaN, else 0."""
    return 0.0 if x - x == 0.0 else x


special = vectors.calls(_special, _F8(_F8))


def _on_grid(x):  # type: ignore[no-untyped-def]
    """Return the multiple of `GRID` nearest to a number."""
    return x if abs(x) >= FINE else (x + ROUNDER) - ROUNDER


on_grid = vectors.calls(_on_grid, _F8(_F8))


def _scaled(x):  # type: ignore[no-untyped-def]
    """Return a multiple of `GRID`, divided by 256."""
    return on_grid(x) * SCALE


scaled = vectors.calls(_scaled, _F8(_F8))


def _off_grid(x):  # type: ignore[no-untyped-def]
    return x - on_grid(x)


off_grid = vectors.calls(_off_grid, _F8(_F8))


def _of_large(n, x0, x1, x2, x3, x4, x5, x6, x7):  # type: ignore[no-untyped-def]
    """Return the rounded sum of n float64, one of which is large, infinite or not a number; the others are -0.0.

    What they have off the grid is at most 2**-1050 in all, and the sum of that is exact.
    """
    found = special(x0) + special(x1) + special(x2) + special(x3) + special(x4) + special(x5) + special(x6) + special(x7)
    if found != 0.0:
        return found if found == found else NAN
    low = off_grid(x0) + off_grid(x1) + off_grid(x2) + off_grid(x3) + off_grid(x4) + off_grid(x5) + off_grid(x6) + off_grid(x7)
    c0, c1, c2, c3, c4, c5, c6, c7 = expansion(
        n, scaled(x0), scaled(x1), scaled(x2), scaled(x3), scaled(x4), scaled(x5), scaled(x6), scaled(x7)
    )
    total, _, _ = sum_up(c7, c6, c5, c4, c3, c2, c1, c0, 0.0)
    unit = UNSCALE if abs(total) < MIDDLE else 1.0  # the large ones may be gone
    if unit == 1.0:
        lost = off_grid(low)  # only its sign counts
        low = scaled(low) + (TRACE if lost > 0.0 else -TRACE if lost < 0.0 else 0.0)
    c0, c1, c2, c3, c4, c5, c6, c7, c8 = lengthen(
        low, c0 * unit, c1 * unit, c2 * unit, c3 * unit,
        c4 * unit, c5 * unit, c6 * unit, c7 * unit,
    )
    high, low, rest = sum_up(c8, c7, c6, c5, c4, c3, c2, c1, c0)
    return nearest(high, low, rest) * (UNSCALE / unit)


of_large = vectors.calls(_of_large, _F8(_I8, *_SOURCES))


def _nearest64(n, x0, x1, x2, x3, x4, x5, x6, x7):  # type: ignore[no-untyped-def]
    """Return the rounded sum of n float64; the others repeat one of them."""
    if n == 2:
        total = x0 + x1
        return total if total == total else NAN
    most = larger(larger(larger(larger(larger(larger(larger(abs(x0), x1), x2), x3), x4), x5), x6), x7)
    if not most < LARGE:
        x3, x4, x5 = x3 if n > 3 else -0.0, x4 if n > 4 else -0.0, x5 if n > 5 else -0.0
        return of_large(n, x0, x1, x2, x3, x4, x5, x6 if n > 6 else -0.0, x7 if n > 7 else -0.0)
    if most == 0.0:
        return x0 + x1 + x2 + x3 + x4 + x5 + x6 + x7
    c0, c1, c2, c3, c4, c5, c6, c7 = expansion(n, x0, x1, x2, x3, x4, x5, x6, x7)
    high, low, rest = sum_up(c7, c6, c5, c4, c3, c2, c1, c0, 0.0)
    total = nearest(high, low, rest)
    if total == 0.0:
        return 0.0
    return total if total == total else NAN


def _odd64(n, x0, x1, x2, x3, x4, x5, x6, x7):  # type: ignore[no-untyped-def]
    """Return the sum of n numbers with the exponents of float32, rounded to odd; the others repeat one of them."""
    s, lost = two_sum(x0, x1)
    exact = lost == 0.0
    if n > 2:
        s, lost = two_sum(s, x2)
        exact &= lost == 0.0
    if n > 3:
        s, lost = two_sum(s, x3)
        exact &= lost == 0.0
    if n > 4:
        s, lost = two_sum(s, x4)
        exact &= lost == 0.0
    if n > 5:
        s, lost = two_sum(s, x5)
        exact &= lost == 0.0
    if n > 6:
        s, lost = two_sum(s, x6)
        exact &= lost == 0.0
    if n > 7:
        s, lost = two_sum(s, x7)
        exact &= lost == 0.0
    if exact or s - s != 0.0:
        return s
    c0, c1, c2, c3, c4, c5, c6, c7 = expansion(n, x0, x1, x2, x3, x4, x5, x6, x7)
    high, low, _ = sum_up(c7, c6, c5, c4, c3, c2, c1, c0, 0.0)
    return to_odd(high, low)


odd64 = vectors.calls(_odd64, _F8(_I8, *_SOURCES))


def _nearest32(n, x0, x1, x2, x3, x4, x5, x6, x7):  # type: ignore[no-untyped-def]
    """Return the rounded sum of n float32, which are given as float64; the others repeat one of them."""
    total = odd64(n, x0, x1, x2, x3, x4, x5, x6, x7)
    return np.float32(total) if total == total else np.float32(NAN)


def _odd32(n, x0, x1, x2, x3, x4, x5, x6, x7):  # type: ignore[no-untyped-def]
    """Return the sum of n numbers of a half type, rounded to an odd float32: rounding that once more gives the nearest of the half type.

    Below the normal numbers of float32 such sums are exact, since bfloat16 has no bits that float32 has not.
    """
    bits = double_bits(odd64(n, x0, x1, x2, x3, x4, x5, x6, x7))
    return np.float32(double_of_bits(bits & -CUT | (CUT if bits & (CUT - 1) else 0)))


# Functions (n, x0, ..., x7) of float64. That of the half types gives a float32, which is to be rounded once more.
ROUNDED_SUMS: dict[str, Callable[..., Any]] = {"float64": _nearest64, "float32": _nearest32, "float16": _odd32, "bfloat16": _odd32}
