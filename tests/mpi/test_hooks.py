"""`hpcoll.hooks`: functions of the program hear of every collective, in every form, and calls go on whatever such a function does."""

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpcoll
from hpcoll.hooks import CallEvent

pytestmark = pytest.mark.mpi
X = np.ones(4)


def in_flight(comm: Any) -> None:
    comm.Iallreduce(X, np.zeros(4), tag="halo").Wait()


def started(comm: Any) -> None:
    request = comm.Allreduce_init(X, np.zeros(4))
    for _ in range(2):
        request.Start()
        request.Wait()
    request.Free()


@pytest.mark.parametrize(
    ("call", "methods", "nbytes"),
    [
        (lambda comm: comm.Allreduce(X, np.zeros(4)), ["Allreduce"], 32),
        (lambda comm: comm.Bcast(buf=np.ones(2), root=0), ["Bcast"], 16),
        (lambda comm: comm.Barrier(), ["Barrier"], 1),
        (lambda comm: comm.allreduce(1), ["allreduce"], None),
        (in_flight, ["Iallreduce"], 32),
        (started, 3 * ["Allreduce_init"], 32),
    ],
)
def test_a_call_begins_and_ends(call: Any, methods: list[str], nbytes: int | None) -> None:
    comm, found = hpcoll.Communicator(MPI.COMM_WORLD.Dup()), list[CallEvent]()
    call(comm)
    with hpcoll.hooks.register(found.append), comm.region("step"):
        for _ in range(3):  # as at first, and like an earlier one
            call(comm)
    call(comm)
    assert [one.what for one in found] == ["begins", "ends"] * 3 * len(methods)
    assert [one.method for one in found[::2]] == 3 * methods
    assert all(begin.number == end.number for begin, end in zip(found[::2], found[1::2], strict=True))
    assert {one.nbytes for one in found} == {nbytes}
    assert {one.region for one in found} == {"step/halo" if methods == ["Iallreduce"] else "step"}
    assert all(one.comm is comm and __file__ in one.place and one.seconds < 60 for one in found)
    comm.Free()


def test_a_call_fails() -> None:
    found = list[CallEvent]()
    comm = hpcoll.Communicator(MPI.COMM_WORLD.Dup())
    with hpcoll.hooks.register(found.append), pytest.raises(hpcoll.ArgumentError) as raised:
        comm.Allreduce(np.ones(3), np.zeros(4))
    assert [one.what for one in found] == ["begins", "fails"]
    assert found[1].error is raised.value
    assert found[1].nbytes is None
    comm.Free()


@pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="a rank alone awaits nobody")
@pytest.mark.parametrize("form", ["blocking", "in flight"])
def test_a_call_stalls_once(form: str) -> None:
    comm, found = hpcoll.Communicator(MPI.COMM_WORLD.Dup()), list[CallEvent]()

    def told(event: CallEvent) -> None:
        found.append(event)
        if event.what == "stalls":
            MPI.COMM_WORLD.send(None, 1)

    comm.Barrier()
    with hpcoll.hooks.register(told):
        for _ in range(1, comm.size if comm.rank == 1 else 1):
            MPI.COMM_WORLD.recv()
        comm.Barrier() if form == "blocking" else comm.Ibarrier().Wait()
    assert [one.what for one in found] == ["begins", *(["stalls"] if comm.rank != 1 else []), "ends"]
    assert all(1 < one.seconds < 60 for one in found if one.what == "stalls")
    comm.Free()


def test_what_a_function_raises(caplog: pytest.LogCaptureFixture) -> None:
    """It is removed with a warning; others go on, and so does the call. What ends programs does."""
    comm, found = hpcoll.Communicator(MPI.COMM_WORLD.Dup()), list[CallEvent]()

    def wrong(event: CallEvent) -> None:
        raise KeyError("none such")

    def own_calls(event: CallEvent) -> None:
        comm.Barrier()  # nobody is told of it

    with hpcoll.hooks.register(wrong), hpcoll.hooks.register(own_calls), hpcoll.hooks.register(found.append):
        for _ in range(2):
            comm.Allreduce(MPI.IN_PLACE, np.ones(1))
    assert [one.what for one in found] == ["begins", "ends"] * 2
    assert [one.getMessage() for one in caplog.records if "hook" in one.getMessage()] == [
        f"rank {comm.rank}: hook test_what_a_function_raises.<locals>.wrong is removed: KeyError: 'none such'"
    ]
    with (
        hpcoll.hooks.register(lambda event: (_ for _ in ()).throw(KeyboardInterrupt)),
        pytest.raises(KeyboardInterrupt),
    ):
        comm.Barrier()
    comm.Free()


def test_nothing_is_left_when_the_last_one_is_removed() -> None:
    before = hpcoll.Communicator.Allreduce, dict(vars(hpcoll.Communicator))
    handles = [hpcoll.hooks.register(print), hpcoll.hooks.register(print)]
    assert hpcoll.Communicator.Allreduce is not before[0]
    handles[0].remove()
    handles[0].remove()
    assert hpcoll.Communicator.Allreduce is not before[0]
    handles[1].remove()
    assert (hpcoll.Communicator.Allreduce, dict(vars(hpcoll.Communicator))) == before
