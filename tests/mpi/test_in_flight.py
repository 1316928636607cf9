"""Life of a collective in flight: what it keeps alive, what ends it, and threads and forks meanwhile."""

import gc
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from forms import Case, issue, prepare
from mpi4py import MPI
from reference import SOON_S, communicator, ensure, ensure_none, fresh, unless
from test_nonblocking import FINISH

from hpcoll.base.errors import ArgumentError, HpcollError
from hpcoll.comm.requests.progress_thread import board
from hpcoll.runtime.program import progress_fields as progress

pytestmark = [pytest.mark.mpi, pytest.mark.twice]
SEVERAL = pytest.mark.mpi(min_size=2)
MEBIBYTE = 1 << 17  # elements


def late(comm: Any) -> bool:
    """Say whether this is the rank for which the others wait; it comes a little later."""
    if comm.rank == comm.size - 1:
        time.sleep(0.05)
        return True
    return False


@pytest.mark.once
@SEVERAL
@pytest.mark.parametrize("way", ["issued", "started"])
@pytest.mark.parametrize("length", [5, MEBIBYTE])
def test_dropped(length: int, way: str) -> None:
    """The root forgets request and array, both die, and the memory is used again: everybody gets what was there, and it warns."""
    comm = fresh()
    x = np.full(length, 7.0 if comm.rank == 0 else 0.0)
    if comm.rank:
        late(comm)
        request = (
            comm.Bcast_init(x, algorithm="tree") if way == "started" else comm.Ibcast(x, algorithm="tree")
        )
        request.Start() if way == "started" else None
        request.Wait()
    else:
        request = (
            comm.Bcast_init(x, algorithm="tree") if way == "started" else comm.Ibcast(x, algorithm="tree")
        )
        request.Start() if way == "started" else None
        del x
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            del request
            gc.collect()
        waste = [np.full(length, -1.0) for _ in range(20)]
        ended_at_once = way == "started" and not said
        assert ended_at_once or [str(one.message) for one in said] == [
            f"bcast/tree of {8 * length} elements of uint8: its request was dropped and never waited for"
        ]
        x = np.full(length, 7.0)
        assert waste[0][0] == -1
    comm.Barrier()
    comm.Ibarrier(algorithm="dissemination").Wait()
    comm.Free()
    ensure((x == 7).all(), x)


@SEVERAL
@pytest.mark.parametrize("method", ["Allreduce", "Bcast", "Scatterv", "Barrier"])
def test_like_earlier_ones_behind_others(method: str) -> None:
    """Several of one kind at once, again and again, of sizes of their own: one rank is late, so that most must wait for those before."""
    comm = communicator().Dup()
    comm.Barrier()
    wrong = []
    for turn in range(5):
        late(comm)
        cases = [Case(comm, method, 40 + 7 * k + turn) for k in range(6)]
        for case in cases:
            case.fill(turn)
        requests = [issue(comm, case) for case in cases]
        MPI.Request.Waitall(requests) if turn % 2 else [request.Wait() for request in reversed(requests)]
        wrong += [case for case in cases if not case.good()]
    comm.Free()
    ensure_none(wrong)


@pytest.mark.once
@SEVERAL
def test_what_a_request_has_is_nobody_elses_until_it_is_waited_for() -> None:
    """Calls of one kind: some have ended and were not waited for, others are in flight when these are, and more are issued then."""
    comm = communicator().Dup()
    comm.Barrier()
    wrong = []
    for turn in range(6):
        cases = [Case(comm, "Allreduce", 40 + k) for k in range(6)]
        for case in cases:
            case.fill(turn)
        late(comm)
        first = [issue(comm, case) for case in cases[:2]]
        time.sleep(0.1)
        late(comm)
        second = [issue(comm, case) for case in cases[2:4]]
        MPI.Request.Waitall(first)
        third = [issue(comm, case) for case in cases[4:]]
        MPI.Request.Waitall(second + third)
        wrong += [(turn, case) for case in cases if not case.good()]
    comm.Free()
    ensure_none(wrong)


@pytest.mark.once
def test_dropped_by_the_hundred() -> None:
    """No slot, no engine is lost."""
    comm = communicator().Dup()
    before = len(board().free)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        for k in range(600):
            comm.Ibcast(np.zeros(3 if k % 2 else 3000), algorithm="direct")
            if k % 50 == 49:
                comm.Ibarrier(algorithm="dissemination").Wait()
                comm.Barrier()
        gc.collect()
    comm.Free()
    ensure(len(board().free) == before, (before, len(board().free)))


@pytest.mark.parametrize("count", [3, 3000, MEBIBYTE])
def test_communicator_freed(count: int) -> None:
    """Free waits for what is in flight; the requests say that it is done."""
    comm = communicator().Dup()
    late(comm)
    cases = [Case(comm, method, count) for method in ("Allreduce", "Bcast", "Alltoall")]
    requests = [issue(comm, case, algorithm="direct") for case in cases]
    comm.Free()
    wrong = [case for case in cases if not case.good()]
    for request in requests:
        assert request.Wait()
    ensure_none(wrong)


def test_two_threads() -> None:
    """Each on a communicator of its own, through our functions and through MPI's."""
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        pytest.skip("needs MPI.THREAD_MULTIPLE")
    wrong: list[Any] = []

    def work(comm: Any, finish: Callable[[list[Any]], Any]) -> None:
        kept = Case(comm, "Allreduce", 4)
        request = prepare(comm, kept, algorithm="direct")
        for k in range(20):
            cases = [Case(comm, "Allreduce", 3 + 3000 * (k % 2)), Case(comm, "Allgather", 3, in_place=True)]
            kept.fill(k)
            request.Start()
            finish([*(issue(comm, case, algorithm="direct") for case in cases), request])
            wrong.extend(case for case in (*cases, kept) if not case.good())
        request.Free()

    comms = [communicator().Dup() for _ in range(3)]
    ways = [FINISH[name] for name in ("each", "Waitall", "Testall")]
    threads = [threading.Thread(target=work, args=one) for one in zip(comms, ways, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for comm in comms:
        comm.Free()
    ensure_none(wrong)
    assert board().words[progress.WAITERS] == 0


@pytest.mark.once
@SEVERAL
@pytest.mark.parametrize(("form", "ncalls"), [("in flight", 80), ("persistent", 20)])
def test_threads_that_start_on_one_communicator(form: str, ncalls: int) -> None:
    """Who comes while another thread starts a call is refused before anything leaves; ranks stay in step, and all answers are right."""
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        pytest.skip("needs MPI.THREAD_MULTIPLE")
    comm, wrong = communicator().Dup(), list[Any]()
    comm.Iallreduce(np.ones(3), np.zeros(3)).Wait()

    def work() -> None:
        left = ncalls // (comm.size - 1)  # who is refused tries again at once, and needs a core for it
        while left and not wrong:
            total = np.zeros(3)
            try:
                if form == "persistent":
                    request = comm.Allreduce_init(np.ones(3), total, timeout=SOON_S)
                    request.Start()
                    request.Wait()
                    request.Free()
                else:
                    comm.Iallreduce(np.ones(3), total, timeout=SOON_S).Wait()
                left -= 1
                wrong.extend(unless((total == comm.size).all(), total))
            except ArgumentError as error:
                wrong.extend(unless("another thread is inside a collective" in str(error), error))
            except HpcollError as error:
                wrong.append(error)

    threads, before = [threading.Thread(target=work) for _ in range(4)], sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(before)
    ensure_none(wrong)
    comm.Free()
