"""Digits hold sums exactly: of any numbers, cut in any way, in one form, and rounded once."""

import math
from fractions import Fraction

import numpy as np
import pytest
from exact_numbers import TYPES, Array, finite, of_random_bits, same, samples, total
from exact_reference import exact_sum, nearest
from test_exact_kernels import HAND_PICKED

from hpcoll.kernels.digits import PRODUCTS, DigitWindow, add, as_integer, divide, normalise, rounded, window
from hpcoll.kernels.sum_room import BLOCK
from hpcoll.kernels.sums import add_products

MAX = float(np.finfo(np.float64).max)


def digits_of(numbers: Array, within: DigitWindow | None = None) -> Array:
    """The vector of a sum, number by number."""
    within = within or window(numbers.dtype)
    each = np.zeros((numbers.size, within.nwords), np.int64)
    add(each, np.ascontiguousarray(numbers), within)
    words = each.sum(axis=0, keepdims=True)
    normalise(words)
    return words


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_number_comes_back(dtype: np.dtype) -> None:
    rng = np.random.default_rng(1)
    x = (
        np.arange(1 << 16, dtype=np.uint16).view(dtype)
        if dtype.itemsize == 2
        else of_random_bits(rng, 100000, dtype)
    )
    within = window(dtype)
    words = np.zeros((x.size, within.nwords), np.int64)
    add(words, x, within)
    normalise(words)
    assert same(rounded(words, within.first, dtype), x)


MANY: list[list[float]] = [[-MAX] * 100000, [MAX] * 1000 + [-MAX] * 999, [2.0**53, 1.0, 2.0**-1000]]


@pytest.mark.parametrize("numbers", [*HAND_PICKED, *MANY])
def test_rounding_is_that_of_the_whole_sum(numbers: list[float]) -> None:
    double = np.dtype(np.float64)
    found = rounded(digits_of(np.array(numbers)), window(double).first, double)[0]
    assert same(found, np.float64(exact_sum(numbers, "float64")))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_sums_of_few_numbers_are_rounded_correctly(dtype: np.dtype) -> None:
    """Neighbours cancel most digits of each other, so that many ties and subnormal results are among them."""
    rng, n = np.random.default_rng(2), 3000
    x = finite(rng, 3 * n, dtype).reshape(3, n)
    bits = x.view(f"u{dtype.itemsize}")
    bits[1] = bits[0] ^ (1 << (8 * dtype.itemsize - 1)) ^ rng.integers(0, 4, n).astype(bits.dtype)
    bits[2, ::2] = (
        (np.abs(x[0, ::2].astype(np.float64)) * 2.0 ** -rng.integers(0, 60, n // 2))
        .astype(dtype)
        .view(bits.dtype)
    )
    within = window(dtype)
    words = np.zeros((n, within.nwords), np.int64)
    for row in x:
        add(words, row, within)
    normalise(words)
    found = rounded(words, within.first, dtype)
    assert same(found, np.array([total(column, dtype) for column in x.T], np.float64).astype(dtype))


def test_rounding_to_odd_can_be_rounded_again() -> None:
    rng, n = np.random.default_rng(3), 20000
    half, single = np.dtype(np.float16), np.dtype(np.float32)
    within = window(half)
    words = np.zeros((n, within.nwords), np.int64)
    for scale in (2.0**-16, 2.0**-8, 0, 2.0**-24):
        add(words, (rng.standard_normal(n) * scale * 2000).astype(half), within)
    normalise(words)
    assert same(
        rounded(words, within.first, single, to_odd=True).astype(half), rounded(words, within.first, half)
    )


def test_quotients_are_rounded_once() -> None:
    rng, double = np.random.default_rng(4), np.dtype(np.float64)
    for divisor in (1, 3, 10**6 + 3, 2**31 - 1):
        x = np.concatenate(
            [finite(rng, 200, double), np.array([2.0**-1074, -3 * 2.0**-1074, MAX, -MAX, 1.0])]
        )
        words = np.zeros((x.size, window(double).nwords), np.int64)
        add(words, x, window(double))
        normalise(words)
        divide(words, divisor)
        wanted = [math.copysign(nearest(Fraction(float(one)) / divisor, "float64"), one) for one in x]
        found = rounded(words, window(double).first, double)
        assert np.array_equal(found, wanted)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_products_are_exact(dtype: np.dtype) -> None:
    rng, n = np.random.default_rng(5), BLOCK + 100
    for (name, x), (_, y) in zip(samples(rng, n, dtype), samples(rng, n, dtype), strict=True):
        for other in (y, x, np.ones(n, dtype)):
            words = np.zeros((1, PRODUCTS.nwords), np.int64)
            add_products(words, x[None], other[None], PRODUCTS)
            normalise(words)
            pairs = [(float(a), float(b)) for a, b in zip(x, other, strict=True)]
            wanted = sum(
                (Fraction(a) * Fraction(b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)),
                Fraction(0),
            )
            assert as_integer(words[0]) == wanted * 2**2176, name
            others = [a * b for a, b in pairs if not (math.isfinite(a) and math.isfinite(b))]
            counts = [math.inf in others, -math.inf in others, any(map(math.isnan, others))]
            assert words[0, -4:-1].tolist() == ([False, False, True] if counts[2] else counts), name
            signed = any(a * b != 0 or (a != 0 and b != 0) or math.copysign(1, a * b) > 0 for a, b in pairs)
            assert words[0, -1] == signed, name
