"""Errors of commands that run on all ranks: found by one rank alone, they would leave the others waiting."""

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from mpi4py import MPI

from hpcoll.base.errors import ArgumentError, HpcollError
from hpcoll.cli import ERROR, line_of

T = TypeVar("T")


@contextmanager
def ending_all_ranks(world: MPI.Intracomm) -> Iterator[None]:
    """Surround work of all ranks: an error of any of them is printed and ends them all; a rank that is alone raises it."""
    try:
        yield
    except Exception as error:
        if world.size > 1:
            said = line_of(error) if isinstance(error, HpcollError | MemoryError) else traceback.format_exc()
            print(said, file=sys.stderr, flush=True)
            world.Abort(ERROR)
        raise


def refuse(world: MPI.Intracomm, problem: str) -> None:
    """Raise the same error on all ranks where some rank has a problem, which is no empty string; collective."""
    problem = max(world.allgather(problem))
    if problem:
        raise ArgumentError(problem)


def on_rank_0(world: MPI.Intracomm, check: Callable[[], T]) -> T | None:
    """Return what a function returns on rank 0, and None elsewhere; where it raises ArgumentError, all ranks do. Collective."""
    answer, problem = None, ""
    if world.rank == 0:
        try:
            answer = check()
        except ArgumentError as error:
            problem = str(error)
    refuse(world, problem)
    return answer
