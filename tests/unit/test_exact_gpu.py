"""Exact sums of arrays in GPU memory over the driver's double: they have the bits of the host's."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cuda_double import Double
from exact_numbers import Array

import hpcoll
from hpcoll import exact_dot, exact_mean, exact_norm, exact_sum

VIEWS: dict[str, Callable[[Any], Any]] = {
    "whole": lambda x: x,
    "backwards": lambda x: x[::-1, :, ::-1],
    "gaps": lambda x: x[1:, :2, ::3],
    "one column": lambda x: x[:, :, 2:3],
    "none": lambda x: x[:0],
}


def put(double: Double, x: Array) -> Any:
    """A copy of an array on the GPU, with no gaps; bfloat16 by DLPack."""
    made = double.Array(x.shape, x.dtype).fill(x)
    return double.dlpack(made) if x.dtype.kind == "V" else made


def check_same(theirs: Any, host: Array) -> None:
    for axis in (None, 0, 1, (0, 2), (1, 2)):
        for function in (exact_sum, exact_mean, exact_norm):
            found, wanted = function(None, theirs, axis), function(None, host, axis)
            assert np.asarray(found).tobytes() == np.asarray(wanted).tobytes(), (function, axis)
    assert exact_dot(None, theirs, theirs).tobytes() == exact_dot(None, host, host).tobytes()


@pytest.mark.parametrize("view", VIEWS)
def test_views_and_axes(view: str, double: Double) -> None:
    x = np.exp(20 * np.random.default_rng(4).standard_normal((6, 5, 8)))
    check_same(VIEWS[view](put(double, x)), VIEWS[view](x))


@pytest.mark.parametrize("dtype", ["complex64", "float16", ml_dtypes.bfloat16])
def test_types(dtype: Any, double: Double) -> None:
    x = np.random.default_rng(3).standard_normal((6, 5, 8)).astype(dtype)
    check_same(put(double, x), x)


def test_sums_wait_for_the_arrays_maker(double: Double) -> None:
    array, stream = double.Array(100, np.float64), double.stream()
    array.stream = stream
    double.later(stream, array.address, np.full(100, 0.1))
    assert exact_sum(None, array) == exact_sum(None, np.full(100, 0.1))


def test_integers_and_an_accumulator(double: Double) -> None:
    x = np.arange(12).reshape(3, 4)
    array, total = put(double, x), hpcoll.ExactAccumulator()
    total.add(array)
    assert total.round() == 66
    assert exact_sum(None, array, 0).tolist() == [12, 15, 18, 21]
    assert exact_dot(None, array, x) == exact_dot(None, x, x)
