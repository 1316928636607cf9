"""Numbers for tests of exact sums, and what their sums are."""

import math
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
from exact_reference import FORMATS, exact_sum

Array = np.ndarray[Any, Any]

TYPES = [np.dtype(name) for name in ("float64", "float32", "float16", ml_dtypes.bfloat16)]


def total(numbers: Array, dtype: np.dtype) -> float:
    """The correctly rounded sum; -0.0 where all are."""
    return exact_sum(map(float, numbers), dtype.name)


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
    yield "subnormal", (rng.integers(-9, 9, n) * 2.0 ** FORMATS[dtype.name][1]).astype(dtype)
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
