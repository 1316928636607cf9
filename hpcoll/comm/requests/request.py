"""Requests of collectives in flight: usable where mpi4py takes requests."""

import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Literal, TypeAlias

from mpi4py import MPI

from hpcoll.base.errors import ArgumentError, DeviceError, TransportError
from hpcoll.comm.arguments.call import Call
from hpcoll.comm.plans.plan import MessageContext, Plan
from hpcoll.comm.requests.call_hooks import CallOwner
from hpcoll.comm.requests.operation import Operation, abandon
from hpcoll.comm.requests.replaced import install
from hpcoll.comm.status.uncaught import briefly
from hpcoll.runtime.engine.entry import call_compiled
from hpcoll.runtime.engine.host_engine import HostEngine
from hpcoll.runtime.program import progress_fields as progress
from hpcoll.runtime.program.fields import FAILED, PENDING, START
from hpcoll.runtime.transports.mpi import handle

install()


def say_nothing(status: MPI.Status) -> None:
    """Tell the MPI library the status of a collective that is done."""
    status.Set_elements(MPI.BYTE, 0)
    status.Set_cancelled(False)


def query(status: MPI.Status, operation: Operation) -> None:
    """Answer the MPI library when a generalized request has completed and somebody waits or tests."""
    (operation.call.report or say_nothing)(status)
    try:
        operation.finish()
        return
    except (DeviceError, TransportError) as error:
        told = failed(error)
    try:
        raise told
    finally:
        del told  # whose traceback has this frame


def failed(error: BaseException) -> BaseException:
    """Return an error for mpi4py, which prints it, and tells the MPI library a code alone: the error's, or that of any other error."""
    if not isinstance(error, TransportError) or not error.code:
        return briefly(error)
    told = MPI.Exception(error.code)
    told.__cause__ = briefly(error)
    return told


def nothing(*arguments: object) -> None:
    """Do nothing: nothing is freed with a request, and a collective cannot be cancelled."""


@cache
def _never() -> MPI.Grequest:
    return MPI.Grequest.Start(None, None, None)


def let_mpi_move() -> None:
    """Enter the library, asking for what never completes: a peer may be late because its message to this rank moves only then."""
    _never().Get_status()


def is_eager(call: Call, engine: HostEngine) -> bool:
    """Say whether whoever starts a call makes its first turns, perhaps all of them."""
    given = call.exported is None and call.start is None
    return (given or call.one_shot) and call.nbytes <= engine.wait_policy.eager


def warn_of_dropped(what: str) -> None:
    """Warn of a request that is gone."""
    warnings.warn(f"{what}: its request was dropped and never waited for", ResourceWarning, stacklevel=3)


class CollectiveRequest(MPI.Request):
    """The common part of non-blocking and persistent requests, while an operation is theirs."""

    _operation: Operation | None = None
    _what = "a collective"

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Return when the collective is done; at once when it was not started.

        Raises:
            TransportError: the MPI library failed. ArgumentError: MPI is finalised.
        """
        self._refuse_at_the_end()
        if self._operation is not None:
            self._operation.wait(let_mpi_move)
        return self._end(status)

    def _refuse_at_the_end(self) -> None:
        if Operation.over:  # the library would end the program
            raise ArgumentError(f"{self._what} in flight cannot be waited for: {Operation.over}")

    def ended_within(self, limit_s: float) -> bool:
        """Say whether the collective ends within so many seconds, so that `Wait` will return at once."""
        return self._operation is None or self._operation.wait(let_mpi_move, limit_s)

    def give_up(self, error: Exception) -> str:
        """Refuse further use of the communicator, because of this collective, and return its name, for texts."""
        if self._operation is None:
            return "a collective that has ended"
        self._operation.named(error)
        return self._operation.title

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Say whether the collective is done; raises as `Wait`."""
        self._refuse_at_the_end()
        if self._operation is None or self._operation.test():
            return self._end(status)
        let_mpi_move()
        return False

    def _end(self, status: MPI.Status | None) -> Literal[True]:
        operation = self._operation
        self._operation = None
        try:
            if operation is not None:
                operation.finish()
        finally:
            super().Wait(status)
        return True

    def wait(self, status: MPI.Status | None = None) -> Any:
        """Wait as `Wait`; there is no object to return."""
        self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any]:
        """Test as `Test`; there is no object to return."""
        return self.Test(status), None

    def Cancel(self) -> None:
        """Refuse: MPI has no cancelling of collectives."""
        raise ArgumentError(f"{self._what} in flight cannot be cancelled: wait for it")

    cancel = Cancel

    def __repr__(self) -> str:
        operation = self._operation
        if operation is None:
            return f"<hpcoll request of {getattr(self, '_title', self._what)}: not in flight>"
        state = "done" if operation.state >= progress.ENDED_WELL else "in flight"
        return f"<hpcoll request of {operation.title}: {state}>"

    def __del__(self) -> None:
        operation = self._operation
        if operation is not None and not operation.over and self != MPI.REQUEST_NULL:
            operation.dropped = True
            warn_of_dropped(operation.title)


