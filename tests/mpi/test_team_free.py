"""Communicators that are freed while messages are under way to their ranks: none of these comes to one that is made later."""

import time
from typing import Any

import numpy as np
import pytest
from failed_calls import and_on, x
from internals import free_kept, registry, resources
from mpi4py import MPI
from reference import agreed, comes, ensure, ensure_none, fresh, raised, unless

import hpcoll
from hpcoll import MismatchError
from hpcoll.comm.team.team import Team

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.twice]

# of communicators, which get context ids that were given back, and of messages on each
TAG, LATER, MESSAGES = (
    5,
    4,
    40,
)
MOST_S = 5.0  # for one of them


def reversed_ranks() -> MPI.Intracomm:
    return MPI.COMM_WORLD.Split(0, -MPI.COMM_WORLD.rank)


@pytest.fixture
def comm(monkeypatch: pytest.MonkeyPatch) -> hpcoll.Communicator:
    """Of ranks that have messages for each other, in an order in which there is no other."""
    monkeypatch.setenv("HPCOLL_SHM", "0")
    free_kept()
    monkeypatch.setattr(registry(), "_teams", {})  # one on which a call has failed serves for ever
    made = hpcoll.Communicator(reversed_ranks())
    made.Barrier()
    return made


def fail(comm: hpcoll.Communicator) -> None:
    error = raised(
        lambda: and_on(comm, lambda: comm.Allreduce(x(8), x(8), MPI.MAX if comm.rank else MPI.SUM))
    )
    ensure(isinstance(error, MismatchError), repr(error))


def freed_while(comm: hpcoll.Communicator, send: Any) -> Team:
    """Freed by its rank 0 before the others send to it, which then free it, too."""
    group: Team = resources(comm).team
    mine = min(comm.rank, 1)
    for turn in range(2):
        if mine == turn:
            if turn:
                send(group)
            comm.Free()
            free_kept()  # else parts are kept for the next
        MPI.COMM_WORLD.Barrier()
    return group


def strayed() -> list[str]:
    """Return what is not right with messages on communicators that are made now.

    Several on each: Open MPI delivers one that strays in place of that with the same number.
    """
    made, wrong = [reversed_ranks() for _ in range(LATER)], list[str]()
    for i in range(LATER * MESSAGES):
        comm = made[i // MESSAGES]
        after, before, got = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size, np.zeros(1)
        requests = [comm.Irecv(got, before, TAG), comm.Isend(np.full(1, float(i)), after, TAG)]
        if not comes(lambda requests=requests: MPI.Request.Testall(requests), MOST_S):
            wrong.append(f"message {i} does not come")
            break
        wrong += unless(got[0] == i, f"message {i}: {got}")
    found = agreed(wrong)
    for comm in made if not found else ():
        comm.Free()
    return found


def test_what_a_failed_call_has_sent(comm: hpcoll.Communicator) -> None:
    """A rank that has given up frees it while another one sends yet."""
    fail(comm)
    sent = list[tuple[MPI.Request, np.ndarray]]()

    def send(group: Team) -> None:
        late = np.full(1, 77.0)
        sent.append((group.comm.Isend(late, 0, TAG), late))

    group = freed_while(comm, send)
    assert strayed() == []
    later = hpcoll.Communicator(reversed_ranks())
    total = np.zeros(1)
    later.Allreduce(np.ones(1), total)
    wrong = unless(resources(later).team is group and total[0] == later.size, total)  # it serves on
    later.Free()
    ensure_none(wrong)


def test_what_ranks_ask_each_other(comm: hpcoll.Communicator) -> None:
    """Nobody waits for an answer that comes late; the communicator of the library goes all the same, once it has come."""
    group = freed_while(comm, lambda group: group.channel._send(0, {"known": []}))
    assert strayed() == []

    def gone() -> bool:
        registry()._free_closed()
        return group.comm == MPI.COMM_NULL

    ensure(comes(gone), "it stays")


@pytest.mark.once
def test_many_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of whose ranks are late, so that others ask: all go, and nothing that comes late meets another one's calls."""
    monkeypatch.setenv("HPCOLL_SHM", "0")
    world, wrong = MPI.COMM_WORLD, list[Any]()
    free_kept()
    for turn in range(60):
        comm = hpcoll.Communicator(world.Split(0, (world.rank * (turn % 5 + 1) + turn) % world.size))
        for i in range(2):
            if turn % 20 == 0 and comm.rank == i:
                time.sleep(0.11)  # others ask after 0.1 s
            total = np.zeros(1)
            comm.Allreduce(np.full(1, float(turn)), total)
            wrong += unless(total[0] == turn * comm.size, (turn, i, total))
        comm.Free()
        registry()._drop(0)
    fresh().Free()  # all ranks have come here

    def all_gone() -> bool:
        registry()._free_closed()
        return not registry()._closed

    wrong += unless(comes(all_gone), len(registry()._closed))
    ensure_none(wrong)
