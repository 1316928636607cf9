"""A call that has been described and planned, on its way from a communicator's context to whatever runs it."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from hpcoll.comm.arguments.call import Call
from hpcoll.comm.plans.plan import MessageContext, Plan


class CallOptions(NamedTuple):
    """The keywords of a call, and whether it is to return before it has ended."""

    algorithm: str | None
    segment: Any
    stream: Any
    in_flight: bool = False
    limit_s: float | None = None


class ContextPool(Protocol):
    """What has message contexts: `Resources` for arrays in host memory, routes between GPUs for arrays there."""

    def begin(self) -> MessageContext:
        """The message context of a blocking call that begins; collective."""

    def end(self) -> None:
        """That call has ended; not where it failed."""

    def in_flight(self, turn: int) -> MessageContext:
        """One for a non-blocking call, which take turns; collective."""

    def message_context(self) -> MessageContext:
        """One for a persistent request; collective."""

    def give_back(self, message_context: MessageContext) -> None:
        """The persistent request that had it is gone on this rank."""


class Prepared(NamedTuple):
    """A call and how it runs.

    Attributes:
        call: None where only the MPI library understands it.
        plan: How it runs.
        arguments: For the MPI library's own method: the caller's, or host mirrors of GPU arrays.
        describe: Describes the call anew, with the streams and the data of then.
        carrier: Has the message contexts that it travels on.
        after_native: What remains to be done when the MPI library has served it, or None.
    """

    call: Call | None
    plan: Plan
    arguments: tuple[Any, ...]
    describe: Callable[[], Call | None]
    context_pool: ContextPool
    after_native: Callable[[], None] | None = None
