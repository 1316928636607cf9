"""Requests of collectives in flight: usable where mpi4py takes requests. Floor 7."""

import os
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any, Literal, Protocol

from mpi4py import MPI

from hpcoll.call import Call
from hpcoll.engines import progress
from hpcoll.engines.entry import START, cross
from hpcoll.engines.fields import FAILED, PENDING
from hpcoll.errors import ArgumentError, HpcollError, TransportError
from hpcoll.inflight import Operation, Owner
from hpcoll.plans import Channel, Plan
from hpcoll.transports.mpi import handle


class PlanningOwner(Owner, Protocol):
    """What a persistent request needs besides."""

    persistent: "weakref.WeakValueDictionary[int, Persistent]"

    def check(self) -> None:
        """Raises ArgumentError when the communicator cannot be used."""


def _query(status: MPI.Status, operation: Operation) -> None:
    """Called by the MPI library when a generalized request has completed and somebody waits or tests."""
    status.Set_elements(MPI.BYTE, 0)
    status.Set_cancelled(False)
    try:
        operation.finish()
    except TransportError as error:
        raise MPI.Exception(error.code or MPI.ERR_OTHER) from error


def _nothing(*arguments: object) -> None:
    """Nothing is freed with a request, and a collective cannot be cancelled."""


class Request(MPI.Grequest):
    """A collective in flight; ``MPI.Request.Waitall``, ``Testsome`` and the like take it too.

    Buffers belong to the collective until it is done; they are kept alive. Errors of the transport surface in `Wait` and `Test`.
    """

    _operation: Operation | None = None

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Return when the collective is done.

        Raises:
            TransportError: the MPI library failed.
        """
        if self._operation is not None:
            self._operation.wait()
            self._finish()
        return super().Wait(status)

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Whether the collective is done; raises as `Wait`."""
        if self._operation is not None:
            if not self._operation.test():
                return False
            self._finish()
        return super().Test(status)

    def wait(self, status: MPI.Status | None = None) -> Any:
        """As `Wait`; there is no object to return."""
        self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any]:
        """As `Test`."""
        return self.Test(status), None

    def _finish(self) -> None:
        assert self._operation is not None
        try:
            self._operation.finish()
        except HpcollError:
            self._operation = None
            super().Wait()
            raise

    def Cancel(self) -> None:
        """Refused: MPI has no cancelling of collectives."""
        raise ArgumentError("a collective in flight cannot be cancelled: wait for it")

    cancel = Cancel

    def Free(self) -> None:
        """Refused while the collective runs: MPI wants it waited for."""
        if self._operation is not None and self._operation.state < progress.ENDED_WELL:
            raise ArgumentError("a collective in flight cannot be freed: wait for it")
        super().Free()

    def __del__(self) -> None:
        operation = self._operation
        if operation is not None and self != MPI.REQUEST_NULL:
            operation.dropped = True
            warnings.warn(f"{operation.plan.title}: its request was dropped and never waited for", ResourceWarning, stacklevel=2)


def start(context: Owner, channel: Channel, plan: Plan, call: Call) -> Request:
    """Let a collective run on a channel."""
    engine = plan.take(channel)
    operation = Operation(context, plan, channel, engine, call, lambda: plan.give(channel, engine))
    begun = channel.issued == channel.ended[0] and plan.short
    status = cross(START, engine.address, call.send, call.recv, 0) if begun else PENDING
    if status != PENDING:
        operation.end_at_once(failed=status == FAILED)
    request = Request(MPI.Grequest.Start(_query, _nothing, _nothing, (operation,)))
    request._operation = operation
    if operation.ended:
        MPI.Grequest(request).Complete()
    else:
        operation.activate(handle(request), begun=begun)
    return request


