"""Communicators of the same ranks: what they share, what each has of its own, and threads that make several at once."""

import os
import threading
from typing import Any

import numpy as np
import pytest
from internals import registry, resources
from mpi4py import MPI
from reference import agreed, communicator, ensure, ensure_none

import hpcoll
from hpcoll.comm.requests.call_hooks import HOOKS, BeginningCall
from hpcoll.runtime.engine.wait_policy import OWN_CORE, SHARED_CORE, TWO_CORES, wait_policy

pytestmark = [pytest.mark.mpi, pytest.mark.smoke]


def right(comm: hpcoll.Communicator) -> bool:
    """Say whether sums by an algorithm of ours are right, three times."""
    x = np.full(3, comm.rank + 1.0)
    for _ in range(3):
        y = np.zeros(3)
        comm.Allreduce(x, y, algorithm="direct")
        if y.tolist() != [comm.size * (comm.size + 1) / 2] * 3:
            return False
    return True


def test_duplicates_cost_no_communicator_of_the_library() -> None:
    """MPICH has 2048 in all; and each has its own message contexts, so that their messages never meet."""
    made = [communicator().Dup() for _ in range(6)]
    wrong = [comm for comm in made if not right(comm)]
    inside = [resources(comm) for comm in made]
    handles = {context.comm for one in inside for context in one.message_contexts}
    tags = [context.tags.first for one in inside for context in one.message_contexts]
    assert (agreed(wrong), len(handles), len(set(tags))) == ([], 1, 3 * 6)
    for comm in made:
        comm.Free()


def test_what_a_rank_has_no_more_is_made_anew_on_all() -> None:
    kept = communicator().Dup()
    freed = communicator().Dup()
    ensure_none([comm for comm in (kept, freed) if not right(comm)])
    freed.Free()  # its parts are kept
    if MPI.COMM_WORLD.rank == 0:
        registry().forget()
    comm = communicator().Dup()
    ensure_none([comm for comm in (comm, kept) if not right(comm)])
    assert resources(comm).team is not resources(kept).team
    for one in (comm, kept):
        one.Free()


def test_calls_of_a_freed_communicator_are_known_to_the_next() -> None:
    """They are planned once for the ranks; but neighbours, and handles of the library, are those of one communicator."""
    described = []

    class Watch:
        def begins(self, owner: Any, call: BeginningCall) -> None:
            described.append(call.method)

    def use(comm: hpcoll.Communicator, periodic: bool) -> list[Any]:
        grid = comm.Create_cart((comm.size,), (periodic,))
        x, y, z = np.full(3, comm.rank + 1.0), np.zeros(3), np.full((2, 3), -1.0)
        grid.Allreduce(x, y)
        grid.Iallreduce(x, y).Wait()
        grid.Allreduce(x, y, algorithm="native")
        grid.Neighbor_allgather(x, z)
        grid.Free()
        return [*y, *z[:, 0]]

    world = communicator()
    n, rank = world.size, world.rank
    sums = [n * (n + 1) / 2] * 3
    closed, around = (
        [rank or -1.0, rank + 2.0 if rank < n - 1 else -1.0],
        [(rank - 1) % n + 1.0, (rank + 1) % n + 1.0],
    )
    ensure((found := use(world, False)) == [*sums, *closed], found)
    with HOOKS.observe(Watch()):
        ensure((found := use(world, True)) == [*sums, *around], found)
    ensure("Allreduce" in described, "native")  # by its own handle
    ensure(described.count("Allreduce") == 1, described)


def test_settings_that_one_rank_changes_between_communicators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that know each other ask nothing again: a rank whose settings are others now must still be heard."""
    world = communicator()
    first = world.Dup()
    ensure(right(first), first)
    last = world.size - 1
    if world.rank == last:
        monkeypatch.setenv("HPCOLL_SEGMENT", "4096")
    second, said = world.Dup(), ""
    try:
        second.Allreduce(MPI.IN_PLACE, np.ones(1))
    except hpcoll.ArgumentError as error:
        said = str(error)
    if world.size > 1:
        expected = (
            f"rank {last}: HPCOLL_SEGMENT must be equal on all ranks, expected none as on rank 0, got 4096"
        )
        ensure(said == expected, said)
    monkeypatch.undo()
    ensure(right(second), second)
    for comm in (first, second):
        comm.Free()


@pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="needs MPI_THREAD_MULTIPLE")
def test_threads_with_a_duplicate_each() -> None:
    """Each makes its first collective, persistent requests and symmetric arrays while others do, in another order on each rank."""
    comms, wrong = [communicator().Dup() for _ in range(4)], list[Any]()

    def work(comm: hpcoll.Communicator) -> None:
        total = comm.size * (comm.size + 1) / 2
        for i in range(6):
            x, y = np.full(5, comm.rank + 1.0), np.zeros(5)
            request = comm.Allreduce_init(x, y, algorithm="direct")
            request.Start()
            request.Wait()
            request.Free()
            z = comm.zeros(5)
            z[:] = x
            comm.Allreduce(MPI.IN_PLACE, z, algorithm="direct")
            wrong.extend([] if y.tolist() == z.tolist() == [total] * 5 else [(i, y.tolist(), z.tolist())])

    threads = [threading.Thread(target=work, args=(comm,)) for comm in comms]
    for thread in threads[:: 1 if communicator().rank % 2 else -1]:
        thread.start()
    for thread in threads:
        thread.join()
    ensure_none(wrong)
    for comm in comms:
        comm.Free()


def test_how_ranks_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the cores that their host has for them and their helper threads; Open MPI's variable says that cores have several ranks."""
    for name in ("OMPI_MCA_mpi_yield_when_idle", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"):
        monkeypatch.delenv(name, raising=False)
    found = [TWO_CORES, TWO_CORES, OWN_CORE, OWN_CORE, SHARED_CORE]
    assert [wait_policy(nranks, 4) for nranks in (1, 2, 3, 4, 5)] == found
    for value in ("0", "false", "No", ""):
        monkeypatch.setenv("OMPI_MCA_mpi_yield_when_idle", value)
        assert wait_policy(4, 4) == OWN_CORE
    for value in ("1", "true"):
        monkeypatch.setenv("OMPI_MCA_mpi_yield_when_idle", value)
        assert wait_policy(1, 4) == SHARED_CORE
    monkeypatch.delenv("OMPI_MCA_mpi_yield_when_idle")
    for name in ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"):
        for nranks, policy in enumerate(found, 1):
            monkeypatch.setenv(name, str(nranks))
            assert wait_policy(1, 4) == policy
        monkeypatch.delenv(name)


def test_ranks_of_a_small_communicator_wait_as_all_on_their_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others want cores, too."""
    monkeypatch.delenv("OMPI_MCA_mpi_yield_when_idle", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 2 * MPI.COMM_WORLD.size - 1)
    monkeypatch.setenv("HPCOLL_SEGMENT", "8192")  # for a group that is new
    comm = hpcoll.Communicator(MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank))
    ensure(resources(comm).wait_policy == OWN_CORE, resources(comm).wait_policy)
    comm.Free()
