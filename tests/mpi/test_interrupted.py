"""A collective that cannot end: Ctrl-C gets through, MPI's failure is an error on the rank that sees it; both close the communicator."""

import os
import signal
import threading

import numpy as np
import pytest
from reference import agreed, fresh

from hpcoll import ArgumentError, MismatchError, TransportError

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
