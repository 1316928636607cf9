"""A failure on one rank alone, before its part of a call or in it: the others are told soon, and nobody gets wrong data."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from failed_calls import blocking, caught, in_flight, made, not_refused, persistent, x
from internals import resources
from mpi4py import MPI
from reference import SOON_S, ensure, ensure_none, raised, unless

import hpcoll
from hpcoll import ArgumentError, PeerFailed
from hpcoll.comm.planning.planner import Planner
from hpcoll.runtime.engine.host_engine import HostEngine

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.once]

FORMS = [blocking, in_flight, persistent]
LAST = MPI.COMM_WORLD.size - 1
LONG = 40_000  # elements, of whose messages some need scratch memory
NO_MEMORY = {  # by when: whose method fails, and whether shorter calls of the kind came before
    "scratch": (HostEngine, "fresh", False),
    "scratch of a longer call": (HostEngine, "fresh", True),
    "a copy of what is sent": (HostEngine, "bind_copy", False),
    "the plan": (Planner, "_choose", False),
}


def none_left(*_: object) -> None:
    raise MemoryError("none left")


def right(comm: hpcoll.Communicator, form: Callable[..., None], count: int = 3) -> bool:
    """Say whether a sum is right."""
    got = x(count)
    form(comm, "Allreduce", (x(count), got))
    return bool((got == comm.size).all())


@pytest.mark.parametrize(
    ("when", "form", "way"),
    [
        ("scratch", blocking, "shared memory"),
        ("scratch of a longer call", in_flight, "shared memory"),
        ("a copy of what is sent", persistent, "shared memory"),
        ("the plan", in_flight, "shared memory"),
        ("the plan", blocking, "messages"),
    ],
    indirect=["way"],
)
def test_no_memory_on_one_rank(
    when: str, way: str, form: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last rank raises MemoryError, the others hear of it soon, in that call or the next; other communicators go on."""
    comm, (owner, method, before) = made(way), NO_MEMORY[when]
    other = hpcoll.Communicator(MPI.COMM_WORLD.Dup())
    if before:
        comm.Allreduce(x(3), x(3), algorithm="recursive_doubling")
        comm.Iallreduce(x(3), x(3), algorithm="recursive_doubling").Wait()
    else:
        comm.Barrier()
    if form is persistent:
        comm.Barrier_init().Free()  # what ranks agree on for the first of these
    MPI.COMM_WORLD.Barrier()
    begun, error, given = time.monotonic(), None, x(LONG)
    if comm.rank == LAST:
        monkeypatch.setattr(owner, method, none_left)
        for one in resources(comm).message_contexts:
            one._scratch.clear()  # of earlier calls, which would do for this one
    try:
        arguments = (MPI.IN_PLACE, given) if "copy" in when else (given, x(LONG))
        for _ in range(2):
            form(comm, "Allreduce", arguments)
    except (MemoryError, hpcoll.HpcollError) as caught_one:
        error = caught_one
    seconds = time.monotonic() - begun
    monkeypatch.undo()
    told = isinstance(error, PeerFailed) and f"rank {LAST} gave up: MemoryError: none left" in str(error)
    wrong = unless(
        (isinstance(error, MemoryError) if comm.rank == LAST else told) and seconds < SOON_S,
        (repr(error), seconds),
    )
    wrong += not_refused(raised(comm.Barrier))
    wrong += unless(right(other, form), "wrong on the other")
    comm.recover()
    wrong += unless(right(comm, form, LONG), "wrong after recover")
    ensure_none(wrong)


@pytest.mark.parametrize("form", FORMS)
def test_refused_on_one_rank(form: Callable[..., None]) -> None:
    """The others wait; once that rank has called rightly all are right, and where it calls something else all are told."""
    comm, given = made("shared memory"), list[Any]()

    def too_short() -> bool:
        """Give a buffer that is too short on the last rank; whether the call has yet to be made: who was not refused has made it."""
        if comm.rank == LAST:
            given.append(raised(lambda: form(comm, "Allreduce", (x(8), x(7)))))
        return given[-1:] != [None]

    def mine() -> None:
        count = 9 if comm.rank == LAST else 8
        if too_short():
            form(comm, "Allreduce", (x(count), x(count)))

    def wrong() -> list[str]:
        return [
            repr(one)
            for one in given
            if not isinstance(one, ArgumentError) or f"rank {LAST}: recvbuf needs" not in str(one)
        ]

    if form is not persistent:  # whose making is collective
        good = not too_short() or right(comm, form, 8)
        ensure_none([*wrong(), *(unless(good, "wrong"))])
    text, seconds = caught(comm, mine)
    ensure_none(wrong())
    ensure("float64[8]" in text and "float64[9]" in text and seconds < SOON_S, (text, seconds))


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """A thread that runs; and what it gave, or raised."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, found


def sum_until(done: threading.Event, comm: hpcoll.Communicator, form: Callable[..., None]) -> list[int]:
    """Sum until all ranks are done, which the sums themselves say, so that all make as many; counts of those that were wrong."""
    wrong, ndone = list[int](), 0.0
    while ndone < comm.size:
        for count in (3, 5000):
            given, got = x(count), x(count)
            given[0] = done.is_set()
            form(comm, "Allreduce", (given, got))
            ndone = got[0]
            wrong += unless(ndone in range(comm.size + 1) and (got[1:] == comm.size).all(), count)
    return wrong


needs_threads = pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="needs MPI_THREAD_MULTIPLE"
)


@needs_threads
@pytest.mark.parametrize("form", FORMS)
def test_a_thread_whose_calls_are_right_goes_on(form: Callable[..., None]) -> None:
    """While another one's, on another communicator of the same ranks, do not match."""
    comm, other = made("shared memory"), hpcoll.Communicator(MPI.COMM_WORLD.Dup())
    ensure(right(other, form), "wrong")
    done = threading.Event()
    thread, found = in_thread(lambda: sum_until(done, other, form))
    try:
        text, seconds = caught(
            comm,
            lambda: form(comm, "Allreduce", (x(8), x(8), MPI.MAX if comm.rank == LAST else MPI.SUM)),
        )
    finally:
        done.set()
        thread.join(30)
    ensure(found == [[]] and seconds < SOON_S, (found, text, seconds))
    other.Free()
