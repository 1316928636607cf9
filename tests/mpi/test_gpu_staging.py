"""Staging memory of calls on GPU arrays: what communicators of the same ranks have in turn, what each has of its own, what is refused."""

import gc
import threading
from typing import Any

import pytest
from gpu_cases import read
from gpu_double import LONG, WORLD, allreduce, communicator
from internals import resources
from mpi4py import MPI
from reference import ensure_none, raised

import hpcoll
from hpcoll.base.errors import DeviceError
from hpcoll.runtime.gpu.cuda import MemoryType
from hpcoll.runtime.gpu.device import gpu_of
from hpcoll.runtime.transports import window

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.double(forgives=("failures",))]

EACH = WORLD.size * (32 << 20)  # bytes of eight staging slots of 4 MiB for every rank
SLACK = 1 << 20  # bytes of ring slots and acknowledgements


def pinned_nbytes(double: Any) -> int:
    """Registered host memory, which has pages for that."""
    return sum(one.nbytes for one in double.memory if one.kind is MemoryType.HOST and not one.pinned)


def turns(comm: hpcoll.Communicator) -> list[Any]:
    """The message contexts that the communicators of a group have in turn, on this test's GPU."""
    return [one for one in resources(comm).team.turns._all if one.gpu is gpu_of(0)]


def iallreduce(comm: hpcoll.Communicator, double: Any) -> bool:
    send, recv = double.Array(LONG).fill(comm.rank + 1), double.Array(LONG).fill(0)
    comm.Iallreduce(send, recv).Wait()
    return bool((read(recv) == comm.size * (comm.size + 1) / 2).all())


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Refusals that were reported on this rank."""
    return [
        text for text in caplog.messages if text.startswith("GPU arrays travel by MPI on this node: rank ")
    ]


@pytest.mark.once
def test_blocking_calls_of_all_communicators_share_one(double: Any) -> None:
    before = window.mapped_nbytes()
    comms = [communicator("staged") for _ in range(4)]
    host, found = window.mapped_nbytes(), []
    for comm in (*comms, *comms[::-1], comms[2]):
        found += [
            allreduce(comm, double),
            pinned_nbytes(double) == EACH,
            window.mapped_nbytes() - host < EACH + SLACK,
        ]
    for comm in comms[1:]:
        comm.Free()
    found += [allreduce(comms[0], double), len(turns(comms[0])) == 1]
    comms[0].Free()
    del comm, comms
    gc.collect()
    found.append(window.mapped_nbytes() <= max(before, host))
    ensure_none([(i, one) for i, one in enumerate(found) if not one])


@pytest.mark.once
def test_calls_in_flight_have_memory_from_the_first_on(double: Any) -> None:
    """It goes with the communicator."""
    kept = communicator("staged")
    found: list[Any] = [allreduce(kept, double)]
    for _ in range(3):
        comm = communicator("staged")
        found += [allreduce(comm, double), pinned_nbytes(double) == EACH]
        for _ in range(3):
            found += [iallreduce(comm, double), pinned_nbytes(double) == 3 * EACH]
        comm.Free()
        gc.collect()
        found.append(pinned_nbytes(double) == EACH)
    ensure_none([(i, one) for i, one in enumerate(found) if not one])
    kept.Free()


@pytest.mark.once
def test_calls_of_roots_that_do_not_wait(double: Any) -> None:
    """A root is through before anybody has its messages, and goes on to another communicator."""
    comms, wrong = [communicator("staged") for _ in range(3)], []
    arrays = [double.Array(LONG) for _ in comms]
    for turn in range(6):
        for i, (comm, array) in enumerate(zip(comms, arrays)):
            array.fill(10 * turn + i if comm.rank == turn % comm.size else -1)
            comm.Bcast(array, root=turn % comm.size)
        wrong += [(turn, i) for i, array in enumerate(arrays) if not (read(array) == 10 * turn + i).all()]
    ensure_none(wrong or ([] if len(turns(comms[0])) == 1 else turns(comms[0])))
    for comm in comms:
        comm.Free()


@pytest.mark.parametrize("where", ["inside a call", "one call behind"])
@pytest.mark.once
def test_what_one_rank_still_uses_no_other_takes(where: str, double: Any) -> None:
    comms = [communicator("staged") for _ in range(2)]
    found = [allreduce(comms[0], double)]
    (first,) = turns(comms[0])
    idle, first.idle = first.idle, None if where == "inside a call" and WORLD.rank == 0 else first.idle
    first.ended += where == "one call behind" and WORLD.rank > 0
    found += [allreduce(comms[1], double), len(turns(comms[0])) == 2, pinned_nbytes(double) == 2 * EACH]
    first.idle, owners = idle, [one.owner for one in turns(comms[0])]
    found += [allreduce(comm, double) for comm in comms] + [owners == [one.owner for one in turns(comms[0])]]
    ensure_none([(i, one) for i, one in enumerate(found) if not one])
    for comm in comms:
        comm.Free()


@pytest.mark.once
def test_threads_have_as_many_as_are_at_work(double: Any) -> None:
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        pytest.skip("threads may not call MPI at once")
    comms: list[hpcoll.Communicator] = [communicator("staged") for _ in range(4)]
    found: list[bool] = []

    def work(mine: list[hpcoll.Communicator]) -> None:
        double.make_current(0)
        found.extend(allreduce(comm, double) for _ in range(8) for comm in mine)

    threads = [threading.Thread(target=work, args=(comms[i::2],)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ensure_none([] if found == [True] * 32 else found)
    assert len(turns(comms[0])) <= 4
    for comm in comms:
        comm.Free()


@pytest.mark.double(forgives=("races", "failures"))
@pytest.mark.once
def test_a_call_that_failed_keeps_its_own(double: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of it are still under way. The group, one of other settings than the others here, is never freed."""
    monkeypatch.setenv("HPCOLL_SEGMENT", str(1 << 20))
    comms = [communicator("staged") for _ in range(2)]
    found: list[Any] = [allreduce(comm, double) for comm in comms]
    send, recv = double.Array(LONG).fill(1), double.Array(LONG)
    WORLD.Barrier()
    double.fail("cuLaunchKernel", 719)
    found.append(isinstance(raised(lambda: comms[0].Allreduce(send, recv)), DeviceError))
    WORLD.Barrier()
    found += [allreduce(comms[1], double), len(turns(comms[1])) == 2]
    ensure_none([(i, one) for i, one in enumerate(found) if not one])


