"""The first calls on a communicator whose ranks know each other: the library's own, where all ranks make the same and no bit can differ."""

import time
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from reference import agreed, communicator, ensure, ensure_none, raised

import hpcoll

pytestmark = [pytest.mark.mpi, pytest.mark.smoke]
SEVERAL = pytest.mark.mpi(min_size=2)


def ways(comm: hpcoll.Communicator) -> list[tuple[str, str, int]]:
    """Return operation, algorithm and number of calls of each line of the ledger."""
    return sorted((row.operation, row.algorithm, row.calls) for row in comm.ledger.rows())


def use(comm: hpcoll.Communicator, method: str) -> list[Any]:
    """Call a method, and return what came out, and what should have."""
    n, rank = comm.size, comm.rank
    x, every = np.arange(n) + 10 * rank, np.zeros(n * n, int)
    if method == "Bcast":
        comm.Bcast(x, n - 1)
        return [x.tolist(), (np.arange(n) + 10 * (n - 1)).tolist()]
    if method == "Allreduce":
        comm.Allreduce(x, every[:n])
        return [every[:n].tolist(), (n * np.arange(n) + 5 * n * (n - 1)).tolist()]
    if method == "Allgather":
        comm.Allgather(x, every)
        return [every.tolist(), [i + 10 * j for j in range(n) for i in range(n)]]
    comm.Alltoall(x, every[:n])
    return [every[:n].tolist(), [rank + 10 * j for j in range(n)]]


@pytest.mark.parametrize("method", ["Bcast", "Allreduce", "Allgather", "Alltoall"])
def test_first_by_the_library_second_by_hpcoll(method: str) -> None:
    comm = communicator().Dup()
    first = use(comm, method)
    once = ways(comm)
    second = use(comm, method)
    twice = ways(comm)
    comm.Free()
    ensure(first[0] == first[1], first)
    ensure(second[0] == second[1], second)
    ensure(once == [(method.lower(), "native", 1)], once)
    ensure(sum(ncalls for _, _, ncalls in twice) == 2 and len(twice) == 2, twice)


def test_sums_of_floats_have_the_bits_of_later_ones() -> None:
    """On more ranks than two the library may add in another order."""
    comm = communicator().Dup()
    x, first, second = np.random.default_rng(comm.rank).random(5), np.empty(5), np.empty(5)
    comm.Allreduce(x, first)
    native = [row.algorithm for row in comm.ledger.rows()] == ["native"]
    comm.Allreduce(x, second)
    comm.Free()
    ensure(
        first.tobytes() == second.tobytes() and native == (MPI.COMM_WORLD.size <= 2), (first, second, native)
    )


def test_exchanges_of_types_are_four() -> None:
    comm = communicator().Dup()
    n, wrong = comm.size, []
    row = MPI.INT64_T.Create_vector(2, 1, 2).Commit()
    for turn in range(6):
        x, y = np.arange(3 * n) + 100 * comm.rank + turn, np.zeros(3 * n, int)
        places = ([1] * n, [24 * j for j in range(n)])
        comm.Alltoallw([x, places, [row] * n], [y, places, [row] * n])
        got, right = (
            y.reshape(n, 3)[:, ::2].tolist(),
            [[3 * comm.rank + 100 * j + turn + i for i in (0, 2)] for j in range(n)],
        )
        wrong += [] if got == right else [(turn, got, right)]
    row.Free()
    ncalls = {algorithm: number for _, algorithm, number in ways(comm)}
    comm.Free()
    ensure_none(wrong)
    ensure(ncalls["native"] >= 4 and sum(ncalls.values()) == 6, ncalls)


@SEVERAL
@pytest.mark.parametrize("other", ["Barrier", "Bcast", "shorter", "other type", "Alltoallw"])
def test_what_differs_is_told_on_all_ranks(other: str) -> None:
    """Nothing is lost by the library's way: ranks find out before any of them calls it."""
    comm = communicator().Dup()
    x = np.arange(4 * comm.size)

    def call() -> None:
        if comm.rank != comm.size - 1:
            comm.Allreduce(x, x.copy())
        elif other == "Barrier":
            comm.Barrier()
        elif other == "Bcast":
            comm.Bcast(x)
        elif other == "shorter":
            comm.Allreduce(x[:3], np.empty(3, int))
        elif other == "other type":
            comm.Allreduce(x.astype(float), np.empty(x.size))
        else:
            places, types = ([8] * comm.size, [0] * comm.size), [MPI.BYTE] * comm.size
            comm.Alltoallw([x, places, types], [x.copy(), places, types])

    error = raised(call)
    told = agreed([type(error).__name__, str(error)])
    assert [what for _, what in told[::2]] == ["MismatchError"] * comm.size, told
    assert "Allreduce" in told[1][1]


@SEVERAL
def test_one_rank_whose_array_is_no_plain_one() -> None:
    comm = communicator().Dup()
    x, y = np.arange(0, 10, 2), np.zeros(5, int)
    comm.Allreduce([x, MPI.INT64_T] if comm.rank == 0 else x, y)
    comm.Free()
    ensure(y.tolist() == [MPI.COMM_WORLD.size * k for k in range(0, 10, 2)], y)


def test_settings_that_ask_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the user has forced holds from the first call on."""
    monkeypatch.setenv("HPCOLL_BCAST", "binomial")
    parent = hpcoll.Communicator(MPI.COMM_WORLD.Dup())
    comm = parent.Dup()
    comm.Bcast(np.zeros(3))
    found = ways(comm)
    comm.Free()
    parent.Free()
    ensure(found == [("bcast", "binomial", 1)], found)


@SEVERAL
def test_blocks_outside_of_their_array() -> None:
    """The library would read what is not the program's."""
    comm = communicator().Dup()
    x = np.arange(4 * comm.size)
    row = MPI.INT64_T.Create_contiguous(5).Commit()
    spec = [x, ([1] * comm.size, [32 * j for j in range(comm.size)]), [row] * comm.size]
    error = raised(lambda: comm.Alltoallw(spec, [np.zeros(5 * comm.size, int), *spec[1:]]))
    row.Free()
    comm.Free()
    told = agreed([type(error).__name__])
    assert {name for _, name in told} == {"ArgumentError"}, told


@SEVERAL
def test_calls_in_flight_come_before() -> None:
    """A blocking call behind one in flight is no first one: a thread may be at the first use already."""
    wrong, total = [], MPI.COMM_WORLD.size * (MPI.COMM_WORLD.size + 1) // 2
    for turn in range(10):
        comm = communicator().Dup()
        x, y, z = np.full(3, comm.rank + 1), np.zeros(3, int), np.zeros(3, int)
        if comm.rank == turn % comm.size:
            time.sleep(0.002)
        request = comm.Iallreduce(x, y)
        comm.Allreduce(x, z)
        request.Wait()
        comm.Free()
        wrong += [] if y.tolist() == z.tolist() == [total] * 3 else [(turn, y, z)]
    ensure_none(wrong)
