"""Persistent collectives: started again and again with other numbers, ended in every way, refused when misused, and nothing left behind."""

import gc
import os
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from forms import Case, every, own_order, prepare
from mpi4py import MPI
from reference import communicator, ensure, ensure_none, unless
from test_nonblocking import FINISH, free

import hpcoll
from hpcoll.base.errors import ArgumentError
from hpcoll.comm.requests.persistent_request import PersistentRequest

pytestmark = [pytest.mark.mpi, pytest.mark.twice]
TURNS = 4 if MPI.COMM_WORLD.size <= 2 else 2  # more ranks than cores take their time


def ours(comm: Any, **more: Any) -> Case:
    return Case(comm, "Allreduce", **more)


def turns(
    cases: list[Case], requests: list[Any], finish: Callable[[list[Any]], Any], order: list[int] | None = None
) -> list[Any]:
    """Starts all with new numbers a few times; what was wrong."""
    wrong = []
    for turn in range(TURNS):
        for case in cases:
            case.fill(turn)
        for i in order or range(len(requests)):
            requests[i].Start()
        finish(requests)
        wrong += [(turn, case) for case in cases if not case.good()]
    return wrong


@pytest.mark.smoke
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("count", [0, 5, 2049])
def test_all_again(count: int, in_place: bool) -> None:
    """Every collective, started together, in an order of the rank's own."""
    comm = communicator()
    cases = every(comm, count, in_place, roots=[comm.size - 1] if count != 5 else None)
    requests = [prepare(comm, case) for case in cases]
    # which MPI wants started in one order
    native = [i for i, request in enumerate(requests) if not isinstance(request, PersistentRequest)]
    order = native + [i for i in own_order(requests, comm) if i not in native]

    def finish(all_of_them: list[Any]) -> None:
        for i in own_order(all_of_them, comm)[::-1]:
            all_of_them[i].Wait()

    wrong = turns(cases, requests, finish, order)
    free(requests)
    ensure_none(wrong)


@pytest.mark.parametrize("function", FINISH)
def test_through_mpi(function: str) -> None:
    """The request that MPI frees at the end is there again at the next start; some short, some long, one that ends in Python."""
    comm = communicator()
    cases = [ours(comm, count=count, in_place=in_place) for count in (3, 3000) for in_place in (False, True)]
    cases += [
        ours(comm, dtype=np.float16),
        Case(comm, "Barrier"),
        Case(comm, "Reduce_scatter_block", 3, in_place=True),
    ]
    requests = [
        prepare(comm, case, algorithm="dissemination" if case.method == "Barrier" else "direct")
        for case in cases
    ]
    wrong = turns(cases, requests, FINISH[function])
    for finish in (MPI.Request.Waitall, FINISH["each"], FINISH[function]):
        wrong += turns(cases, requests, finish)
    free(requests)
    ensure_none(wrong)


@pytest.mark.parametrize(
    "dtype", [np.float64, np.float16, ml_dtypes.bfloat16], ids=["float64", "float16", "bfloat16"]
)
@pytest.mark.parametrize("name", ["premul_sum", "avg", "max"])
def test_numbers_that_change(name: str, dtype: Any) -> None:
    """What is sent is described anew where it is a copy."""
    comm = communicator()
    op = {"premul_sum": hpcoll.premul_sum(2.0), "avg": hpcoll.AVG, "max": MPI.MAX}[name]
    wrong = []
    for count in (4, 5000):
        x, found = np.zeros(count, dtype), np.zeros(count, dtype)
        request = comm.Allreduce_init(x, found, op)
        for turn in range(TURNS):
            x[:], found[:] = comm.rank + turn, -1
            request.Start()
            request.Wait()
            total = sum(range(comm.size)) + turn * comm.size
            wanted = {
                "premul_sum": 2 * total,
                "avg": np.asarray(total / comm.size).astype(dtype),
                "max": comm.size - 1 + turn,
            }[name]
            wrong += unless(
                (found == wanted).all() and (x == comm.rank + turn).all(), (count, turn, found[0], wanted)
            )
        request.Free()
    ensure_none(wrong)


@pytest.mark.parametrize("count", [3, 50_000])
def test_rules(count: int) -> None:
    """Wait before Start returns; Start before Wait, Free while it runs, Start after Free and Cancel are refused and change nothing."""
    comm = communicator()
    case = ours(comm, count=count)
    request: Any = prepare(comm, case, algorithm="ring")
    assert request.Wait()
    assert request.Test()
    assert MPI.Request.Waitall([request])
    for _ in range(2):
        case.fill(0)
        request.Start()
        for refused in (request.Start, request.Free):
            with pytest.raises(
                ArgumentError,
                match=rf"^rank {comm.rank}: allreduce/ring of .* was started and not waited for yet$",
            ):
                refused()
        with pytest.raises(ArgumentError, match="a collective in flight cannot be cancelled: wait for it"):
            request.Cancel()
        assert request.Wait()
        assert request.Wait()
        ensure(case.good(), case)
    request.Free()
    request.Free()
    with pytest.raises(ArgumentError, match=rf"^rank {comm.rank}: allreduce/ring of .* was freed$"):
        request.Start()
    assert request.Wait()


@pytest.mark.parametrize("count", [3, 50_000])
def test_after_the_communicator(count: int) -> None:
    """What runs when the communicator is freed is done then; it cannot be started again."""
    comm = communicator().Dup()
    rank, case = comm.rank, ours(comm, count=count)
    running, idle = (prepare(comm, one, algorithm="ring") for one in (case, ours(comm, count=count)))
    running.Start()
    comm.Free()
    found = case.good()
    assert running.Wait()
    assert running.Test()
    for request in (running, idle):
        with pytest.raises(
            ArgumentError,
            match=rf"^rank {rank}: this communicator cannot be used: the communicator was freed$",
        ):
            request.Start()
        request.Free()
    ensure(found, case)


