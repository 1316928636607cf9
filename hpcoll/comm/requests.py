"""Requests of collectives in flight: usable where mpi4py takes requests."""

import os
import sys
import warnings
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

from mpi4py import MPI

from hpcoll.base.errors import ArgumentError, DeviceError, TransportError
from hpcoll.comm.calls.call import Call
from hpcoll.comm.owner import Owner, PlanningOwner
from hpcoll.comm.plan import MessageContext, Plan
from hpcoll.comm.progress_thread import Operation
from hpcoll.runtime.engine.entry import START, call_compiled
from hpcoll.runtime.engine.host_engine import HostEngine
from hpcoll.runtime.program import progress_fields as progress
from hpcoll.runtime.program.fields import DONE, FAILED, PENDING
from hpcoll.runtime.transports.mpi import handle


def _say_nothing(status: MPI.Status) -> None:
    """What the MPI library is told of a collective that is done."""
    status.Set_elements(MPI.BYTE, 0)
    status.Set_cancelled(False)


def _query(status: MPI.Status, operation: Operation) -> None:
    """Called by the MPI library when a generalized request has completed and somebody waits or tests."""
    (operation.call.report or _say_nothing)(status)
    try:
        operation.finish()
    except (DeviceError, TransportError) as error:
        code = error.code if isinstance(error, TransportError) else 0
        raise MPI.Exception(code or MPI.ERR_OTHER) from error


def _nothing(*arguments: object) -> None:
    """Nothing is freed with a request, and a collective cannot be cancelled."""


@cache
def _never() -> MPI.Grequest:
    return MPI.Grequest.Start(None, None, None)


def let_mpi_move() -> None:
    """Enter the library: a peer may be late because its own message to this rank moves only then. Asks for what never completes."""
    _never().Get_status()


def is_eager(call: Call, engine: HostEngine) -> bool:
    """Whether who starts it makes its first turns, perhaps all of them."""
    return call.exported is None and call.start is None and call.nbytes <= engine.wait_policy.eager


