"""Exact sums of arrays are the rounded sums of their numbers, whatever the layout, the axes and the order in which they were added."""

import copy
import math
import pickle
from collections.abc import Callable
from fractions import Fraction
from itertools import combinations, product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from exact_numbers import (
    TYPES,
    Array,
    finite,
    ill_conditioned,
    same,
    samples,
    total,
)
from exact_reference import FORMATS, nearest

from hpcoll import ArgumentError, ExactAccumulator, exact_dot, exact_mean, exact_norm, exact_sum

DOUBLE = np.dtype(np.float64)


def along(x: Array, axes: tuple[int, ...], of: Callable[[Array], float], dtype: np.dtype) -> Array:
    """A function of all numbers along axes, for each place along the others."""
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    moved = x.transpose(*kept, *axes)
    found = [of(moved[place].ravel()) for place in np.ndindex(*(x.shape[axis] for axis in kept))]
    return np.array(found, np.float64).astype(dtype).reshape([x.shape[axis] for axis in kept])


@pytest.mark.parametrize("exponent", [0, 1, 16, 40, 100, 300])
def test_ill_conditioned_sums_are_those_of_fsum(exponent: int) -> None:
    rng = np.random.default_rng(exponent)
    for n in (10, 1000, 10000):
        x = ill_conditioned(rng, n, exponent)
        assert exact_sum(None, x) == math.fsum(x)
        assert exact_sum(None, np.abs(x)) == math.fsum(np.abs(x))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_sums_of_each_type(dtype: np.dtype) -> None:
    rng = np.random.default_rng(7)
    for name, x in samples(rng, 3000, dtype):
        found = exact_sum(None, x)
        assert same(found, np.float64(total(x, dtype)).astype(dtype)), name
        columns = exact_sum(None, x.reshape(30, 100), 0)
        assert same(columns, along(x.reshape(30, 100), (0,), lambda v: total(v, dtype), dtype)), name


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "plain": lambda x: x,
    "Fortran": np.asfortranarray,
    "backwards": lambda x: x[::-1, :, ::-1],
    "every second": lambda x: x[:, ::2],
    "with gaps": lambda x: x[::-2, 1:-1, ::-3],
    "turned": lambda x: x.transpose(2, 0, 1),
    "byte-swapped": lambda x: x.astype(">f8"),
    "repeated": lambda x: np.broadcast_to(x[:1], x.shape),
    "not aligned": lambda x: np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape),
    "empty": lambda x: x[:, :0],
    "thin": lambda x: x[:, :1],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_axes_and_layouts(layout: str) -> None:
    rng = np.random.default_rng(8)
    x = LAYOUTS[layout](rng.standard_normal((5, 6, 40)) * np.exp(30 * rng.standard_normal((5, 6, 40))))
    x.flags.writeable = False
    assert same(exact_sum(None, x), np.float64(math.fsum(x.ravel())))
    for axes in (axes for k in (1, 2, 3) for axes in combinations(range(3), k)):
        assert same(exact_sum(None, x, axes), along(x, axes, math.fsum, DOUBLE)), axes
        assert same(exact_sum(None, x, tuple(axis - 3 for axis in axes)), exact_sum(None, x, axes)), axes
        if x.size:
            mean = along(x, axes, lambda v: float(sum(map(Fraction, v)) / len(v)), DOUBLE)
            norm = along(x, axes, lambda v: _root(sum(Fraction(one) ** 2 for one in v)), DOUBLE)
            assert same(exact_mean(None, x, axes), mean), axes
            assert same(exact_norm(None, x, axes), norm), axes


def _root(square: Fraction, dtype: np.dtype = DOUBLE) -> float:
    """The correctly rounded square root, by integers with more bits than any double."""
    scaled = square * 4**1100
    assert scaled.denominator == 1
    root = math.isqrt(scaled.numerator)
    return nearest(Fraction(2 * root + (root * root != scaled.numerator), 2**1101), dtype.name)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_dots_and_norms(dtype: np.dtype) -> None:
    rng, n = np.random.default_rng(9), 2500
    for exponent in (0, 5, 300):
        x, y = (
            finite(rng, n, dtype) if exponent == 300 else _spread(rng, n, exponent, dtype) for _ in range(2)
        )
        exact = sum((Fraction(float(a)) * Fraction(float(b)) for a, b in zip(x, y, strict=True)), Fraction(0))
        assert same(exact_dot(None, x, y), np.float64(nearest(exact, dtype.name)).astype(dtype))
        assert exact_dot(None, x[::-1], y[::-1]) == exact_dot(None, x, y)
        if dtype == DOUBLE:
            assert exact_norm(None, x) == _root(sum(Fraction(one) ** 2 for one in x))
    assert exact_norm(None, np.array([3, 4], dtype)) == 5
    assert exact_norm(None, np.array([3, 4], dtype)).dtype == dtype
    assert exact_dot(None, x, np.zeros(n, dtype)) == 0


