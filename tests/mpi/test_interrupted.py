"""A collective that cannot end: Ctrl-C gets through, MPI's failure is an error on the rank that sees it; both close the communicator."""

import os
import signal
import threading

import numpy as np
import pytest
from reference import agreed, fresh

from hpcoll import ArgumentError, TransportError

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
        where = f"rank {comm.rank}: bcast/direct of 32 elements of uint8, {comm.size} ranks: "
        with pytest.raises(TransportError, match=f"{where}.*runcate") as caught:
            comm.Bcast(np.ones(4), algorithm="direct")
        assert caught.value.code != 0
        assert caught.value.__suppress_context__, "one traceback, not two"
        if comm._context.resources.shares_memory:
            assert str(caught.value).endswith("; from another rank of the node came 64 bytes, expected 32")
    assert agreed([]) == []
