"""The driver's double in place of a GPU on every rank: fixtures' bodies, and what tests of messages start from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cuda_double
import numpy as np
import pytest
from cuda_double import Double
from mpi4py import MPI

import hpcoll
from hpcoll.comm import gpu_routes, point_to_point_buffers
from hpcoll.runtime.gpu import device


def fresh() -> None:
    """Forget what was found out about another GPU."""
    device._gpu.cache_clear()
    point_to_point_buffers._takes.cache_clear()


def installed(takes: bool | None = None, ngpus: int = 1) -> Iterator[Double]:
    """A double; no test may leave work that nothing orders, or have called the driver wrongly.

    Args:
        takes: Whether the MPI library takes its memory, which the host can read then. None: hpcoll finds out, where no double is.
        ngpus: That this process sees.
    """
    one = cuda_double.install(ngpus, readable=bool(takes))
    with pytest.MonkeyPatch.context() as patch:
        for module in () if takes is None else (gpu_routes, point_to_point_buffers):
            patch.setattr(module, "takes_gpu_memory", lambda gpu: takes)
        fresh()
        yield one
    one.uninstall()
    fresh()
    assert (one.races, one.failures) == ([], [])


def ordered(double: Double) -> Iterator[Double]:
    """A double that several tests use: what one of them did wrong is that one's failure."""
    yield double
    found = list(double.races), list(double.failures)
    double.races.clear()
    double.failures.clear()
    assert found == ([], [])


def around(comm: MPI.Intracomm) -> tuple[int, int]:
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


def made(either: Double) -> tuple[hpcoll.Communicator, int, int, Any, Any]:
    """A communicator, both neighbours, and two arrays."""
    comm = hpcoll.Communicator(MPI.COMM_WORLD.Dup())
    send, recv = either.Array(1000, np.float64).fill(np.arange(1000) + comm.rank), either.Array(1000, np.float64).fill(-1)
    return comm, *around(comm), send, recv