def _spread(rng: np.random.Generator, n: int, exponent: int, dtype: np.dtype) -> Array:
    found: Array = (
        (rng.standard_normal(n) * 10.0 ** rng.uniform(-exponent, exponent, n))
        .clip(-60000, 60000)
        .astype(dtype)
    )
    return found


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_many_norms_at_once(dtype: np.dtype) -> None:
    """Ordinary ones, of which roots are found together, among those whose roots cannot: beside a tie, zero, infinite, subnormal."""
    rng, fraction, least = (
        np.random.default_rng(12),
        FORMATS[dtype.name][0] - 1,
        2.0 ** FORMATS[dtype.name][1],
    )
    rows = list(
        np.concatenate(
            [_spread(rng, 500, 0, dtype), _spread(rng, 500, 5, dtype), finite(rng, 200, dtype)]
        ).reshape(-1, 5)
    )
    part, half = 2.0 ** -((fraction + 1) // 2), 2.0 ** -(fraction + 1)
    # 1, 2 * half and half**2: the square of a number halfway between two others
    tie = np.array([1, part, part * (fraction % 2), half])
    for rest, scale in product((0, least, 2.0**-530), (1, 2.0**400, 2.0**-500) if dtype == DOUBLE else (1,)):
        rows.append(np.array([*(scale * tie), rest]))
    rows += [
        np.array(row)
        for row in (
            [3, 4, 0, 0, 0],
            [0, -0.0, 0, 0, 0],
            [least, 0, 0, 0, 0],
            [least] * 5,
            [np.inf, 1, 0, 0, 0],
        )
    ]
    x = np.array([row.astype(dtype) for row in rows])
    wanted = [
        _root(sum(Fraction(float(one)) ** 2 for one in row), dtype) if np.isfinite(row).all() else np.inf
        for row in x
    ]
    for layout in (x, np.asfortranarray(x), np.repeat(x, 2, 0)[::2]):
        assert same(exact_norm(None, layout, 1), np.array(wanted).astype(dtype))


def test_complex_numbers_and_integers() -> None:
    rng = np.random.default_rng(10)
    for parts, whole in ((np.float64, np.complex128), (np.float32, np.complex64)):
        x, y, u, v = (_spread(rng, 600, 3, np.dtype(parts)).reshape(20, 30) for _ in range(4))
        z, w = (x + 1j * y).astype(whole), (u + 1j * v).astype(whole)
        assert exact_sum(None, z).dtype == whole
        assert exact_sum(None, z) == exact_sum(None, x) + 1j * exact_sum(None, y)
        assert np.array_equal(exact_sum(None, z, 0), exact_sum(None, x, 0) + 1j * exact_sum(None, y, 0))
        assert exact_mean(None, z) == exact_mean(None, x) + 1j * exact_mean(None, y)
        assert exact_norm(None, z) == exact_norm(None, np.concatenate([x, y]))
        real = exact_dot(None, np.concatenate([x, y]), np.concatenate([u, -v]))
        assert exact_dot(None, z, w) == real + 1j * exact_dot(
            None, np.concatenate([x, y]), np.concatenate([v, u])
        )
    i = rng.integers(-(2**63), 2**63, (50, 20))
    exact = [int(one) for one in i.ravel()]
    assert exact_sum(None, i) == i.sum()
    assert np.array_equal(exact_sum(None, i.astype(np.int8), 0), i.astype(np.int8).sum(axis=0))
    assert exact_mean(None, i) == float(Fraction(sum(exact), i.size))
    assert exact_norm(None, i) == _root(Fraction(sum(one**2 for one in exact)))
    assert exact_dot(None, i, i) == (i * i).sum()
    assert exact_dot(None, i, np.full(i.shape, 0.5)) == float(Fraction(sum(exact), 2))
    assert exact_mean(None, [True, True, False]) == np.float64(2) / 3


def test_sums_of_nothing_and_of_zeros() -> None:
    assert same(exact_sum(None, []), np.float64(0.0))
    assert same(exact_sum(None, np.full(3, -0.0)), np.float64(-0.0))
    assert same(exact_norm(None, np.full(3, -0.0)), np.float64(0.0))
    assert same(exact_mean(None, np.full((3, 2), -0.0), 0), np.full(2, -0.0))
    assert same(exact_mean(None, np.empty((0, 2)), 0), np.full(2, np.nan))
    assert same(exact_sum(None, np.empty((0, 2)), 0), np.zeros(2))
    assert same(exact_norm(None, np.array([np.inf, 1])), np.float64(np.inf))


@pytest.mark.parametrize("shape", [(), (4, 25)])
@pytest.mark.parametrize("dtype", [np.float64, np.complex64, ml_dtypes.bfloat16])
def test_accumulators_are_equal_when_their_sums_are(shape: tuple[int, ...], dtype: Any) -> None:
    """However their numbers came: in any order and pieces, along any axis, merged, through a pickle, or with others that cancel."""
    rng = np.random.default_rng(11)
    x = _spread(rng, 1200, 6, DOUBLE).reshape(12, 4, 25).astype(dtype)
    whole, pieces, merged = (ExactAccumulator(dtype, shape) for _ in range(3))
    whole.add(x)
    for row in rng.permutation(12):
        pieces.add(x[row])
    merged.add(x[:5])
    other = ExactAccumulator(dtype, shape)
    other.add(np.asfortranarray(x[5:]))
    merged.merge(pickle.loads(pickle.dumps(other)))
    assert whole == pieces == merged
    assert pickle.dumps(whole) == pickle.dumps(pieces) == pickle.dumps(merged)
    assert copy.deepcopy(whole) == whole == pickle.loads(pickle.dumps(whole))
    assert same(whole.round(), exact_sum(None, x, None if shape == () else 0))
    huge = ExactAccumulator(dtype, shape)
    huge.add(np.concatenate([x, np.full_like(x[:1], 2.0**100), np.full_like(x[:1], -(2.0**100))]))
    huge.add(x[:0])
    assert huge != whole  # of more numbers
    assert same(huge.round(), whole.round())
    copied = copy.copy(whole)
    copied.add(x[:1])
    assert copied != whole
    assert np.array_equal(whole.round(), pieces.round())


def test_accumulators_of_any_real_types_are_merged() -> None:
    """bfloat16 is one, though NumPy does not call it a floating type."""
    for one, other in product([np.float16, ml_dtypes.bfloat16, np.float32, np.float64], repeat=2):
        sums, more = ExactAccumulator(one), ExactAccumulator(other)
        sums.add([0.5])
        more.add([2.0])
        sums.merge(more)
        assert same(sums.round(), np.array(2.5, one))


def test_an_array_of_no_sums_is_equal_to_its_pickle() -> None:
    nothing = ExactAccumulator(shape=(0, 2))
    nothing.add(np.empty((3, 0, 2)))
    assert pickle.loads(pickle.dumps(nothing)) == nothing
    assert nothing != ExactAccumulator(shape=(0, 2))  # of as many sums, of fewer numbers


def test_accumulators_of_products() -> None:
    rng = np.random.default_rng(12)
    x, y = finite(rng, 5000, DOUBLE), finite(rng, 5000, DOUBLE)
    one, other = ExactAccumulator(), ExactAccumulator(np.float32)
    one.add_product(x, y)
    for some in np.array_split(rng.permutation(5000), 7):
        other.add_product(x[some], y[some])
    assert one.round() == exact_dot(None, x, y) == other.round(np.float64)
    assert other.round().dtype == np.float32
    mixed = ExactAccumulator()
    # types that NumPy does not combine
    mixed.add_product(np.full(3, 1.5, ml_dtypes.bfloat16), np.full(3, 2**31 - 1))
    assert mixed.round() == 4.5 * (2**31 - 1)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: exact_sum(None, np.zeros(3), 1), "axis needs different axes of an array that has 1, got 1"),
        (lambda: exact_sum(None, np.zeros((3, 3)), (0, -2)), r"got \(0, -2\)"),
        (lambda: exact_sum(None, np.zeros(3, np.longdouble)), f"got {np.dtype(np.longdouble)}"),
        # a floating type, says NumPy
        (
            lambda: exact_sum(None, np.zeros(3, ml_dtypes.float8_e5m2)),
            "up to float64, got float8_e5m2",
        ),
        (
            lambda: exact_mean(None, ["a"]),
            "exact_mean: exact sums need integers or floating-point numbers up to float64, got <U1",
        ),
        (lambda: exact_sum(None, [[1], [1, 2]]), "need an array that can be read: .*inhomogeneous"),
        (
            lambda: ExactAccumulator().add(np.ma.masked_array([1.0, 2.0], [True, False])),
            "an array without a mask, got a masked one",
        ),
        (
            lambda: exact_dot(None, np.zeros(1, np.float16), np.zeros(1, ml_dtypes.bfloat16)),
            "in NumPy, got float16 and bfloat16",
        ),
        (lambda: exact_dot(None, [1.0], [1.0, 2.0]), r"parts of one shape, got \(1,\) and \(2,\)"),
        (lambda: ExactAccumulator(np.int64), "ExactAccumulator needs a floating type"),
        (lambda: ExactAccumulator("nothing"), "ExactAccumulator needs an element type, got 'nothing'"),
        (lambda: ExactAccumulator(shape=-1), "shape of sizes of 0 or more, got -1"),
        (lambda: ExactAccumulator(shape=3).add(np.zeros(4)), r"other axes have shape \(3,\), got \(4,\)"),
        (lambda: ExactAccumulator().add(1j), "an accumulator of float64 needs real numbers, got complex128"),
        (lambda: ExactAccumulator(shape=3).add_product([1], [1]), "add_product needs one sum"),
        (
            lambda: ExactAccumulator().merge(ExactAccumulator(shape=1)),
            r"float64 of shape \(\), got float64 of shape \(1,\)",
        ),
        (lambda: ExactAccumulator().round(complex), "needs a type of that kind, got complex128"),
    ],
)
def test_what_cannot_be_added_is_refused(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        call()
