"""Exact sums of arrays in GPU memory over the driver's double: kernels make them, with the bits of the host's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cuda_double import Double
from exact_numbers import TYPES, Array, samples

import hpcoll
from hpcoll import exact_dot, exact_mean, exact_norm, exact_sum
from hpcoll.exact import gpu
from hpcoll.runtime.gpu import digit_sums

pytest.importorskip("numba.cuda.cudadrv.nvrtc", reason="needs numba-cuda", exc_type=ImportError)

VIEWS: dict[str, Callable[[Any], Any]] = {
    "whole": lambda x: x,
    "every other row": lambda x: x[::2],
    "backwards": lambda x: x[::-1, :, ::-1],
    "gaps": lambda x: x[1:, :2, ::3],
    "one column": lambda x: x[:, :, 2:3],
    "none": lambda x: x[:0],
}


@pytest.fixture
def by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host copies no array to make its sum."""
    monkeypatch.setattr(gpu, "Mirror", None)


def put(double: Double, x: Array) -> Any:
    """A copy of an array on the GPU, with no gaps; bfloat16 by DLPack."""
    made = double.Array(x.shape, x.dtype).fill(x)
    return double.dlpack(made) if x.dtype.kind == "V" else made


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_sums_columns_and_products_of_each_type(dtype: np.dtype, double: Double, by_kernels: None) -> None:
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
def test_views_and_axes(view: str, dtype: str, double: Double, by_kernels: None) -> None:
    """A part of an array is read where it lies, or packed; a complex number is two real ones."""
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


def test_long_arrays_take_several_launches(
    double: Double, by_kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elements, then what threads leave, in fewer threads each time; in pieces, where a digit would overflow."""
    monkeypatch.setattr(digit_sums, "_FEW", 4)
    monkeypatch.setattr(digit_sums, "_FIRST_SHARE", 8)
    x = np.random.default_rng(5).standard_normal((40, 50)) * 10.0 ** np.arange(-20, 20)[:, None]
    array, before = put(double, x), double.calls["cuLaunchKernel"]
    assert exact_sum(None, array) == exact_sum(None, x)
    assert double.calls["cuLaunchKernel"] - before == 4  # 2000 numbers, 1000, 252, and 64 by 4 threads
    monkeypatch.setattr(digit_sums, "MOST_ELEMENTS", 7)
    monkeypatch.setattr(digit_sums, "_WORDS_NBYTES", 8 * 72 * 6)
    assert exact_sum(None, array, 0).tobytes() == exact_sum(None, x, 0).tobytes()
    assert exact_dot(None, array, array) == exact_dot(None, x, x)


def test_sums_wait_for_the_arrays_maker(double: Double, by_kernels: None) -> None:
    array, stream = double.Array(100, np.float64), double.stream()
    array.stream = stream
    double.later(stream, array.address, np.full(100, 0.1))
    assert exact_sum(None, array) == exact_sum(None, np.full(100, 0.1))


def test_what_kernels_do_not_add_the_host_does(double: Double) -> None:
    x = np.arange(12).reshape(3, 4)
    array, z = put(double, x), put(double, x * (1 + 2j))
    total = hpcoll.ExactAccumulator()
    total.add(array)
    assert total.round() == 66
    assert exact_sum(None, array, 0).tolist() == [12, 15, 18, 21]
    assert exact_dot(None, z, z) == exact_dot(None, x * (1 + 2j), x * (1 + 2j))
    assert exact_norm(None, array, 1).tobytes() == exact_norm(None, x, 1).tobytes()