class Persistent(MPI.Prequest):
    """A collective that is planned once and started again and again.

    A start whose peers are there runs a short message to its end at once; `Wait` then costs next to nothing. Between `Start` and the end,
    ``MPI.Request.Waitall``, ``Testsome`` and the like take the request too; ``MPI.Prequest.Startall`` does not: start each.
    """

    _operation: Operation | None = None
    _eager: tuple[int, int, int, int, int] | None = None
    _freed = False

    def _bind(self, context: PlanningOwner, plan: Plan, channel: Channel, call: Call, describe: Callable[[], Call | None] | None) -> None:
        """Set up; ``describe`` tells the call anew at each start, where what it sends is a copy."""
        self._context, self._plan, self._channel, self._call, self._describe = context, plan, channel, call, describe
        self._engine = plan.take(channel)
        address, nbytes = MPI._addressof(self), MPI._sizeof(MPI.Request)
        self._cell = memoryview(MPI.buffer.fromaddress(address, nbytes)).cast("Q" if nbytes == 8 else "I")  # type: ignore[arg-type]
        self._null = self._cell[0]
        context.persistent[channel.index] = self
        if plan.short and describe is None and call.finish is None:
            self._stand_in()
            self._eager = START, self._engine.address, call.send, call.recv, 0

    def _stand_in(self) -> None:
        """A completed request, for those who wait through MPI after a start that ended at once."""
        me = weakref.ref(self)

        def freed() -> None:
            persistent = me()
            if persistent is not None:
                persistent._stale = True

        self._completed, self._pid = MPI.Grequest.Start(_say_nothing, freed, _nothing), os.getpid()
        self._completed.Complete()
        self._engine.bind_request(MPI._addressof(self), self._null, handle(self._completed), MPI._sizeof(MPI.Request))

    _completed: MPI.Grequest | None = None
    _stale = False
    _pid = 0

    def Start(self) -> None:
        """Begin; the buffers belong to the collective until `Wait` or `Test` says that it is done.

        Raises:
            ArgumentError: it runs already, was freed, or its communicator was.
        """
        if self._eager is None or self._stale or (status := cross(*self._eager)):
            self._begin(status if self._eager is not None and not self._stale else None)

    def _begin(self, status: int | None) -> None:
        """Begin the long way, or go on after some turns."""
        if self._freed:
            self._context.check()
            raise ArgumentError(f"rank {self._context.rank}: {self._plan.title} was freed")
        if self._cell[0] != self._null:
            raise ArgumentError(f"rank {self._context.rank}: {self._plan.title} was started and not waited for yet")
        self._operation = None
        if status is None and self._stale:
            self._stale = False
            self._stand_in()
            self.Start()
            return
        call = (self._describe() if self._describe else None) or self._call
        operation = Operation(self._context, self._plan, self._channel, self._engine, call, _nothing)
        request = MPI.Grequest.Start(_query, _nothing, _nothing, (operation,))
        self._operation, self._cell[0] = operation, handle(request)
        if status == FAILED:
            operation.end_at_once(failed=True)
            request.Complete()
        else:
            operation.activate(handle(request), begun=status is not None)

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Return when the collective is done; at once when it was not started.

        Raises:
            TransportError: the MPI library failed.
        """
        if self._operation is None:
            self._cell[0] = self._null
            return True
        self._operation.wait()
        return self._end(status)

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Whether the collective is done; raises as `Wait`."""
        if self._operation is None:
            return self.Wait(status)
        return self._operation.test() and self._end(status)

    def _end(self, status: MPI.Status | None) -> Literal[True]:
        operation, self._operation = self._operation, None
        assert operation is not None
        try:
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
        raise ArgumentError("a collective in flight cannot be cancelled: wait for it")

    cancel = Cancel

    def Free(self) -> None:
        """Give back what the collective holds; it cannot be started any more.

        Raises:
            ArgumentError: it runs.
        """
        if self._cell[0] != self._null:
            raise ArgumentError(f"rank {self._context.rank}: {self._plan.title} was started and not waited for yet")
        self.close()
        self._give_back()
        for name in ("_engine", "_channel", "_call", "_describe"):  # a channel has memory that the ranks of the node share
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
        operation = self._operation
        if operation is not None and self._cell[0] != self._null:
            operation.dropped = True
            warnings.warn(f"{operation.plan.title}: its request was dropped and never waited for", ResourceWarning, stacklevel=2)
        self._give_back()


def _say_nothing(status: MPI.Status) -> None:
    status.Set_elements(MPI.BYTE, 0)
    status.Set_cancelled(False)
