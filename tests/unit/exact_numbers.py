"""Numbers for tests of exact sums, and what their sums are, by Python's own integers and fractions."""

import math
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]

TYPES = [np.dtype(name) for name in ("float64", "float32", "float16", ml_dtypes.bfloat16)]
FRACTION_BITS = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}
LOWEST = {"float64": -1074, "float32": -149, "float16": -24, "bfloat16": -133}


def nearest(number: Fraction, dtype: np.dtype) -> float:
    """A number rounded to a type, to nearest, ties to even."""
    if number == 0:
        return 0.0
    bits = FRACTION_BITS[dtype.name]
    size = abs(number)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    unit = Fraction(2) ** max(exponent - bits, LOWEST[dtype.name])
    rounded = round(size / unit) * unit
    info = ml_dtypes.finfo(dtype)
    return math.copysign(
        float(rounded) if rounded <= Fraction(float(info.max)) else math.inf, -1 if number < 0 else 1
    )


def total(numbers: Iterable[Any], dtype: np.dtype) -> float:
    """The correctly rounded sum; -0.0 where there are numbers and all are."""
    values = [float(number) for number in numbers]
    if any(map(math.isnan, values)) or {math.inf, -math.inf} <= set(values):
        return math.nan
    if special := [value for value in values if math.isinf(value)]:
        return special[0]
    if values and all(value == 0 and math.copysign(1, value) < 0 for value in values):
        return -0.0
    return nearest(sum(map(Fraction, values), Fraction(0)), dtype)


def same(one: Any, other: Any) -> bool:
    """Say whether arrays or scalars have the same bits, but any NaN like another."""
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype.kind == "c":
        return one.dtype == other.dtype and same(one.real, other.real) and same(one.imag, other.imag)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        a, b = one.astype(np.float64), other.astype(np.float64)
    signs = [np.signbit(numbers)[~np.isnan(numbers)] for numbers in (a, b)]
    return one.dtype == other.dtype and np.array_equal(a, b, equal_nan=True) and np.array_equal(*signs)


def of_random_bits(rng: np.random.Generator, n: int, dtype: np.dtype) -> Array:
    bits = rng.integers(0, 256, n * dtype.itemsize, np.uint8)
    found: Array = bits.view(dtype)
    return found


def finite(rng: np.random.Generator, n: int, dtype: np.dtype) -> Array:
    found = of_random_bits(rng, n, dtype)
    with np.errstate(invalid="ignore"):
        found[~np.isfinite(found.astype(np.float64))] = 1
    return found


def samples(rng: np.random.Generator, n: int, dtype: np.dtype) -> Iterator[tuple[str, Array]]:
    """Arrays of n numbers, which take all ways of the kernels."""
    yield "normal", rng.standard_normal(n).astype(dtype)
    yield "random bits", of_random_bits(rng, n, dtype)
    yield "random exponents", finite(rng, n, dtype)
    yield "subnormal", (rng.integers(-9, 9, n) * 2.0 ** LOWEST[dtype.name]).astype(dtype)
    yield "growing", (np.cumprod(np.full(n, 1.01)) * rng.standard_normal(n)).clip(-60000, 60000).astype(dtype)
    half = finite(rng, n // 2, dtype)
    yield "cancelling", np.concatenate([half, -half, np.full(n % 2, 1.5, dtype)])[rng.permutation(n)]
    yield "negative zeros", np.full(n, -0.0, dtype)
    for name, value in (("a zero", 0.0), ("an infinity", -math.inf), ("a NaN", math.nan)):
        some = np.full(n, -0.0, dtype)
        some[n // 2] = value
        yield name, some


def ill_conditioned(rng: np.random.Generator, n: int, exponent: float) -> Array:
    """Numbers whose sum is small: its condition number is about ``10**exponent``."""
    size = rng.uniform(0, exponent, n // 2)
    large = rng.choice([-1, 1], n // 2) * rng.random(n // 2) * 10.0 ** (size - exponent / 2)
    rest = rng.standard_normal(n - 2 * (n // 2) + 3) * 10.0 ** (-exponent / 2)
    found: Array = np.concatenate([large, -large, rest])
    return found[rng.permutation(found.size)]
