"""Errors that one rank may have alone, while others wait for it."""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from mpi4py import MPI

from hpcoll.base.errors import HpcollError
from hpcoll.cli import ERROR, line_of


@contextmanager
def ending_all_ranks(world: MPI.Intracomm) -> Iterator[None]:
    """Work of all ranks: an error on any of them is printed and ends them all; one of a single rank is raised."""
    try:
        yield
    except Exception as error:
        if world.size > 1:
            said = line_of(error) if isinstance(error, HpcollError | MemoryError) else traceback.format_exc()
            print(said, file=sys.stderr, flush=True)
            world.Abort(ERROR)
        raise
