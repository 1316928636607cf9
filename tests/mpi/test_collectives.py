"""Every algorithm of every collective: odd and even counts, in place and not, every root, deep pipelines, three communicators."""

import time
from typing import Any

import numpy as np
import pytest
from forms import Case, blocking
from mpi4py import MPI
from reference import (
    ALGORITHMS,
    COLLECTIVES,
    REDUCTIONS,
    REPRESENTATIVE,
    communicator,
    ensure_none,
    representative,
    roots,
)

import hpcoll

pytestmark = pytest.mark.mpi
EVERY = [
    pytest.param(*case, marks=pytest.mark.smoke) if "/".join(case) in REPRESENTATIVE else case
    for case in ALGORITHMS
]


def run(
    comm: hpcoll.Communicator, collective: str, count: int, root: int, dtype: Any = np.float64, **options: Any
) -> bool:
    """Out of place: the right result, the input as before, nothing else touched."""
    return blocking(comm, Case(comm, COLLECTIVES[collective], count, root, dtype=dtype), **options)


def run_in_place(comm: hpcoll.Communicator, collective: str, count: int, root: int, **options: Any) -> bool:
    """In place, on the ranks that may."""
    return blocking(comm, Case(comm, COLLECTIVES[collective], count, root, in_place=True), **options)


def counts(nranks: int) -> list[int]:
    return sorted({0, 1, nranks - 1, nranks, nranks + 1, 101})


@pytest.mark.parametrize("runner", [run, run_in_place])
@pytest.mark.parametrize(("collective", "algorithm"), EVERY)
def test_every_root_and_count(collective: str, algorithm: str, runner: Any) -> None:
    comm = communicator()
    cases = [(count, root) for count in counts(comm.size) for root in roots(collective, comm.size)]
    ensure_none([case for case in cases if not runner(comm, collective, *case, algorithm=algorithm)])


@pytest.mark.parametrize("runner", [run, run_in_place])
@pytest.mark.parametrize(
    ("collective", "algorithm"), representative(case for case in ALGORITHMS if case[1] != "native")
)
def test_deep_pipeline(collective: str, algorithm: str, runner: Any) -> None:
    """A prime number of elements in segments of 8 and a few more: hundreds of lanes, windows that move on, a short last segment."""
    comm = communicator()
    cases = [(1009, root, segment) for root in {0, comm.size - 1} for segment in (64, 1000)]
    ensure_none(
        [
            case
            for case in cases
            if not runner(comm, collective, *case[:2], algorithm=algorithm, segment=case[2])
        ]
    )


@pytest.mark.parametrize("name", ["self", "reversed"])
@pytest.mark.parametrize(("collective", "algorithm"), representative(ALGORITHMS))
def test_other_communicators(name: str, collective: str, algorithm: str) -> None:
    comm = communicator(name)
    cases = [
        (runner, count, comm.size // 2) for runner in (run, run_in_place) for count in (0, comm.size + 1, 101)
    ]
    ensure_none(
        [
            case
            for runner, *case in cases
            if not runner(comm, collective, *case, algorithm=algorithm, segment=128)
        ]
    )


@pytest.mark.smoke
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_chosen_by_the_library(collective: str) -> None:
    """No keyword: small, medium and large messages, each twice, so that the second one repeats the first one's plan."""
    comm = communicator()
    cases = [
        (runner, count, 0) for runner in (run, run_in_place) for count in (1, 1, 1009, 1009, 100_003, 100_003)
    ]
    ensure_none([case for runner, *case in cases if not runner(comm, collective, *case)])


@pytest.mark.parametrize("segment", [None, 256])
@pytest.mark.parametrize(
    ("collective", "algorithm"), representative(case for case in REDUCTIONS if case[0] == "allreduce")
)
def test_bits_are_equal_on_all_ranks(collective: str, algorithm: str, segment: int | None) -> None:
    """Sums of numbers of very different size depend on the order, which must not depend on the rank."""
    comm = communicator()
    rng = np.random.default_rng(comm.rank)
    x = (rng.standard_normal(1009) * 10.0 ** rng.integers(-6, 7, 1009)).astype(np.float32)
    comm.Allreduce(MPI.IN_PLACE, x, algorithm=algorithm, segment=segment)
    assert {one.tobytes() for one in MPI.COMM_WORLD.allgather(x)} == {x.tobytes()}


@pytest.mark.smoke
@pytest.mark.parametrize("algorithm", [*hpcoll.algorithms("barrier"), "native", None])
def test_barrier(algorithm: str | None) -> None:
    """Nobody leaves before the last one has come, whoever that is; the monotonic clock is the machine's."""
    comm = communicator()
    wrong = []
    for late in range(comm.size):
        time.sleep(0.01 if comm.rank == late else 0)
        came = time.monotonic()
        comm.Barrier(algorithm=algorithm)
        left = time.monotonic()
        if max(MPI.COMM_WORLD.allgather(came)) > left:
            wrong.append(late)
    ensure_none(wrong)
