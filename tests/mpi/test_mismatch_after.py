"""After ranks did not call the same: memory goes, other communicators go on, and all ranks may recover this one."""

import contextlib
import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from failed_calls import and_on, blocking, caught, made, x
from internals import free_kept, resources
from mpi4py import MPI
from reference import comes, ensure, ensure_none, fresh, raised, unless
from test_shm import mappings, open_mappings

import hpcoll
from hpcoll import ArgumentError, CollectiveTimeout, MismatchError, TransportError
from hpcoll.comm.requests.progress_thread import CONTROL_LOCK, board
from hpcoll.runtime.engine.host_engine import HostEngine
from hpcoll.runtime.program import progress_fields as progress

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.twice]

MANY_S = 15  # for 200 errors; where each is looked into, they take a minute


@pytest.mark.once
def test_freed_after_it() -> None:
    """Memory that ranks share goes at once, not when garbage is collected."""

    def fail_and_free() -> None:
        comm = made("shared memory")
        request = comm.Iallreduce(x(8), x(8))
        MPI.COMM_WORLD.Barrier()  # else who is late hears of it earlier
        try:
            and_on(comm, lambda: comm.Allreduce(x(8), x(8), MPI.MAX if comm.rank else MPI.SUM), blocking)
        except MismatchError:
            comm.Free()
        with contextlib.suppress(TransportError):
            request.Wait()

    made("shared memory").Free()
    free_kept()
    before = mappings()
    gc.disable()
    try:
        for _ in range(4):
            fail_and_free()
        free_kept()  # what was made ahead for others
        after = open_mappings()
    finally:
        gc.enable()
    ensure(after == before, (before, after))


def test_freed_with_it_in_flight(way: str) -> None:
    """Where `Free` finds it out, what is shared does not go to the next communicator of these ranks, either."""
    comm, wrong, total = made(way), list[str](), np.zeros(1)
    comm.Iallreduce(x(1), x(1)).Wait()
    started = list[MPI.Request]()
    # who is late is told here
    error = raised(lambda: started.append(comm.Iallreduce(x(8), x(8), MPI.MAX if comm.rank else MPI.SUM)))
    at_free = raised(comm.Free)
    error = error or at_free or raised(started[0].Wait)
    wrong += unless(isinstance(error, MismatchError), repr(error))
    for _ in range(2):
        other = hpcoll.Communicator(MPI.COMM_WORLD.Dup())
        error = raised(lambda to=other: to.Allreduce(np.ones(1), total))
        wrong += unless(error is None and total[0] == MPI.COMM_WORLD.size, f"{total}, {error!r}")
        other.Free()
    ensure_none(wrong)


