"""The first calls on a communicator are in flight: they wait for nobody, are hpcoll's own, and begin in the order of the calls."""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from failed_calls import x
from mpi4py import MPI
from reference import ensure, ensure_none, fresh, raised

import hpcoll
from hpcoll import ArgumentError, MismatchError

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.twice]

WORLD = MPI.COMM_WORLD
LAST = WORLD.size - 1


@pytest.fixture
def base(way: str) -> Iterator[hpcoll.Communicator]:  # noqa: ARG001
    """A communicator whose duplicates have not been used."""
    one = fresh()
    yield one
    one.Free()


def unused(base: hpcoll.Communicator) -> hpcoll.Communicator:
    return base.Dup()


def test_nobody_waits_for_it(base: hpcoll.Communicator) -> None:
    """Rank 0 lets the others come to theirs only after its own call, as programs do that find out that all messages have come."""
    comm, total = unused(base), np.zeros(8)
    if WORLD.rank == 0:
        request = comm.Iallreduce(x(8), total)
        [WORLD.send(None, rank) for rank in range(1, WORLD.size)]
    else:
        WORLD.recv(source=0)
        request = comm.Iallreduce(x(8), total)
    request.Wait()
    rows = [row.algorithm for row in comm.ledger.rows()]
    comm.Free()
    ensure((total == WORLD.size).all() and "native" not in rows, (total, rows))


@pytest.mark.parametrize("how", ["Wait", "Waitall", "Test", "a blocking call", "Free"])
def test_whoever_begins_it(how: str, base: hpcoll.Communicator) -> None:
    """Several of them, in order, by what the program does next; with one that the MPI library serves, and with counts left out."""
    comm = unused(base)
    sums, every, pairs, own = np.zeros(8), np.zeros(comm.size), np.zeros(6), np.zeros(1)
    pair = MPI.DOUBLE.Create_vector(3, 1, 2).Commit()
    if comm.rank == LAST:
        pairs[:] = 5
    requests = [
        comm.Iallreduce(x(8), sums),
        comm.Iallgather(np.array([comm.rank + 1.0]), every),
        comm.Ibcast([pairs, 1, pair], root=LAST),
        comm.Ireduce_scatter(x(comm.size), own),
    ]
    if how == "Waitall":
        MPI.Request.Waitall(requests)
    elif how == "Test":
        while waiting := [request for request in requests if not request.Test()]:
            requests = waiting
    elif how != "Wait":
        comm.Barrier() if how == "a blocking call" else comm.Free()
    for request in requests:
        request.Wait()
    right = [
        (sums == WORLD.size).all(),
        (every == np.arange(WORLD.size) + 1).all(),
        (pairs[::2] == 5).all(),
        own[0] == WORLD.size,
    ]
    pair.Free()
    if how != "Free":
        comm.Free()
    ensure(all(right), right)


def test_two_in_another_order(base: hpcoll.Communicator) -> None:
    """Communicators have an order each: ranks may begin them as they like, and wait in the MPI library."""
    comms, totals = [unused(base) for _ in range(2)], [np.zeros(8), np.zeros(8)]
    order = (0, 1) if WORLD.rank == 0 else (1, 0)
    MPI.Request.Waitall([comms[i].Iallreduce(x(8), totals[i]) for i in order])
    for comm in comms:
        comm.Free()
    ensure_none([] if all((total == WORLD.size).all() for total in totals) else totals)


def test_nobody_waits_at_all(base: hpcoll.Communicator) -> None:
    """A request that is dropped: the others get what they wait for."""
    comm, total = unused(base), np.zeros(8)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        request: Any = comm.Iallreduce(x(8), total)
        if WORLD.rank == 0:
            request = None
    if request is not None:
        request.Wait()
    comm.Barrier()
    comm.Free()
    warned = [str(one.message) for one in said] == [
        "Iallreduce: its request was dropped and never waited for"
    ] * (WORLD.rank == 0)
    ensure(warned and (WORLD.rank == 0 or (total == WORLD.size).all()), (total, said))


def test_wrong_arguments_are_refused_at_once(base: hpcoll.Communicator) -> None:
    comm, total = unused(base), np.zeros(8)
    error = raised(lambda: comm.Iallreduce(x(8), x(9)))
    comm.Iallreduce(x(8), total).Wait()
    comm.Free()
    ensure(isinstance(error, ArgumentError) and (total == WORLD.size).all(), (repr(error), total))


def test_who_waits_in_the_library_is_told(base: hpcoll.Communicator) -> None:
    """By a code alone; the communicator says why."""
    comm = unused(base)
    request = comm.Iallreduce(x(8), np.zeros(8), MPI.MAX if WORLD.rank == LAST else MPI.SUM)
    error = raised(lambda: MPI.Request.Waitall([request]))
    again = raised(comm.Barrier)
    right = isinstance(error, MPI.Exception) and isinstance(again, ArgumentError | MismatchError)
    ensure(right, (repr(error), repr(again)))
