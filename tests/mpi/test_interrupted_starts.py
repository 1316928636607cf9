"""A signal's handler that raises between the start of a call in flight and its first turn: all ranks give the communicator up."""

from collections.abc import Callable

import numpy as np
import pytest
from failed_calls import not_refused
from handlers import Alarm, raising
from mpi4py import MPI
from reference import ensure_none, fresh, raised, unless

import hpcoll
from hpcoll import PeerFailed

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.twice]


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
    wrong += not_refused(raised(comm.Barrier), "an earlier collective did not end")
    comm.Free()
    other, total = fresh(), np.zeros(3)
    other.Iallreduce(np.ones(3), total).Wait()
    wrong += unless((total == MPI.COMM_WORLD.size).all(), f"{total} on another communicator")
    ensure_none(wrong)