@pytest.mark.mpi(min_size=3)
def test_freed_by_who_is_told_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The root is through with the call, and late for its next one: it quotes ranks that have raised there and freed the communicator."""
    monkeypatch.setenv("HPCOLL_SHM", "0")
    comm, world = made("messages"), MPI.COMM_WORLD
    on = resources(comm)
    comm.Iallreduce(x(1), x(1)).Wait()
    world.Barrier()

    def call() -> None:
        comm.Bcast(x(2 if comm.rank == 1 else 1), algorithm="direct")
        for _ in range(1, comm.size if comm.rank == 0 else 1):
            world.recv()
        for _ in range(4):
            comm.Iallreduce(x(1), x(1)).Wait()

    text, control_plane = str(raised(call)), on.team.channel
    freeing = threading.Thread(target=comm.Free)  # the MPI library's part of it waits for all ranks
    freeing.start()
    gone = comes(lambda: on.key not in control_plane.resources)
    if world.rank:
        world.send(None, 0)
    freeing.join()
    calls = text.split("\n  ")[1:]
    right = all("Bcast(float64[" in one for one in calls) and any(
        one.startswith("rank 1: Bcast(float64[2], root=0)") for one in calls
    )
    ensure(right and gone, (text, gone))


def test_recover(way: str) -> None:
    """All ranks may go on with the same communicator; what was in flight is given up, and what was planned is refused."""
    comm, total, wrong = made(way), np.zeros(1), []
    for turn in range(3):
        left = comm.Ireduce(x(3), x(3), root=turn % comm.size) if comm.rank else None  # rank 0 never calls it
        planned = comm.Allreduce_init(x(3), x(3))
        caught(comm, lambda: comm.Allreduce(x(8), x(8), MPI.MAX if comm.rank else MPI.SUM))
        comm.recover()
        for _ in range(10):
            comm.Allreduce(np.ones(1), total)
            wrong += [] if total[0] == comm.size else [(turn, total[0])]
            comm.Iallreduce(np.ones(1), total).Wait()
        refused = raised(planned.Start)
        wrong += unless(
            isinstance(refused, ArgumentError) and "it was recovered" in str(refused), (turn, repr(refused))
        )
        if left is not None:
            given_up = raised(left.Wait)  # others than its root may have been done before
            done = given_up is None and comm.rank != turn % comm.size
            wrong += unless(done or isinstance(given_up, TransportError), (turn, repr(given_up)))
    ensure_none(wrong)


@pytest.mark.once
def test_many_in_flight(way: str) -> None:
    """Each of them raises, and all together soon: what has happened is found out once."""
    comm, requests = made(way), list[MPI.Request]()
    comm.Iallreduce(x(1), x(1)).Wait()
    with contextlib.suppress(MismatchError):  # who is late is told as it starts one
        for _ in range(200):
            requests.append(comm.Iallreduce(x(8), x(8), MPI.MAX if comm.rank else MPI.SUM))
    begun = time.monotonic()
    wrong = [
        error
        for error in map(raised, [request.Wait for request in requests])
        if not isinstance(error, MismatchError)
    ]
    seconds = time.monotonic() - begun
    ensure_none([*map(repr, wrong[:3])] if wrong else [seconds] if seconds > MANY_S else [])


def test_memory_of_messages_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the MPI library has yet to send of a call that was given up stays, though the program lets go of it."""
    monkeypatch.setenv("HPCOLL_SHM", "0")
    comm, late = fresh(), MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1
    arrays = [np.ones(1 << 20)]
    for _ in range(3):  # found by its arguments alone from the second one on
        comm.Bcast(arrays[0])
    MPI.COMM_WORLD.Barrier()
    if late:
        MPI.COMM_WORLD.Barrier()
    error = raised(lambda: comm.Bcast(arrays[0], timeout=0.3))
    if not late:
        MPI.COMM_WORLD.Barrier()
    # what was sent to it may be there before the news
    gave_up = isinstance(error, CollectiveTimeout) or (late and error is None)
    wrong, there = unless(gave_up, repr(error)), weakref.ref(arrays.pop())
    del error
    gc.collect()
    ensure_none(wrong)
    assert any(MPI.COMM_WORLD.allgather(there() is not None))


def test_receives_are_cancelled_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Meanwhile no thread of hpcoll's advances what is in flight elsewhere, or receives control messages: Open MPI loses messages then."""
    monkeypatch.setenv("HPCOLL_SHM", "0")
    comm, other, total, found = fresh(), fresh(), np.zeros(1), list[tuple[bool, bool]]()
    late, error = comm.rank == comm.size - 1, None
    for one in (comm, other):
        one.Iallreduce(np.ones(1), total).Wait()
        one.Barrier()
    request = None if late else other.Iallreduce(np.ones(1), total)

    stop = HostEngine.stop

    def noted(engine: HostEngine, most_s: float) -> bool:
        slots = board().slots[: board().words[progress.HIGH], progress.OWNER]
        with ThreadPoolExecutor(1) as pool:
            found.append(
                (bool((slots == 1).all()), not pool.submit(CONTROL_LOCK.acquire, blocking=False).result())
            )
        return stop(engine, most_s)

    with monkeypatch.context() as patch:
        patch.setattr(HostEngine, "stop", noted)
        if not late:
            error = raised(lambda: comm.Barrier(timeout=0.3))
        MPI.COMM_WORLD.Barrier()
    if request is None:
        request = other.Iallreduce(np.ones(1), total)
    request.Wait()
    wrong = unless(
        late or (found and all(map(all, found)) and isinstance(error, CollectiveTimeout)),
        (found, repr(error)),
    )
    ensure_none(wrong if total[0] == comm.size else [*wrong, total])