class _Ours(MPI.Request):
    """What requests of both kinds do alike, while an operation is theirs."""

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
            raise ArgumentError(f"{self._what} in flight cannot be waited for: MPI is finalised")

    def ended_within(self, limit_s: float) -> bool:
        """Whether the collective ends within so many seconds, so that `Wait` will return at once."""
        return self._operation is None or self._operation.wait(let_mpi_move, limit_s)

    def give_up(self, error: Exception) -> str:
        """Refuse further use of the communicator, because of this collective; returns what it is, for texts."""
        if self._operation is None:
            return "a collective that has ended"
        self._operation.named(error)
        return self._operation.title

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Whether the collective is done; raises as `Wait`."""
        self._refuse_at_the_end()
        if self._operation is None or self._operation.test():
            return self._end(status)
        let_mpi_move()
        return False

    def _end(self, status: MPI.Status | None) -> Literal[True]:
        operation, self._operation = self._operation, None
        try:
            if operation is not None:
                operation.finish()
        finally:
            super().Wait(status)
        return True

    def wait(self, status: MPI.Status | None = None) -> Any:
        """As `Wait`; there is no object to return."""
        self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any]:
        """As `Test`."""
        return self.Test(status), None

    def Cancel(self) -> None:
        """Refused: MPI has no cancelling of collectives."""
        raise ArgumentError(f"{self._what} in flight cannot be cancelled: wait for it")

    cancel = Cancel

    def __del__(self) -> None:
        operation = self._operation
        if operation is not None and not operation.over and self != MPI.REQUEST_NULL:
            operation.dropped = True
            warnings.warn(f"{operation.title}: its request was dropped and never waited for", ResourceWarning, stacklevel=2)


class Request(_Ours, MPI.Grequest):
    """A collective in flight; ``MPI.Request.Waitall``, ``Testsome`` and the like take it too.

    Buffers belong to the collective until it is done; they are kept alive. Errors of the transport surface in `Wait` and `Test`.
    """

    def Free(self) -> None:
        """Refused while the collective runs: MPI wants it waited for."""
        if self._operation is not None and self._operation.state < progress.ENDED_WELL:
            raise ArgumentError(f"{self._what} in flight cannot be freed: wait for it")
        super().Free()


def start(
    context: Owner, on: MessageContext, plan: Plan, call: Call, kind: type[Request] = Request, limit_s: float | None = None
) -> tuple[Request, HostEngine]:  # fmt: skip
    """Let a collective run on a message context, for so long at most; the request is of a kind."""
    engine = plan.take(on, call)
    if call.start is not None:
        call.start(engine)
    status = begin(on, engine, call.send, call.recv) if is_eager(call, engine) else None
    return go_on(context, on, plan, call, engine, status, kind, limit_s), engine


def begin(message_context: MessageContext, engine: HostEngine, send: int, recv: int) -> int | None:
    """How the first turns ended; None where others are before it."""
    return call_compiled(START, engine.address, send, recv, 0) if message_context.idle else None


def go_on(
    context: Owner, message_context: MessageContext, plan: Plan, call: Call, engine: HostEngine, status: int | None,
    kind: type[Request] = Request, limit_s: float | None = None,
) -> Request:  # fmt: skip
    """The request of a collective whose first turns ended with a status; None: it has had none."""
    operation = Operation(context, plan, message_context, engine, call, lambda: plan.give(message_context, engine), limit_s)
    if status not in (None, PENDING):
        operation.end_at_once(failed=status == FAILED)
    request = kind(MPI.Grequest.Start(_query, _nothing, _nothing, (operation,)))
    request._operation = operation
    if operation.ended:
        MPI.Grequest(request).Complete()
    else:
        operation.activate(handle(request), begun=status is not None)
    return request


def _released(plan: Plan, message_context: MessageContext, engine: HostEngine, give_back: Callable[[], None]) -> None:
    """A persistent request is gone: others may have what it ran on, if it does not run."""
    if not message_context.idle:
        return
    engine.bind_request(0, 0, 0, MPI._sizeof(MPI.REQUEST_NULL))
    plan.give(message_context, engine)
    give_back()


class Persistent(_Ours, MPI.Prequest):
    """A collective that is planned once and started again and again.

    A start whose peers are there runs a short message to its end at once; `Wait` then costs next to nothing. Between `Start` and the end,
    ``MPI.Request.Waitall``, ``Testsome`` and the like take the request too; ``MPI.Prequest.Startall`` does not: start each.
    """

    _eager: tuple[int, int, int, int, int] | None = None  # what `call_compiled` takes to start
    _completed: MPI.Grequest | None = None  # the stand-in
    _stale = False  # whether the MPI library has freed it
    _pid, _freed = 0, False  # of the process that made it
    _release: Any = None

    def _bind(
        self, context: PlanningOwner, plan: Plan, message_context: MessageContext, engine: HostEngine, call: Call,
        describe: Callable[[], Call | None] | None, give_back: Callable[[], None], limit_s: float | None,
    ) -> None:  # fmt: skip
        """Set up; ``describe`` tells the call anew at each start, where what it sends is a copy; ``give_back`` the message context."""
        self._context, self._plan, self._message_context, self._call, self._describe = context, plan, message_context, call, describe
        self._title = plan.named(call.count)
        self._engine, self._limit_s = engine, limit_s
        address, nbytes = MPI._addressof(self), MPI._sizeof(MPI.Request)
        self._cell = memoryview(MPI.buffer.fromaddress(address, nbytes)).cast("Q" if nbytes == 8 else "I")  # type: ignore[arg-type]
        self._null = self._cell[0]
        context.persistent[message_context.index] = self
        if call.exported is None:  # what GPU memory has is given back with it
            self._release = weakref.finalize(self, _released, plan, message_context, self._engine, give_back)
            self._release.atexit = False
        if is_eager(call, engine) and describe is None and call.finish is None:
            self._stand_in()
            self._eager = START, self._engine.address, call.send, call.recv, 0

    def _stand_in(self) -> None:
        """A completed request, for those who wait through MPI after a start that ended at once."""
        me = weakref.ref(self)

        def freed() -> None:
            persistent = me()
            if persistent is not None:
                persistent._stale = True

        self._stale = False
        self._completed, self._pid = MPI.Grequest.Start(_say_nothing, freed, _nothing), os.getpid()
        self._completed.Complete()
        self._engine.bind_request(MPI._addressof(self), self._null, handle(self._completed), MPI._sizeof(MPI.Request))

    def Start(self) -> None:
        """Begin; the buffers belong to the collective until `Wait` or `Test` says that it is done.

        Raises:
            ArgumentError: it runs already, was freed, or its communicator was.
        """
        status = None
        if self._eager is not None:
            if self._stale:
                self._stand_in()
            status = call_compiled(*self._eager)
        if status != DONE:
            self._begin(status)

    def _begin(self, status: int | None) -> None:
        """Begin the long way, or go on after the first turns with that ``status``."""
        if self._freed:
            self._context.check()
            raise ArgumentError(f"rank {self._context.rank}: {self._title} was freed")
        if self._cell[0] != self._null:
            raise ArgumentError(f"rank {self._context.rank}: {self._title} was started and not waited for yet")
        with self._context.closing(self._title):
            call = (self._describe() if self._describe else None) or self._call
            if call.start is not None:
                call.start(self._engine)
        operation = Operation(self._context, self._plan, self._message_context, self._engine, call, _nothing, self._limit_s)
        request = MPI.Grequest.Start(_query, _nothing, _nothing, (operation,))
        self._operation, self._cell[0] = operation, handle(request)
        if status == FAILED:
            operation.end_at_once(failed=True)
            request.Complete()
        else:
            operation.activate(handle(request), begun=status is not None)

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        if self._operation is None:  # it has ended in `Start`
            self._cell[0] = self._null
            return True
        return super().Wait(status)

    def Test(self, status: MPI.Status | None = None) -> bool:
        return super().Test(status) if self._operation else self.Wait(status)

    def Free(self) -> None:
        """Give back what the collective holds; it cannot be started any more.

        Raises:
            ArgumentError: it runs.
        """
        if self._cell[0] != self._null:
            raise ArgumentError(f"rank {self._context.rank}: {self._title} was started and not waited for yet")
        self.close()
        self._give_back()
        if self._release is not None:
            self._release()
        for name in ("_plan", "_engine", "_message_context", "_call", "_describe"):  # they have memory that the ranks of the node share
            self.__dict__.pop(name, None)

    def close(self) -> None:
        """Refuse further starts."""
        self._freed, self._eager = True, None

    def _give_back(self) -> None:
        """Free the completed request, where MPI can still be called."""
        completed, self._completed = self._completed, None
        possible = self._pid == os.getpid() and not sys.is_finalizing() and not MPI.Is_finalized()
        if completed is not None and not self._stale and possible:
            completed.Free()

    def __del__(self) -> None:
        super().__del__()
        self._give_back()