@pytest.mark.once
def test_a_limit_for_one(
    double: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocking calls of any number of communicators have enough; calls in flight travel by MPI, and say so."""
    comms = [communicator("staged") for _ in range(3)]
    found: list[Any] = [allreduce(comms[0], double)]
    node = resources(comms[0]).node
    limit = WORLD.allreduce(window.mapped_nbytes(), MPI.MAX) + EACH // 2
    monkeypatch.setattr(node, "_limit", limit)
    found += [allreduce(comm, double) for comm in (*comms, *comms)] + [said(caplog) == []]
    found += [iallreduce(comms[1], double) for _ in range(3)] + [
        len(said(caplog)) == 1 and "the limit is" in said(caplog)[0]
    ]
    found += [allreduce(comm, double) for comm in comms] + [
        iallreduce(comms[2], double),
        len(said(caplog)) == 2,
    ]
    found.append(pinned_nbytes(double) == EACH)
    ensure_none([(i, one) for i, one in enumerate(found) if not one])
    for comm in comms:
        comm.Free()


@pytest.mark.once
def test_memory_that_one_rank_cannot_pin(double: Any, caplog: pytest.LogCaptureFixture) -> None:
    """All ranks do without it then, in each kind of call; others try again."""
    comms, found = [communicator("staged") for _ in range(2)], []  # type: Any, list[Any]
    send, recv = double.Array(LONG).fill(1), double.Array(LONG)
    for n, start in enumerate(("blocking", "in flight", "persistent")):
        if WORLD.rank == 1:
            double.fail("cuMemHostRegister_v2", 2)
        if start == "persistent":
            request = comms[0].Allreduce_init(send, recv.fill(0))
            request.Start()
            request.Wait()
            request.Free()
            found.append((read(recv) == WORLD.size).all())
        else:
            found.append((iallreduce if n else allreduce)(comms[0], double))
        gc.collect()
        found += [
            pinned_nbytes(double) == 0,
            len(said(caplog)) == n + 1,
            "rank 1: shared memory cannot be pinned" in said(caplog)[n],
        ]
    found += [
        allreduce(comms[1], double),
        pinned_nbytes(double) == EACH,
        iallreduce(comms[1], double),
        pinned_nbytes(double) == 3 * EACH,
    ]
    found += [allreduce(comms[0], double), len(said(caplog)) == 3, len(turns(comms[0])) == 2]
    ensure_none([(i, one) for i, one in enumerate(found) if not one])
    for comm in comms:
        comm.Free()


@pytest.mark.mpi(min_size=3)
def test_what_one_node_is_refused_another_has(double: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was refused it there has its message context alone, on all nodes."""
    monkeypatch.setenv("HPCOLL_SHM_RANKS", "2")
    comms, found = [communicator("staged") for _ in range(3)], []  # type: Any, list[Any]
    if WORLD.rank == 0:
        double.fail("cuMemHostRegister_v2", 2)
    found += [allreduce(comm, double) for comm in (*comms, *comms)]
    neighbours = min(2, WORLD.size - WORLD.rank // 2 * 2)
    each = 0 if neighbours == 1 else neighbours * (32 << 20)
    found += [
        len(turns(comms[0])) == 2,
        turns(comms[0])[0].ended == (0 if WORLD.rank < 2 else 2),
        turns(comms[0])[1].ended == 4,
    ]
    found.append(pinned_nbytes(double) == (each if WORLD.rank < 2 else 2 * each))
    ensure_none([(i, one) for i, one in enumerate(found) if not one])
    for comm in comms:
        comm.Free()


@pytest.mark.once
def test_a_refusal_says_that_old_systems_need_all_at_once(
    double: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    comm = communicator("staged")
    monkeypatch.setattr(window, "populates", lambda: False)
    monkeypatch.setattr(resources(comm).node, "_limit", 0)
    found = [allreduce(comm, double), len(said(caplog)) == 1, "before Linux 5.14" in " ".join(said(caplog))]
    ensure_none([] if all(found) else caplog.messages)
    comm.Free()
