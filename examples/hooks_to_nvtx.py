"""Collectives as ranges of NVTX, which NVIDIA's Nsight Systems shows beside the kernels of the program.

``nsys profile mpirun -n 2 python -m mpi4py examples/hooks_to_nvtx.py`` records some; it needs ``pip install nvtx``. Without that the
program runs the same, and nothing is recorded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

import hpcoll

try:
    import nvtx  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    nvtx = None

_open = dict[int, Any]()  # ranges by number of the call: calls in flight overlap


def mark(event: hpcoll.hooks.CallEvent) -> None:
    """Open a range where a collective begins, and close it where that ends or fails."""
    if event.what == "begins":
        name = f"{event.region}/{event.method}" if event.region else event.method
        _open[event.number] = nvtx.start_range(name, domain="hpcoll")
    elif event.what != "stalls" and event.number in _open:
        nvtx.end_range(_open.pop(event.number))


def main() -> None:
    """Make some calls."""
    comm = hpcoll.Communicator(MPI.COMM_WORLD)
    if nvtx is not None:
        hpcoll.hooks.register(mark)
    x, y = np.ones(1000), np.zeros(1000)
    for _ in range(3):
        with comm.region("step"):
            request = comm.Iallreduce(x, y)
            comm.Barrier()
            request.Wait()
    if comm.rank == 0:
        print("recorded" if nvtx is not None else "nvtx is not installed: nothing was recorded")


if __name__ == "__main__":
    main()
