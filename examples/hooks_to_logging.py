"""Collectives written to Python's logging: each as it ends, at level DEBUG, those that stall or fail as warnings.

``mpirun -n 2 python -m mpi4py examples/hooks_to_logging.py`` shows it: rank 1 comes two seconds late.
"""

from __future__ import annotations

import logging
import time

import numpy as np
from mpi4py import MPI

import hpcoll

_LOG = logging.getLogger("collectives")


def write(event: hpcoll.hooks.CallEvent) -> None:
    """Write what happens to a collective."""
    level = logging.DEBUG if event.what == "ends" else logging.WARNING
    if event.what != "begins" and _LOG.isEnabledFor(level):
        size = "" if event.nbytes is None else f", {event.nbytes} bytes"
        where = f"{event.place}, in {event.region}" if event.region else event.place
        _LOG.log(level, "%s %s after %.6f s%s, %s", event.method, event.what, event.seconds, size, where)


def main() -> None:
    """Make some calls, of which one stalls."""
    comm = hpcoll.Communicator(MPI.COMM_WORLD)
    logging.basicConfig(format=f"rank {comm.rank}: %(message)s")
    _LOG.setLevel(logging.DEBUG)
    x, y = np.ones(1000), np.zeros(1000)
    with hpcoll.hooks.register(write), comm.region("step"):
        comm.Allreduce(x, y)
        if comm.rank == 1:
            time.sleep(2)
        comm.Iallreduce(x, y).Wait()
    comm.Barrier()  # written by nobody


if __name__ == "__main__":
    main()
