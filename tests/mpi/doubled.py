"""Tests of GPU arrays over a double of the driver that is installed for one test."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any

import cuda_double
from gpu_cases import forced, read
from mpi4py import MPI

import hpcoll
from hpcoll.runtime.gpu import device

WORLD = MPI.COMM_WORLD
LONG, SHORT = 40_001, 9  # elements of float32: of the GPU's tier, and of the one that uses host memory


@contextlib.contextmanager
def installed(**options: Any) -> Iterator[Any]:
    """A double, for one test."""
    made = cuda_double.install(**options)
    device._gpu.cache_clear()
    try:
        yield made
    finally:
        gc.collect()
        made.uninstall()
        device._gpu.cache_clear()


def ordered() -> Iterator[Any]:
    """A double, for one test that leaves no race."""
    with installed() as made:
        yield made
        assert not made.races


def communicator(way: str | None = None) -> hpcoll.Communicator:
    with forced(way):
        return hpcoll.Communicator(WORLD.Dup())


def allreduce(comm: hpcoll.Communicator, double: Any, count: int = LONG, **options: Any) -> bool:
    """Whether a sum over all ranks is right."""
    send = double.Array(count, **options).fill(comm.rank + 1)
    recv = double.Array(count, **options).fill(0)
    comm.Allreduce(send, recv)
    return bool((read(recv) == comm.size * (comm.size + 1) / 2).all())


def raised(action: Callable[[], Any]) -> Exception | None:
    try:
        action()
    except Exception as error:
        return error
    return None
