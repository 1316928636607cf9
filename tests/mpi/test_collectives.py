"""Every algorithm of every collective: odd and even counts, in place and not, every root, deep pipelines, three communicators."""

import time
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from reference import (
    ALGORITHMS,
    COLLECTIVES,
    REDUCTIONS,
    REPRESENTATIVE,
    ROOTED,
    Guarded,
    agreed,
    communicator,
    contributions,
    expected,
    prefilled,
    representative,
    roots,
)

import hpcoll

pytestmark = pytest.mark.mpi
EVERY = [
    pytest.param(*case, marks=pytest.mark.smoke) if "/".join(case) in REPRESENTATIVE else case
    for case in ALGORITHMS
]


def call(comm: hpcoll.Communicator, collective: str, send: Any, recv: Any, root: int, **options: Any) -> None:
    """Calls a collective by its name, with a root if it has one."""
    method = getattr(comm, COLLECTIVES[collective])
    if collective == "bcast":
        method(recv, root=root, **options)
    elif collective in ROOTED:
        method(send, recv, root=root, **options)
    else:
        method(send, recv, **options)


def run(
    comm: hpcoll.Communicator, collective: str, count: int, root: int, dtype: Any = np.float64, **options: Any
) -> bool:
    """Out of place: the right result, the input as before, nothing else touched."""
    inputs = contributions(collective, comm.size, count)
    wanted = expected(collective, comm.rank, root, inputs)
    sends = collective != "scatter" or comm.rank == root
    send = Guarded(inputs[comm.rank], dtype) if sends else None
    recv = Guarded(wanted.size if wanted is not None else count, dtype)
    if collective == "bcast" and comm.rank == root:
        recv.inner[:] = inputs[root]
    call(comm, collective, send.inner if send else None, recv.inner, root, **options)
    return recv.holds(wanted) and (send is None or send.holds(inputs[comm.rank]))


def run_in_place(comm: hpcoll.Communicator, collective: str, count: int, root: int, **options: Any) -> bool:
    """In place, on the ranks that may."""
    inputs = contributions(collective, comm.size, count)
    wanted = expected(collective, comm.rank, root, inputs)
    before = prefilled(collective, comm.rank, root, inputs)
    if before is None:  # not the root: as out of place
        return run(comm, collective, count, root, **options)
    buffer = Guarded(before)
    if collective == "scatter":
        call(comm, collective, buffer.inner, MPI.IN_PLACE, root, **options)
        return buffer.holds(before)
    call(comm, collective, MPI.IN_PLACE, buffer.inner, root, **options)
    return buffer.holds(before if wanted is None else wanted)


def counts(nranks: int) -> list[int]:
    return sorted({0, 1, nranks - 1, nranks, nranks + 1, 101})


@pytest.mark.parametrize("runner", [run, run_in_place])
@pytest.mark.parametrize(("collective", "algorithm"), EVERY)
def test_every_root_and_count(collective: str, algorithm: str, runner: Any) -> None:
    comm = communicator()
    cases = [(count, root) for count in counts(comm.size) for root in roots(collective, comm.size)]
    assert agreed([case for case in cases if not runner(comm, collective, *case, algorithm=algorithm)]) == []


@pytest.mark.parametrize("runner", [run, run_in_place])
@pytest.mark.parametrize(
    ("collective", "algorithm"), representative(case for case in ALGORITHMS if case[1] != "native")
)
def test_deep_pipeline(collective: str, algorithm: str, runner: Any) -> None:
    """A prime number of elements in segments of 8 and a few more: hundreds of lanes, windows that move on, a short last segment."""
    comm = communicator()
    cases = [(1009, root, segment) for root in {0, comm.size - 1} for segment in (64, 1000)]
    assert (
        agreed(
            [
                case
                for case in cases
                if not runner(comm, collective, *case[:2], algorithm=algorithm, segment=case[2])
            ]
        )
        == []
    )


@pytest.mark.parametrize("name", ["self", "reversed"])
@pytest.mark.parametrize(("collective", "algorithm"), representative(ALGORITHMS))
def test_other_communicators(name: str, collective: str, algorithm: str) -> None:
    comm = communicator(name)
    cases = [
        (runner, count, comm.size // 2) for runner in (run, run_in_place) for count in (0, comm.size + 1, 101)
    ]
    assert (
        agreed(
            [
                case
                for runner, *case in cases
                if not runner(comm, collective, *case, algorithm=algorithm, segment=128)
            ]
        )
        == []
    )


@pytest.mark.smoke
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_chosen_by_the_library(collective: str) -> None:
    """No keyword: small, medium and large messages, each twice, so that the second one repeats the first one's plan."""
    comm = communicator()
    cases = [
        (runner, count, 0) for runner in (run, run_in_place) for count in (1, 1, 1009, 1009, 100_003, 100_003)
    ]
    assert agreed([case for runner, *case in cases if not runner(comm, collective, *case)]) == []


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
    assert agreed(wrong) == []
