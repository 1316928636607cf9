"""Calls by one kernel of each rank over the double: what they launch, whom they name where ranks differ, and their part in a graph.

The answers of every collective are in test_gpu_cases.py, the kernel's text in tests/unit.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from cuda_double import installed
from gpu_cases import forced
from mpi4py import MPI

import hpcoll

WORLD = MPI.COMM_WORLD
pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.double]
FLOAT = np.dtype(np.float32)


def communicator() -> hpcoll.Communicator:
    with forced("device"):
        return hpcoll.Communicator(WORLD.Dup())


@pytest.fixture
def comm(double: Any) -> Iterator[hpcoll.Communicator]:
    made = communicator()
    yield made
    made.Free()


def total(comm: MPI.Intracomm, turn: int) -> int:
    return sum(rank + turn for rank in range(comm.size))


def pair(double: Any, comm: MPI.Intracomm, count: int, turn: int = 0) -> tuple[Any, Any]:
    return double.Array(count, FLOAT).fill(comm.rank + turn), double.Array(count, FLOAT).fill(-1)


def test_a_repeated_call_is_one_launch(double: Any, comm: hpcoll.Communicator) -> None:
    """Also on new arrays; blocks of earlier calls that took no part in later ones go on with their own generations."""
    counts, ncopies = (5, 16_000, 7, 3000, 16_000), []
    for turn in range(4):
        before = double.calls.copy()
        for count in counts:
            sent, received = pair(double, comm, count, turn)
            comm.Allreduce(sent, received)
            assert (received.get() == total(comm, turn)).all(), (turn, count)
        made = double.calls - before
        assert made["cuLaunchKernel"] == len(counts)
        ncopies.append(made["cuMemcpyAsync"])
    assert 0 in ncopies  # a rank that waits for long looks whom it waits for


@pytest.mark.parametrize("form", ["in flight", "persistent"])
def test_other_forms(form: str, double: Any, comm: hpcoll.Communicator) -> None:
    """Two at once, which meet on channels of their own."""
    arrays = [pair(double, comm, count) for count in (100, 9000)]
    planned = [comm.Allreduce_init(*both) for both in arrays] if form == "persistent" else []
    for turn in range(3):
        for sent, received in arrays:
            sent.fill(comm.rank + turn)
            received.fill(-1)
        before = double.calls.copy()
        if planned:
            MPI.Prequest.Startall(planned)
        MPI.Request.Waitall(planned or [comm.Iallreduce(*both) for both in arrays])
        assert (double.calls - before)["cuLaunchKernel"] == len(arrays)
        assert all((received.get() == total(comm, turn)).all() for _, received in arrays)
    for request in planned:
        request.Free()


def test_a_forced_algorithm_and_long_messages_take_the_usual_way(
    double: Any, comm: hpcoll.Communicator
) -> None:
    for count, options in ((1000, {"algorithm": "ring"}), (100_000, {})):
        sent, received = pair(double, comm, count)
        comm.Allreduce(sent, received, **options)
        assert (received.get() == total(comm, 0)).all()
    assert not any("device" in row.ways for row in comm.ledger.rows())


@pytest.mark.parametrize("what", ["count", "operator", "collective", "blocks"])
def test_ranks_that_call_something_else_are_told(what: str, double: Any) -> None:
    """On every rank; nothing waits afterwards, though ranks launched other numbers of blocks."""
    comm, odd = communicator(), WORLD.rank == WORLD.size - 1
    sent, received = pair(double, comm, 12_000)
    comm.Allreduce(sent[:100], received[:100])
    count = {"count": 99, "blocks": 12_000}.get(what, 100) if odd else 100
    op = MPI.MAX if odd and what == "operator" else MPI.SUM
    call = partial(comm.Allreduce, sent[:count], received[:count], op)
    if odd and what == "collective":
        call = partial(comm.Bcast, sent[:100], root=0)
    with pytest.raises(hpcoll.MismatchError, match=f"rank {WORLD.size - 1}: "):
        call()
    double.finish()


def test_a_rank_that_does_not_come_is_named(double: Any) -> None:
    """The kernels of the others end with their calls."""
    comm = communicator()
    sent, received = pair(double, comm, 100)
    comm.Allreduce(sent, received)
    if comm.rank:
        with pytest.raises(hpcoll.CollectiveTimeout, match="waits for rank 0\n  rank 0 is in no collective"):
            comm.Allreduce(sent, received, timeout=1)
        double.finish()
        assert not double.pending()
    WORLD.Barrier()


def test_part_of_a_graph(double: Any, comm: hpcoll.Communicator) -> None:
    """A graph is launched again and again, with starts between; what is in place is sent from its place."""
    stream = double.stream()
    sent, received = pair(double, comm, 3000)
    gathered = double.Array((comm.size, 5), FLOAT)
    requests = [
        comm.Allreduce_init(sent, received, stream=stream),
        comm.Allgather_init(MPI.IN_PLACE, gathered, stream=stream),
    ]

    def check(turn: int, run: Any) -> None:
        sent.fill(comm.rank + turn)
        received.fill(-1)
        gathered.fill(comm.rank + turn)
        run()
        double.finish(stream)
        assert (received.get() == total(comm, turn)).all(), turn
        assert (gathered.get() == np.arange(comm.size)[:, None] + turn).all(), turn

    def started() -> None:
        MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)

    check(0, started)
    double.capture(stream)
    received.fill(-1)
    for request in requests:
        request.Start()
        request.Wait()
    double.capture(stream, False)
    assert (received.get() == -1).all()  # it has not begun
    for turn in range(1, 4):
        check(turn, lambda: double.replay(stream))
        check(turn + 10, started)
    for request in requests:
        request.Free()


def test_what_a_graph_cannot_hold(double: Any, comm: hpcoll.Communicator) -> None:
    stream = double.stream()
    sent, received = pair(double, comm, 100)
    averaged = comm.Allreduce_init(sent, received, op=hpcoll.AVG, stream=stream)
    long = comm.Allreduce_init(*pair(double, comm, 100_000), stream=stream)
    double.capture(stream)
    calls = [averaged.Start, long.Start, lambda: comm.Allreduce(sent, received, stream=stream)]
    for call in calls:
        with pytest.raises(
            hpcoll.ArgumentError, match="can hold no collective but a persistent one by one kernel"
        ):
            call()
    double.capture(stream, False)


def test_who_may_wait_in_a_kernel() -> None:
    """Ranks that share a GPU by MPS, or have one each."""
    with installed(WORLD.size, mps=False) as double:
        double.make_current(WORLD.rank)
        comm = communicator()
        received = double.Array(3, FLOAT, ordinal=WORLD.rank).fill(WORLD.rank)
        comm.Allreduce(MPI.IN_PLACE, received)
        assert (received.get() == total(comm, 0)).all()
        comm.Free()
        double.make_current(0)
        with pytest.raises(hpcoll.ArgumentError, match="ranks share a GPU without MPS"):
            communicator().Bcast(double.Array(3, FLOAT))
