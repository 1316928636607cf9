"""A collective that cannot end: Ctrl-C gets through, MPI's failure is an error on the rank that sees it; both close the communicator."""

import os
import signal
import threading

import numpy as np
import pytest
from mpi4py import MPI
from reference import agreed, fresh

from hpcoll import ArgumentError, MismatchError, PeerFailed, TransportError

pytestmark = pytest.mark.mpi(min_size=2)


def test_ctrl_c() -> None:
    """Rank 0 waits alone in a barrier and is interrupted."""
    comm = fresh()
    if comm.rank == 0:
        timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            comm.Barrier(algorithm="dissemination")
        with pytest.raises(ArgumentError, match=r"rank 0: .* cannot be used: an earlier collective did not end .*barrier/dissemination"):
            comm.Barrier(algorithm="dissemination")
    assert agreed([]) == []


class Alarm(Exception):
    """What a program's handler raises."""


def test_a_signal_before_anybody_looks() -> None:
    """It comes while compiled code has not yet returned for the first time: the rank's next call, which is refused, tells the others."""
    comm, last = fresh(), MPI.COMM_WORLD.size - 1

    def raise_alarm(*_: object) -> None:
        raise Alarm

    for _ in range(3):
        comm.Allreduce(np.ones(3), np.ones(3))
    MPI.COMM_WORLD.Barrier()
    if not comm._context.resources.shares_memory:
        pytest.skip("needs shared memory")
    if comm.rank == last:
        before = signal.signal(signal.SIGALRM, raise_alarm)
        while not comm._context.resources.lock[0]:  # again where it came before the call began
            signal.setitimer(signal.ITIMER_REAL, 0.005)
            with pytest.raises(Alarm):
                comm.Allreduce(np.ones(3), np.ones(3))
        signal.signal(signal.SIGALRM, before)
        assert not comm._context.closed
        with pytest.raises(ArgumentError, match=r"cannot be used: an earlier collective did not end .*a call before Allreduce"):
            comm.Allreduce(np.ones(5), np.ones(5))
    MPI.COMM_WORLD.Barrier()
    error = ""
    if comm.rank != last:
        with pytest.raises(PeerFailed) as caught:
            comm.Allreduce(np.ones(3), np.ones(3))
        error = str(caught.value)
    with pytest.raises(ArgumentError, match="cannot be used: an earlier collective did not end"):
        comm.Barrier()
    assert agreed([] if comm.rank == last or f"rank {last} gave up: InterruptedError: a signal's handler" in error else [error]) == []


def test_a_message_too_long() -> None:
    """The root broadcasts more than rank 1 expects."""
    comm = fresh()
    if comm.rank == 0:
        comm.Bcast(np.ones(8), algorithm="direct")
    else:
        with pytest.raises(TransportError, match=f"^rank {comm.rank}: .*, {comm.size} ranks: ") as caught:
            comm.Bcast(np.ones(4), algorithm="direct")
        assert caught.value.__suppress_context__, "one traceback, not two"
        shares = comm._context.resources.shares_memory
        assert isinstance(caught.value, MismatchError) if shares else caught.value.code != 0
    assert agreed([]) == []