@pytest.mark.once
def test_no_warning_after_the_end() -> None:
    """However it ended, it was waited for."""
    comm = communicator()
    requests = {
        (count, name): prepare(comm, ours(comm, count=count), algorithm="direct")
        for count in (3, 50_000)
        for name in FINISH
    }
    for (_, name), request in requests.items():
        request.Start()
        FINISH[name]([request])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        del request
        requests.clear()
        gc.collect()
    assert said == []


def held() -> tuple[int, int]:
    """Mappings of shared memory and open files of this process."""
    return Path("/proc/self/maps").read_text().count("(deleted)"), len(os.listdir("/proc/self/fd"))


@pytest.mark.once
@pytest.mark.parametrize("how", ["dropped", "freed"])
def test_nothing_is_left(how: str) -> None:
    """Many made, run and given up: memory, files, slots are as before; so are those that stay, as objects, after Free."""
    comm = communicator().Dup()
    board = hpcoll.comm.requests.progress_thread.board()
    kept: list[Any] = []

    def one() -> None:
        request: Any = prepare(comm, ours(comm), algorithm="direct")
        request.Start()
        request.Wait()
        if how == "freed":
            request.Free()
            kept.append(request)

    for _ in range(40):  # until as many message contexts are there as are made at once
        one()
    kept.clear()
    gc.collect()
    before = *held(), len(board.free)
    for _ in range(40):
        one()
    gc.collect()
    after = *held(), len(board.free)
    comm.Free()
    ensure(after == before, (before, after))


def test_arrays_of_the_first_request_go() -> None:
    """What later requests are found by holds no array of the program's."""
    comm = communicator()
    arrays = [np.ones(3), np.zeros(3)]
    gone = [weakref.ref(array) for array in arrays]
    request = comm.Allreduce_init(*arrays)
    request.Start()
    request.Wait()
    request.Free()
    del request, arrays
    ensure(gone[0]() is gone[1]() is None, "an array stays")


def test_a_library_without_persistent_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open MPI 4.1: nothing that hpcoll can do is left to it, however long the message is, and it cannot be asked for by name."""
    monkeypatch.setattr("hpcoll.comm.context.context.has_persistent_collectives", lambda: False)
    comm = communicator()
    cases = every(comm, 40_000, roots=[0])  # of which the library's Scan would be chosen
    requests = [prepare(comm, case) for case in cases]
    wrong = [case for case, request in zip(cases, requests) if type(request).__name__ != "PersistentRequest"]
    for request in requests:
        request.Start()
    for i in own_order(requests, comm):
        requests[i].Wait()
    wrong += [case for case in cases if not case.good()]
    free(requests)
    ensure_none(wrong)
    with pytest.raises(ArgumentError, match="element type or form"):
        prepare(comm, ours(comm), algorithm="native")


@pytest.mark.parametrize("count", [3, 50_000])
def test_statuses(count: int) -> None:
    """Whichever way the program waits, and where nothing was started, a status is filled as one of a request that received nothing."""
    comm = communicator()
    requests: list[Any] = [prepare(comm, ours(comm, count=count), algorithm="direct") for _ in range(2)]
    ways: dict[str, Callable[[Any, MPI.Status], Any]] = {
        "Wait": lambda one, status: one.Wait(status),
        "wait": lambda one, status: one.wait(status),
        "Waitall": lambda one, status: MPI.Request.Waitall([one], [status]),
        "Waitany": lambda one, status: MPI.Request.Waitany([one], status),
        "Waitsome": lambda one, status: MPI.Request.Waitsome([one], [status]),
    }
    wrong = []
    for name, wait in ways.items():
        for started in (True, True, False):
            status = MPI.Status()
            status.Set_source(77), status.Set_tag(99), status.Set_cancelled(True)
            if started:
                MPI.Prequest.Startall(requests)
                requests[1].Wait()
            wait(requests[0], status)
            found = status.Get_source(), status.Get_tag(), status.Get_count(MPI.BYTE), status.Is_cancelled()
            nobody = not started and name == "Waitsome"  # which then sets none
            wrong += unless(
                nobody or found == (MPI.ANY_SOURCE, MPI.ANY_TAG, 0, False), (name, started, found)
            )
    free(requests)
    ensure_none(wrong)


def test_startall() -> None:
    """Of requests of hpcoll's, of the library's that hpcoll made, and of plain ones; the library's own class has it, too."""
    comm, wrong = communicator(), []
    cases = [ours(comm), ours(comm, count=3000), Case(comm, "Bcast"), ours(comm)]
    requests = [
        prepare(comm, case, **more)
        for case, more in zip(cases, ({}, {}, {"algorithm": "native"}, {}), strict=True)
    ]
    number, found = np.full(1, comm.rank), np.zeros(1, int)
    plain = [MPI.COMM_SELF.Send_init(number, 0), MPI.COMM_SELF.Recv_init(found, 0)]
    for start in (MPI.Prequest.Startall, PersistentRequest.Startall):
        for case in cases:
            case.fill(0)
        start([*plain, *requests])
        MPI.Request.Waitall([*requests, *plain])
        wrong += [case for case in cases if not case.good()] + unless(found[0] == comm.rank, found)
        found[0] = -1
        start(plain)
        MPI.Request.Waitall(plain)
        with pytest.raises(ArgumentError, match="was started and not waited for yet"):
            start([requests[1], requests[1]])
        requests[1].Wait()
    free([*requests, *plain])
    ensure_none(wrong)
