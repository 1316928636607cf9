"""Exact sums by Python's fractions, rounded by integers: what kernels are compared with."""

import math
from collections.abc import Iterable
from fractions import Fraction

import ml_dtypes
import numpy as np

FORMATS = {
    "float64": (53, -1074, 1024),
    "float32": (24, -149, 128),
    "float16": (11, -24, 16),
    "bfloat16": (8, -133, 128),
}
"""By element type: bits of the mantissa, exponent of the least bit, exponent of the first power of two that is too large."""


def nearest(value: Fraction, name: str) -> float:
    """Return the number of a type that is nearest to a fraction, ties to even; infinity where that is too large.

    >>> nearest(Fraction(1, 3), "float64") == 1 / 3, nearest(Fraction(65519), "float16"), nearest(Fraction(65520), "float16")
    (True, 65504.0, inf)
    """
    precision, least, beyond = FORMATS[name]
    size, sign = abs(value), -1 if value < 0 else 1
    exponent = size.numerator.bit_length() - size.denominator.bit_length() - precision
    # now 2**(precision - 1) <= size / 2**exponent < 2**precision
    exponent += size >= Fraction(2) ** (exponent + precision)
    exponent = max(exponent, least)
    kept = round(size / Fraction(2) ** exponent)  # Python rounds ties to even
    if kept and kept * Fraction(2) ** exponent >= Fraction(2) ** beyond:
        return sign * math.inf
    return sign * math.ldexp(kept, exponent)


def exact_sum(values: Iterable[float], name: str) -> float:
    """Return the sum of numbers of a type, which are given as Python's floats, as `hpcoll.EXACT_SUM` promises it."""
    values = list(values)
    if not all(map(math.isfinite, values)):
        infinite = {one for one in values if not math.isfinite(one)}
        return infinite.pop() if infinite in ({math.inf}, {-math.inf}) else math.nan
    if all(one == 0 and math.copysign(1, one) < 0 for one in values):
        return -0.0
    total = sum(map(Fraction, values), Fraction(0))
    return nearest(total, name) if total else 0.0


def exact_sums(sources: list[np.ndarray]) -> np.ndarray:
    """Return `exact_sum` of real or complex arrays of a type, element by element; every NaN is `numpy.nan`."""
    first = sources[0]
    if first.dtype.kind == "c":
        parts = np.empty(first.shape, first.dtype)
        parts.real, parts.imag = (
            exact_sums([np.ascontiguousarray(part(one)) for one in sources]) for part in (np.real, np.imag)
        )
        return parts
    columns = zip(*(one.astype(np.float64).tolist() for one in sources), strict=True)
    with np.errstate(over="ignore"):
        return np.array([exact_sum(column, first.dtype.name) for column in columns], np.float64).astype(
            first.dtype
        )


def hard_numbers(name: str, nsources: int, count: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return arrays of a type, an element of each for a sum: kinds of numbers that are hard to add, a kind after the other.

    They are random exponents over the whole range; close ones; integers with ties; sums that cancel to what is small; subnormals; the
    largest numbers; powers of two, of which each is half the last bit of another; zeros, infinities and NaN.
    """
    precision, least, beyond = FORMATS[name]
    dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
    shape = nsources, count
    mantissas = rng.integers(1 << precision - 1, 1 << precision, shape) * rng.choice([-1, 1], shape)

    def scaled(exponents: np.ndarray) -> np.ndarray:
        return np.ldexp(mantissas.astype(np.float64), np.clip(exponents, least, beyond - precision))

    middle = (least + beyond) // 2
    kinds = [
        scaled(rng.integers(least, beyond, shape)),
        scaled(middle + rng.integers(-3, 3, shape)),
        scaled(middle + rng.integers(-2 * precision, 2 * precision, shape)),
        scaled(np.full(shape, beyond - precision)),
        np.ldexp(rng.integers(-9, 10, shape).astype(np.float64), least),
        np.ldexp(
            rng.choice([-1.0, 0.0, 1.0], shape),
            middle + rng.choice([0, 1, -precision, -precision - 1, -2 * precision], shape),
        ),
        rng.choice([0.0, -0.0, 1.0, -1.0], shape),
        rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0], shape, p=[0.3, 0.3, 0.1, 0.1, 0.1, 0.1]),
    ]
    cancelling = kinds[0].copy()
    half = nsources // 2
    cancelling[half : 2 * half] = -cancelling[:half][::-1]
    kinds.append(rng.permuted(cancelling, axis=0))
    which = np.arange(count) % len(kinds)
    found = np.choose(which, kinds)
    with np.errstate(over="ignore"):
        return list(found.astype(dtype))
