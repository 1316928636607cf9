"""Exact sums of arrays in GPU memory over the driver's double: they have the bits of the host's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cuda_double import Double
from exact_numbers import TYPES, Array, samples

import hpcoll
from hpcoll import exact_dot, exact_mean, exact_norm, exact_sum

VIEWS: dict[str, Callable[[Any], Any]] = {
    "whole": lambda x: x,
    "every other row": lambda x: x[::2],
    "backwards": lambda x: x[::-1, :, ::-1],
    "gaps": lambda x: x[1:, :2, ::3],
    "one column": lambda x: x[:, :, 2:3],
    "none": lambda x: x[:0],
}


def put(double: Double, x: Array) -> Any:
    """A copy of an array on the GPU, with no gaps; bfloat16 by DLPack."""
    made = double.Array(x.shape, x.dtype).fill(x)
    return double.dlpack(made) if x.dtype.kind == "V" else made


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_sums_columns_and_products_of_each_type(dtype: np.dtype, double: Double) -> None:
    for name, x in samples(np.random.default_rng(3), 600, dtype):
        x = x.reshape(30, 20)
        y = x[::-1].copy()
        one, other = put(double, x), put(double, y)
        assert np.asarray(exact_sum(None, one)).tobytes() == np.asarray(exact_sum(None, x)).tobytes(), name
        assert exact_sum(None, one, 0).tobytes() == exact_sum(None, x, 0).tobytes(), name
        assert exact_sum(None, one, 1).tobytes() == exact_sum(None, x, 1).tobytes(), name
        assert exact_norm(None, one).tobytes() == exact_norm(None, x).tobytes(), name
        assert exact_dot(None, one, other).tobytes() == exact_dot(None, x, y).tobytes(), name


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_views_and_axes(view: str, dtype: str, double: Double) -> None:
    rng = np.random.default_rng(4)
    x = np.exp(20 * rng.standard_normal((6, 5, 8))).astype(dtype)
    if dtype == "complex64":
        x *= 1 + 1j * rng.standard_normal(x.shape).astype(np.float32)
    theirs, host = VIEWS[view](put(double, x)), VIEWS[view](x)
    for axis in (None, 0, 1, 2, (0, 2), (0, 1), (1, 2)):
        assert (
            np.asarray(exact_sum(None, theirs, axis)).tobytes()
            == np.asarray(exact_sum(None, host, axis)).tobytes()
        ), axis
    assert exact_norm(None, theirs) == exact_norm(None, host)
    assert (
        np.asarray(exact_mean(None, theirs, 0)).tobytes() == np.asarray(exact_mean(None, host, 0)).tobytes()
    )
    if dtype == "float64":
        assert exact_dot(None, theirs, theirs) == exact_dot(None, host, host)


def test_sums_wait_for_the_arrays_maker(double: Double) -> None:
    array, stream = double.Array(100, np.float64), double.stream()
    array.stream = stream
    double.later(stream, array.address, np.full(100, 0.1))
    assert exact_sum(None, array) == exact_sum(None, np.full(100, 0.1))


def test_integers_and_an_accumulator(double: Double) -> None:
    x = np.arange(12).reshape(3, 4)
    array, z = put(double, x), put(double, x * (1 + 2j))
    total = hpcoll.ExactAccumulator()
    total.add(array)
    assert total.round() == 66
    assert exact_sum(None, array, 0).tolist() == [12, 15, 18, 21]
    assert exact_dot(None, z, z) == exact_dot(None, x * (1 + 2j), x * (1 + 2j))
    assert exact_dot(None, array, x) == exact_dot(None, x, x)
    assert exact_norm(None, array, 1).tobytes() == exact_norm(None, x, 1).tobytes()
