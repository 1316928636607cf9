"""Helpers for tests of GPU arrays over the driver's double: communicators, a call that is checked, neighbours."""

from typing import Any

import numpy as np
from cuda_double import Double
from gpu_cases import forced, read
from mpi4py import MPI

import hpcoll

WORLD = MPI.COMM_WORLD
LONG, SHORT = 40_001, 9  # elements of float32: of the GPU's tier, and of the one that uses host memory


def communicator(way: str | None = None) -> hpcoll.Communicator:
    with forced(way):
        return hpcoll.Communicator(WORLD.Dup())


def allreduce(comm: hpcoll.Communicator, double: Any, count: int = LONG, **options: Any) -> bool:
    """Say whether a sum over all ranks is right."""
    send = double.Array(count, **options).fill(comm.rank + 1)
    recv = double.Array(count, **options).fill(0)
    comm.Allreduce(send, recv)
    return bool((read(recv) == comm.size * (comm.size + 1) / 2).all())


def around(comm: MPI.Intracomm) -> tuple[int, int]:
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


def made(either: Double) -> tuple[hpcoll.Communicator, int, int, Any, Any]:
    """A communicator, both neighbours, and two arrays."""
    comm = hpcoll.Communicator(WORLD.Dup())
    send, recv = (
        either.Array(1000, np.float64).fill(np.arange(1000) + comm.rank),
        either.Array(1000, np.float64).fill(-1),
    )
    return comm, *around(comm), send, recv
