"""Calls that fail on all ranks: a call in its forms, what it raises, and that the communicator is refused after it."""

import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from internals import resources
from mpi4py import MPI
from reference import agreed, fresh, raised, unless

import hpcoll
from hpcoll import ArgumentError, MismatchError
from hpcoll.comm.team.team import IN_FLIGHT


def x(count: int, dtype: str = "f8") -> np.ndarray:
    return np.ones(count, dtype)


def blocking(comm: hpcoll.Communicator, method: str, arguments: tuple[Any, ...]) -> None:
    getattr(comm, method)(*arguments)


def in_flight(comm: hpcoll.Communicator, method: str, arguments: tuple[Any, ...]) -> None:
    getattr(comm, f"I{method.lower()}")(*arguments).Wait()


def persistent(comm: hpcoll.Communicator, method: str, arguments: tuple[Any, ...]) -> None:
    request = getattr(comm, f"{method}_init")(*arguments)
    request.Start()
    request.Wait()


def made(way: str) -> hpcoll.Communicator:
    """A communicator that was used; skips where ranks cannot exchange what they have to say in this way."""
    comm = fresh()
    comm.Barrier()
    if way == "shared memory" and not resources(comm).shares_memory:
        pytest.skip("needs shared memory")
    return comm


def caught(comm: hpcoll.Communicator, run: Callable[[], object]) -> tuple[str, float]:
    """Text of the error of a call, or of a later one where this rank had its share before anybody saw it, and how long that took.

    Collective: all ranks fail where it is another error on any.
    """
    begun = time.monotonic()
    error = raised(lambda: and_on(comm, run))
    seconds = time.monotonic() - begun
    wrong = agreed(unless(isinstance(error, MismatchError), repr(error)))
    assert wrong == [], wrong
    wrong = agreed(not_refused(raised(comm.Barrier)))
    assert wrong == [], wrong
    return str(error), seconds


def and_on(comm: hpcoll.Communicator, run: Callable[[], object]) -> None:
    """Run, and make calls that are right until one comes the same way as the first."""
    run()
    for _ in range(IN_FLIGHT):
        for form in (in_flight, blocking):
            form(comm, "Allreduce", (x(1), x(1)))


def not_refused(error: BaseException | None, why: str = "") -> list[str]:
    """Return what a call has given after another has failed, if not the error that says so; ``why`` is a pattern of the reason in it."""
    text = rf"rank {MPI.COMM_WORLD.rank}: .*cannot be used: .*{why}"
    return unless(isinstance(error, ArgumentError) and re.search(text, str(error)), f"not refused: {error!r}")
