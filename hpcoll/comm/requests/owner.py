"""What calls in flight need of the context of their communicator."""

import weakref
from contextlib import AbstractContextManager
from typing import Any, Protocol

from hpcoll.base.errors import ArgumentError, HpcollError
from hpcoll.comm.arguments.call import Form
from hpcoll.runtime.engine.host_engine import HostEngine


def other_thread(rank: int) -> ArgumentError:
    """What a thread gets while another one is inside the communicator."""
    return ArgumentError(f"rank {rank}: another thread is inside a collective on this communicator: give each thread its own Dup()")


class Watching(Protocol):
    """What `Owner.watch` gives."""

    def look(self, *, held: bool) -> None:
        """Raises TransportError when it is to be given up; whether the program waits for its end just now."""

    def explain(self, error: HpcollError) -> None:
        """Raises another error instead of one of the engine's, where ranks know more."""

    def end(self) -> None:
        """It is over."""


class Owner(Protocol):
    """What an operation needs of its communicator's context."""

    rank: int

    def watch(self, engine: HostEngine, form: Form, called_at: str, limit_s: float | None, begun: float) -> "Watching | None":
        """A watch over a run that does not end, if anybody can know more of it; ``limit_s`` counts from when the call began."""

    def interrupted(self, what: str, error: BaseException) -> None:
        """Called when an operation failed half-way."""


class PlanningOwner(Owner, Protocol):
    """What a persistent request needs besides."""

    persistent: weakref.WeakValueDictionary[int, Any]

    def check(self) -> None:
        """Raises ArgumentError when the communicator cannot be used."""

    def closing(self, what: str) -> AbstractContextManager[None]:
        """Names errors of the GPU that are raised within, and makes them the communicator's last."""
