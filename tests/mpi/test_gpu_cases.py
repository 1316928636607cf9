"""Collectives on GPU arrays without a GPU: the cases of tests/gpu over the driver's double."""

from collections.abc import Iterator
from typing import Any

import pytest
from forms import COLLECTIVE, PLAIN, names
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
from internals import resources

from hpcoll.schedules.catalogue import CATALOGUE

COUNTS = (0, 7, 12_007)  # the double is slow
HIERARCHICAL = [
    (method, name)
    for method, collective in COLLECTIVE.items()
    for name in names(method)[2:]
    if method != "Barrier" and CATALOGUE[f"{collective}/{name}"].hierarchical
]
pytestmark = [pytest.mark.mpi(min_size=1), pytest.mark.double, pytest.mark.usefixtures("blame")]


@pytest.fixture(scope="module")
def make(shared_double: Any) -> Maker:
    return lambda count, dtype: shared_double.Array(count, dtype)


@pytest.fixture(scope="module")
def by(make: Maker) -> Iterator[Any]:
    yield from by_way(lambda way: communicator(way, make))


# On more than two ranks, in the short run, hpcoll's own choice and one other: the double is slow. For "direct" see test_gpu_direct.
@pytest.mark.parametrize(
    "way",
    [
        None,
        *(
            way if way == "staged" else pytest.param(way, marks=[pytest.mark.once, pytest.mark.ci])
            for way in WAYS
            if way != "direct"
        ),
    ],
)
@pytest.mark.parametrize("method", [one for one in COLLECTIVE if one != "Barrier"])
def test_every_way(method: str, way: str | None, by: Any, make: Maker) -> None:
    check_method(by(way), method, make, counts=COUNTS)


@pytest.fixture(scope="module")
def grouped(make: Maker) -> Iterator[Any]:
    """Of pairs of ranks that share memory."""

    def made(way: str | None) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HPCOLL_SHM_RANKS", "2")
            return communicator(way, make)

    yield from by_way(made)


@pytest.mark.ci
@pytest.mark.parametrize("way", [pytest.param(None, marks=pytest.mark.full), "staged"])
@pytest.mark.parametrize(("method", "algorithm"), HIERARCHICAL)
def test_pairs_of_ranks_as_nodes(
    method: str, algorithm: str, way: str | None, grouped: Any, make: Maker
) -> None:
    comm = grouped(way)
    assert resources(comm).topology.nodes == tuple(rank // 2 for rank in range(comm.size))
    check_method(comm, method, make, algorithm, counts=COUNTS)


@pytest.mark.once
@pytest.mark.ci
@pytest.mark.parametrize(
    "method", [one for one in PLAIN if one in ("Allreduce", "Reduce_scatter_block", "Scan", "Allgather")]
)
def test_element_types(method: str, by: Any, make: Maker) -> None:
    check_dtypes(by(None), method, make)


@pytest.mark.once
@pytest.mark.parametrize("start", ["nonblocking", "persistent"])
def test_requests(start: str, by: Any, make: Maker) -> None:
    check_requests(by(None), make, start)


@pytest.mark.parametrize("way", [pytest.param(None, marks=pytest.mark.once), "staged"])
def test_bits_are_those_of_the_host(way: str | None, by: Any, make: Maker) -> None:
    check_bits(by(way), make, 9 if way else 5_000)


@pytest.mark.once
def test_exact_sums_of_arrays_have_the_bits_of_the_host(by: Any, make: Maker) -> None:
    check_exact_arrays(by(None), make)


@pytest.mark.once
def test_factors(by: Any, make: Maker) -> None:
    check_factors(by(None), make)


@pytest.mark.once
def test_float16_is_rounded_once(by: Any, make: Maker) -> None:
    check_half(by(None), make)


def test_host_and_gpu_arrays_in_one_call(make: Maker) -> None:
    comm = communicator(None, make, mixed=True)
    check_mixed(comm, make)
    comm.Free()


@pytest.mark.once
def test_messages(by: Any, make: Maker) -> None:
    check_messages(by(None), make)
