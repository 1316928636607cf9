"""Every collective on arrays in GPU memory, by every way, against NumPy."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from forms import COLLECTIVE, PLAIN, names
from gpu_arrays import Symmetric, plain
from gpu_bits import check_bits, check_exact_arrays
from gpu_cases import (
    WAYS,
    Maker,
    by_way,
    check_dtypes,
    check_factors,
    check_half,
    check_messages,
    check_method,
    check_mixed,
    check_requests,
    communicator,
)

from hpcoll.runtime.gpu.device import Gpu

pytestmark = [pytest.mark.gpu, pytest.mark.mpi(min_size=1)]
METHODS = [method for method in COLLECTIVE if method != "Barrier"]


@pytest.fixture(scope="module")
def by(make: Maker) -> Iterator[Any]:
    yield from by_way(lambda way: communicator(way, make))


@pytest.mark.parametrize("way", [None, *WAYS])
@pytest.mark.parametrize("method", METHODS)
def test_every_way(method: str, way: str | None, by: Any, make: Maker) -> None:
    check_method(by(way), method, make)


@pytest.mark.parametrize("method", PLAIN)
def test_every_algorithm(method: str, by: Any, make: Maker) -> None:
    for algorithm in names(method):
        check_method(by(None), method, make, algorithm)


@pytest.mark.parametrize("method", METHODS)
def test_symmetric_memory(method: str, by: Any) -> None:
    comm = by(None)
    check_method(comm, method, Symmetric(comm, 8 << 20))


@pytest.mark.parametrize("method", ["Allreduce", "Bcast", "Alltoall"])
def test_arrays_with_nothing_but_the_interface(method: str, by: Any, gpu: Gpu) -> None:
    check_method(by(None), method, lambda count, dtype: plain(gpu, count, np.dtype(dtype)))


@pytest.mark.parametrize("way", [None, "host"])
@pytest.mark.parametrize(
    "method", ["Allreduce", "Reduce", "Reduce_scatter_block", "Scan", "Exscan", "Allgather"]
)
def test_element_types(method: str, way: str | None, by: Any, make: Maker) -> None:
    check_dtypes(by(way), method, make)


@pytest.mark.parametrize("way", [None, *WAYS])
@pytest.mark.parametrize("start", ["nonblocking", "persistent"])
def test_requests(start: str, way: str | None, by: Any, make: Maker) -> None:
    check_requests(by(way), make, start)


@pytest.mark.parametrize("way", [None, *WAYS])
def test_bits_are_those_of_the_host(way: str | None, by: Any, make: Maker) -> None:
    check_bits(by(way), make, 5_000 if way else 9)


def test_exact_sums_of_arrays_have_the_bits_of_the_host(by: Any, make: Maker) -> None:
    check_exact_arrays(by(None), make)


def test_factors(by: Any, make: Maker) -> None:
    check_factors(by(None), make)


def test_float16_is_rounded_once(by: Any, make: Maker) -> None:
    check_half(by(None), make)


def test_host_and_gpu_arrays_in_one_call(make: Maker) -> None:
    comm = communicator(None, make, mixed=True)
    check_mixed(comm, make)
    comm.Free()


@pytest.mark.parametrize("way", [None, *WAYS])
def test_messages(way: str | None, by: Any, make: Maker) -> None:
    check_messages(by(way), make)
