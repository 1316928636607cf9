"""Wrong answers: results of hpcoll's collectives that are changed as their calls end."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from mpi4py import MPI

import hpcoll
from hpcoll.hooks import CallEvent

WORLD = MPI.COMM_WORLD


def received(event: CallEvent) -> np.ndarray:
    """What a call of all ranks is given to receive into; nothing of other calls."""
    buffer: Any = event._arguments[1]
    array = buffer[0] if isinstance(buffer, list) else buffer
    return array if event.comm.size == WORLD.size and array.dtype.kind in "fc" else np.empty(0)


@contextmanager
def spoiled(
    method: str, by: float = 1, ranks: Collection[int] = (WORLD.size - 1,), calls: int = 1 << 30
) -> Iterator[None]:
    """Add to the first element that some ranks receive, in the first so many calls."""
    left = iter(range(calls))

    def spoil(event: CallEvent) -> None:
        if (event.what, event.method) == ("ends", method) and next(left, None) is not None:
            received(event).flat[:1] += by * (WORLD.rank in ranks)

    with hpcoll.hooks.register(spoil):
        yield


@contextmanager
def missing(method: str) -> Iterator[None]:
    """Have a collective move nothing."""
    before: dict[int, np.ndarray] = {}

    def restore(event: CallEvent) -> None:
        if (event.what, event.method) == ("begins", method):
            before[event.number] = received(event).copy()
        elif event.number in before:
            received(event)[...] = before.pop(event.number)

    with hpcoll.hooks.register(restore):
        yield
