"""Contexts on MPI communicators: found or made, closed when the process forks or MPI ends."""

import os
import weakref
from functools import cached_property
from typing import Any

from mpi4py import MPI

from hpcoll.base.errors import ArgumentError
from hpcoll.comm.context import Context
from hpcoll.comm.progress_thread import stop_helper

_live: "weakref.WeakSet[Context]" = weakref.WeakSet()


def _after_fork() -> None:
    for context in _live:
        context.close("this process is a fork: MPI belongs to its parent")


os.register_at_fork(after_in_child=_after_fork)


def _deleted(comm: MPI.Comm, keyval: int, context: Context) -> None:
    context.free()


def _finalizing(comm: MPI.Comm, keyval: int, nothing: object) -> None:
    stop_helper()
    for context in list(_live):
        context.close("MPI is finalised")


_KEYVALS: list[int] = []


def context_of(comm: MPI.Intracomm, mixed: bool | None = None) -> Context:
    """The context of a communicator; the first call for it is collective.

    Args:
        comm: The communicator.
        mixed: Whether ranks may pass different kinds of memory in one call; None: as it was, or no.
    Raises:
        ArgumentError: ``mixed`` is another than before, MPI is not initialised or already finalised, or the settings differ between ranks.
    """
    if not _KEYVALS:
        _KEYVALS.append(MPI.Comm.Create_keyval(delete_fn=_deleted))
        MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=_finalizing), None)  # MPI_Finalize deletes it first of all
    context: Any = comm.Get_attr(_KEYVALS[0])
    if context is None:
        context = Context(comm, bool(mixed))
        _live.add(context)
        comm.Set_attr(_KEYVALS[0], context)
    assert isinstance(context, Context)
    asked = context.resources.asked_mixed
    if mixed is not None and mixed != asked:
        raise ArgumentError(f"rank {context.rank}: the communicator was made with mixed={asked}, got mixed={mixed}")
    return context


class WithContext(MPI.Intracomm):
    """An intracommunicator with a context."""

    _context = cached_property(context_of)  # Communicator sets it; objects that mpi4py makes (Idup) find it when first used
