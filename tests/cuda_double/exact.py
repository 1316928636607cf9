"""Correctly rounded sums by ``math.fsum``, which has no code in common with the kernels."""

from collections.abc import Sequence
from fractions import Fraction
from math import copysign, fsum, inf, nan

import numpy as np

_CUT = 1 << 29  # in the bits of a float64, the last one of a float32


def exact_sum(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The sum of arrays of one floating type, rounded once to that type; complex numbers by their parts."""
    dtype = arrays[0].dtype
    if dtype.kind == "c":
        return exact_sum([one.view(f"f{dtype.itemsize // 2}") for one in arrays]).view(dtype)
    columns = list(zip(*(one.astype(np.float64).tolist() for one in arrays), strict=True))
    total = np.array([_rounded(column) for column in columns], np.float64)
    if dtype == np.float64:
        return total
    lost = np.array(
        [
            fsum((*column, -one)) if one - one == 0 else 0.0
            for column, one in zip(columns, total.tolist(), strict=True)
        ]
    )
    bits = total.view(np.int64)
    even = (lost != 0) & (bits & 1 == 0)
    bits += np.where(
        even, np.where((lost > 0) == (total > 0), 1, -1), 0
    )  # to odd, so that the next rounding is as one
    if dtype.itemsize == 2:
        bits[...] = bits & -_CUT | np.where(bits & (_CUT - 1), _CUT, 0)  # again, by way of float32
        total = total.astype(np.float32)
    return total.astype(dtype)


def _rounded(values: Sequence[float]) -> float:
    try:
        total = fsum(values)
    except ValueError:  # infinities of both signs
        return nan
    except OverflowError:  # maybe on the way only
        total = sum(one for one in values if one - one != 0) or _by_fractions(values)
    if total != total:
        return nan
    return total or (-0.0 if all(not one and copysign(1, one) < 0 for one in values) else 0.0)


def _by_fractions(values: Sequence[float]) -> float:
    total = sum(map(Fraction, values), Fraction(0))
    try:
        return total.numerator / total.denominator
    except OverflowError:
        return inf if total > 0 else -inf
