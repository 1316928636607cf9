"""More than 2**31 elements, where an int count ends: two ranks of Open MPI, on a machine with room for it."""

from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI
from reference import communicator, ensure_none

COUNT = 2**31 + 7
NEEDED_GB = 14


def available_gb() -> float:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) / 1e6


def wrong_places(x: np.ndarray, value: int) -> int:
    """Counted in pieces, to need no second array of this size."""
    piece = 1 << 26
    return sum(int(np.count_nonzero(x[lo : lo + piece] != value)) for lo in range(0, x.size, piece))


@pytest.mark.mpi
@pytest.mark.full
def test_more_than_an_int_can_count(request: pytest.FixtureRequest) -> None:
    room = MPI.COMM_WORLD.bcast(available_gb())
    if MPI.COMM_WORLD.size != 2 or MPI.get_vendor()[0] != "Open MPI" or room < NEEDED_GB:
        pytest.skip(f"{request.node.name} needs two ranks of Open MPI and {NEEDED_GB} GB, has {room:.0f} GB")
    comm = communicator().Dup()
    x = np.full(COUNT, comm.rank + 1, np.int8)
    comm.Allreduce(MPI.IN_PLACE, x)
    wrong = [("allreduce", wrong_places(x, 3))]
    x[:] = comm.rank
    comm.Bcast(x, root=1)
    wrong += [("bcast", wrong_places(x, 1))]
    ensure_none([(name, places) for name, places in wrong if places])
    assert "native" not in {row.algorithm for row in comm.ledger.rows()}  # which Open MPI would refuse
    comm.Free()