class Request(CollectiveRequest, MPI.Grequest):
    """A collective in flight; ``MPI.Request.Waitall``, ``Testsome`` and the like take it too.

    Buffers belong to the collective until it is done; they are kept alive. Errors of the transport surface in `Wait` and `Test`.
    """

    @classmethod
    def of(cls, operation: Operation) -> "Request":
        """Return the request of an operation."""
        request = cls(MPI.Grequest.Start(query, nothing, nothing, (operation,)))
        request._operation = operation
        return request

    def Free(self) -> None:
        """Free it; refused while the collective runs: MPI wants it waited for."""
        if self._operation is not None and self._operation.state < progress.ENDED_WELL:
            raise ArgumentError(f"{self._what} in flight cannot be freed: wait for it")
        super().Free()


Make: TypeAlias = Callable[[Operation], MPI.Grequest]


def start(
    context: CallOwner,
    on: MessageContext,
    plan: Plan,
    call: Call,
    make: Make = Request.of,
    limit_s: float | None = None,
) -> tuple[MPI.Grequest, HostEngine]:
    """Start a collective on a message context, for so long at most; ``make`` makes the request. Return the request and the engine."""
    engine = plan.take(on, call)
    if call.start is not None:
        call.start(engine)
    # else the progress thread gives all turns
    first = partial(begin, on, engine, call.send, call.recv) if is_eager(call, engine) else nothing
    return launch(context, on, plan, call, engine, first, make, limit_s), engine


def begin(message_context: MessageContext, engine: HostEngine, send: int, recv: int) -> int | None:
    """Give the first turns, and return how they ended; None where others are before it."""
    return call_compiled(START, engine.address, send, recv, 0) if message_context.idle else None


def refused(context: CallOwner, plan: Plan, engine: HostEngine, call: Call, error: ArgumentError) -> None:
    """Close the communicator: a collective has begun that cannot be in flight."""
    try:
        context.interrupted(plan.named(call.count), error)
    finally:
        abandon(engine, call)


def launch(
    context: CallOwner,
    message_context: MessageContext,
    plan: Plan,
    call: Call,
    engine: HostEngine,
    first: Callable[[], int | None],
    make: Make = Request.of,
    limit_s: float | None = None,
    begun: bool = False,
) -> MPI.Grequest:
    """Return the request of a collective; ``first`` gives the first turns and says how they ended, None where others are before it.

    Raises:
        ArgumentError: too many are in flight. Where this one has ``begun``, without being known to be one, the others are told.
    """
    release = partial(plan.give, message_context, engine)
    try:
        operation = Operation(context, plan, message_context, engine, call, release, limit_s)
    except ArgumentError as error:
        refused(context, plan, engine, call, error) if begun else release()
        raise
    try:
        operation.register()
        status = first()
        if status not in (None, PENDING):
            operation.end_at_once(failed=status == FAILED)
        request = make(operation)
        if operation.ended:
            MPI.Grequest(request).Complete()
        else:
            operation.activate(handle(request), begun=status is not None)
    except BaseException as error:
        operation.break_off(error)
        raise
    return request
