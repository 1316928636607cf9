"""A collective that cannot end: Ctrl-C gets through, MPI's failure is an error on the rank that sees it; both close the communicator."""

import os
import re
import signal
import threading
from collections.abc import Callable

import numpy as np
import pytest
from failed_calls import not_refused
from handlers import Alarm, raising
from internals import context, resources
from mpi4py import MPI
from reference import SOON_S, ensure, ensure_none, fresh, raised, unless

import hpcoll
from hpcoll import MismatchError, PeerFailed, TransportError

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.twice]

NOT_ENDED = "an earlier collective did not end"


def test_ctrl_c(way: str) -> None:
    """Rank 0 waits alone in a barrier and is interrupted; all go on when they have recovered."""
    comm, wrong = fresh(), list[str]()

    def interrupted_call() -> None:
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        try:
            comm.Barrier(algorithm="dissemination")
        finally:
            timer.cancel()

    comm.Barrier(algorithm="dissemination")
    if comm.rank == 0:
        # again where it came before the call began
        while not (context(comm).closed or resources(comm).lock[0] or wrong):
            error = raised(interrupted_call)
            wrong = unless(isinstance(error, KeyboardInterrupt), repr(error))
        again = raised(lambda: comm.Barrier(algorithm="dissemination", timeout=SOON_S))
        # the latter if it came before a look
        wrong += not_refused(again, f"{NOT_ENDED} .*(barrier/dissemination|a call before Barrier)")
    ensure_none(wrong)
    comm.recover()
    total = np.zeros(3)
    comm.Allreduce(np.ones(3), total, timeout=SOON_S)
    ensure((total == comm.size).all(), total)


def test_a_signal_before_anybody_looks() -> None:
    """It comes while compiled code has not yet returned for the first time: the rank's next call, which is refused, tells the others."""
    comm, last = fresh(), MPI.COMM_WORLD.size - 1
    wrong: list[str] = []

    def raise_alarm(*_: object) -> None:
        raise Alarm

    def interrupted_call() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.005)
        comm.Allreduce(np.ones(3), np.ones(3))

    for _ in range(3):
        comm.Allreduce(np.ones(3), np.ones(3))
    MPI.COMM_WORLD.Barrier()
    if not resources(comm).shares_memory:
        pytest.skip("needs shared memory")
    if comm.rank == last:
        before = signal.signal(signal.SIGALRM, raise_alarm)
        while not resources(comm).lock[0] and not wrong:  # again where it came before the call began
            error = raised(interrupted_call)
            wrong = unless(isinstance(error, Alarm), repr(error))
        signal.signal(signal.SIGALRM, before)
        wrong += ["closed"] if context(comm).closed else []
        wrong += not_refused(
            raised(lambda: comm.Allreduce(np.ones(5), np.ones(5))), f"{NOT_ENDED} .*a call before Allreduce"
        )
    MPI.COMM_WORLD.Barrier()
    if comm.rank != last:
        error = raised(lambda: comm.Allreduce(np.ones(3), np.ones(3)))
        told = isinstance(
            error, PeerFailed
        ) and f"rank {last} gave up: InterruptedError: a signal's handler" in str(error)
        wrong = unless(told, repr(error))
    wrong += not_refused(raised(comm.Barrier), NOT_ENDED)
    ensure_none(wrong)


def test_a_message_too_long() -> None:
    """The root broadcasts more than rank 1 expects."""
    comm, wrong = fresh(), []
    if comm.rank == 0:
        comm.Bcast(np.ones(8), algorithm="direct")
    else:
        error = raised(lambda: comm.Bcast(np.ones(4), algorithm="direct"))
        right = isinstance(error, TransportError) and re.match(f"rank {comm.rank}: ", str(error))
        right = right and (
            isinstance(error, MismatchError) if resources(comm).shares_memory else error.code != 0
        )
        wrong = unless(right, repr(error))
        wrong += unless(error is None or error.__suppress_context__, "two tracebacks, not one")
    ensure_none(wrong)


def prepared(comm: hpcoll.Communicator, persistent: bool) -> Callable[[], MPI.Request]:
    """Return what starts an allreduce, time and again; collective."""
    x, y = np.ones(5), np.empty(5)
    if not persistent:
        return lambda: comm.Iallreduce(x, y)
    request = comm.Allreduce_init(x, y)

    def start() -> MPI.Request:
        request.Start()
        return request

    return start


@pytest.mark.parametrize("persistent", [False, True], ids=["in flight", "persistent"])
def test_a_start_that_is_left(persistent: bool) -> None:
    """As `activate` is about to run, which hands the call to those who give it turns: messages may have left already.

    The rank's next call is refused, the others are told, and neither `Free` nor another communicator waits for what never began.
    """
    comm, last, wrong = fresh(), MPI.COMM_WORLD.size - 1, list[str]()
    start = prepared(comm, persistent)
    start().Wait()
    MPI.COMM_WORLD.Barrier()
    if comm.rank == last:
        with raising("activate", "hpcoll.comm.requests.operation"):
            error = raised(start)
        wrong = unless(isinstance(error, Alarm), repr(error))
    MPI.COMM_WORLD.Barrier()  # before the others start: it cannot end in its first turns
    if comm.rank != last:
        # messages of the first turns may have left
        error = raised(lambda: start().Wait()) or raised(comm.Barrier)
        told = isinstance(error, PeerFailed) and f"rank {last} gave up: Alarm" in str(error)
        wrong = unless(told, repr(error))
    wrong += not_refused(raised(comm.Barrier), NOT_ENDED)
    comm.Free()
    other, total = fresh(), np.zeros(3)
    other.Iallreduce(np.ones(3), total).Wait()
    wrong += unless((total == MPI.COMM_WORLD.size).all(), f"{total} on another communicator")
    ensure_none(wrong)
