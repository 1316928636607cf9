"""Persistent requests: collectives that are planned once and started again and again."""

import os
import sys
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal, TypeAlias

from mpi4py import MPI

from hpcoll.base.errors import ArgumentError
from hpcoll.comm.plans.plan import ContextPool, MessageContext, Plan, Prepared
from hpcoll.comm.requests.call_hooks import CollectiveOwner
from hpcoll.comm.requests.operation import Operation
from hpcoll.comm.requests.replaced import start_all
from hpcoll.comm.requests.request import CollectiveRequest, is_eager, nothing, query, refused, say_nothing
from hpcoll.runtime.engine.entry import call_compiled
from hpcoll.runtime.engine.host_engine import HostEngine
from hpcoll.runtime.program.call_fields import MISS
from hpcoll.runtime.program.copy_fields import NOT_STORED
from hpcoll.runtime.program.fields import DONE, FAILED, START
from hpcoll.runtime.transports.mpi import handle

_NULL = handle(MPI.REQUEST_NULL)
Start: TypeAlias = tuple[int, ...]  # what `call_compiled` takes to start
Starts: TypeAlias = Callable[[], Start | None]


def _released(plan: Plan, message_context: MessageContext, engine: HostEngine, pool: ContextPool) -> None:
    """Give back engine and message context of a persistent request that is gone, if it does not run."""
    if not message_context.idle:
        return
    engine.unbind_request()
    plan.give(message_context, engine)
    pool.give_back(message_context)


class PersistentRequest(CollectiveRequest, MPI.Prequest):
    """A persistent request: a collective that is planned once and started again and again.

    A start whose peers are there runs a short message to its end at once; `Wait` then costs next to nothing. Between `Start` and the end,
    ``MPI.Request.Waitall``, ``Testsome`` and the like take the request too, and ``MPI.Prequest.Startall`` starts it.
    """

    Startall = classmethod(start_all)
    _eager: Start | None = None
    _captures: Callable[[], bool] | None = None
    _starts: Starts | None = None  # says how it is started on copies of its arrays
    _completed: MPI.Grequest | None = None  # the stand-in
    _stale = True  # there is none, or the MPI library has freed it
    _pid, _freed = 0, False  # of the process that made it
    _compare: Callable[[], None] | None = None  # sees that all ranks have made the same request
    _release: Any = None

    def _bind(
        self,
        context: CollectiveOwner,
        prepared: Prepared,
        message_context: MessageContext,
        engine: HostEngine,
        compare: Callable[[], None],
        limit_s: float | None,
        starts: Starts | None,
        captures: Callable[[], bool] | None,
    ) -> None:
        """Set up; ``compare`` raises where not all ranks have made the same request.

        At each start a call of which a copy is sent is described anew, unless ``starts`` says how it is made. Where ``captures`` has put it
        into a graph, it is not started.
        """
        call, plan, _, describe, pool, *_ = prepared
        assert call is not None
        self._context = context
        self._plan = plan
        self._message_context = message_context
        self._call = call
        self._describe = None if call.as_given else describe
        self._compare = compare
        self._title = plan.named(call.count)
        self._engine = engine
        self._limit_s = limit_s
        address = MPI._addressof(self)
        nbytes = MPI._sizeof(MPI.Request)
        self._cell = memoryview(MPI.buffer.fromaddress(address, nbytes)).cast("Q" if nbytes == 8 else "I")  # type: ignore[arg-type]
        self._starts, self._captures = starts, captures
        given = call.as_given and call.finish is None
        self._is_eager = is_eager(call, engine) and (given or starts is not None)
        context.persistent[message_context.index] = self
        if call.exported is None:  # what GPU memory has is given back with it
            self._release = weakref.finalize(self, _released, plan, message_context, engine, pool)
            self._release.atexit = False

    def _prepare(self) -> Start | None:
        """Do what comes before the first start: see that all ranks have made the same request. Return `_eager`."""
        if self._freed:
            return None
        if self._compare is not None:
            with self._context.failure_scope(self._title):
                self._compare()
            self._compare = None
        if self._is_eager and self._stale:
            self._stand_in()
        if self._starts is None or not self._is_eager:
            return self._eager
        return self._starts() if self._cell[0] == _NULL else None

    def _stand_in(self) -> None:
        """Let starts make their first turns at once, with a completed request for those who wait through MPI after one that has ended."""
        me = weakref.ref(self)

        def freed() -> None:
            persistent = me()
            if persistent is not None:
                persistent._stale = True
                persistent._eager = None

        self._stale = False
        self._completed = MPI.Grequest.Start(say_nothing, freed, nothing)
        self._pid = os.getpid()
        self._completed.Complete()
        self._engine.bind_request(
            MPI._addressof(self), _NULL, handle(self._completed), MPI._sizeof(MPI.Request)
        )
        if self._starts is None:
            self._eager = START, self._engine.address, self._call.send, self._call.recv, 0

    def Start(self) -> None:
        """Begin; the buffers belong to the collective until `Wait` or `Test` says that it is done.

        Where the stream of its GPU arrays is captured into a CUDA graph, a collective by one kernel of each rank
        (``HPCOLL_CUDA_PATH=device``) becomes part of the graph, and does not begin. All ranks then launch their graphs alike.

        Raises:
            ArgumentError: it runs already, was freed, or its communicator was.
            MismatchError, PeerFailed, CollectiveTimeout: ranks have not made the same request, which the first start sees.
        """
        eager = self._eager or self._prepare()
        status = call_compiled(*eager) if eager else None
        if status != DONE:
            self._begin(None if status == MISS else status)

    def _begin(self, status: int | None) -> None:
        """Begin the long way, or go on after the first turns with that ``status``."""
        if self._freed:
            self._context.check()
            raise ArgumentError(f"rank {self._context.rank}: {self._title} was freed")
        self._refuse_started()
        with self._context.failure_scope(self._title):
            if status is None and self._captures is not None and self._captures():
                return
            call = (self._describe() if self._describe and status is None else None) or self._call
            if call.start is not None:
                call.start(self._engine)
        try:
            operation = Operation(
                self._context,
                self._plan,
                self._message_context,
                self._engine,
                call,
                nothing,
                self._limit_s,
                "persistent",
            )
        except ArgumentError as error:
            if status is not None:
                refused(self._context, self._plan, self._engine, call, error)
            raise
        try:
            operation.register()
            request = MPI.Grequest.Start(query, nothing, nothing, (operation,))
            self._operation = operation
            self._cell[0] = handle(request)
            if status in (FAILED, NOT_STORED):
                operation.end_at_once(failed=status == FAILED)
                request.Complete()
            else:
                operation.activate(handle(request), begun=status is not None)
        except BaseException as error:
            operation.break_off(error)
            raise

    def _refuse_started(self) -> None:
        if self._cell[0] != _NULL:
            raise ArgumentError(
                f"rank {self._context.rank}: {self._title} was started and not waited for yet"
            )

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Return when the collective is done, as `CollectiveRequest.Wait`."""
        if self._operation is not None:
            return super().Wait(status)
        self._cell[0] = _NULL  # it has ended in `Start`
        if status is not None:
            MPI.Request.Wait(self, status)  # as the library leaves it where nothing was received
        return True

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Say whether the collective is done."""
        return super().Test(status) if self._operation else self.Wait(status)

    def Free(self) -> None:
        """Give back what the collective holds; it cannot be started any more.

        Raises:
            ArgumentError: it runs.
        """
        self._refuse_started()
        self.close()
        self._give_back()
        if self._release is not None:
            self._release()
        # these have memory that the ranks of the node share
        parts = (
            "_plan",
            "_engine",
            "_message_context",
            "_call",
            "_describe",
            "_compare",
            "_starts",
            "_captures",
        )
        for name in parts:
            self.__dict__.pop(name, None)

    def close(self) -> None:
        """Refuse further starts."""
        self._freed = True
        self._eager = None

    def _give_back(self) -> None:
        """Free the completed request, where MPI can still be called."""
        completed = self._completed
        self._completed = None
        possible = self._pid == os.getpid() and not sys.is_finalizing() and not MPI.Is_finalized()
        if completed is not None and not self._stale and possible:
            completed.Free()

    def __del__(self) -> None:
        super().__del__()
        self._give_back()


class TaggedRequest(PersistentRequest):
    """A persistent request that was made with ``tag=``, of which each start is in a region."""

    _region: AbstractContextManager[None]

    @classmethod
    def of(cls, region: AbstractContextManager[None]) -> "TaggedRequest":
        """Return a request without a plan yet."""
        made = cls()
        made._region = region
        return made

    def Start(self) -> None:
        """Begin, as `PersistentRequest.Start`."""
        with self._region:
            super().Start()


class LibraryPersistentRequest(MPI.Prequest):
    """A persistent request of the MPI library's own, whose starts are counted."""

    Startall = classmethod(start_all)
    _count: Callable[[], None]

    @classmethod
    def of(cls, request: MPI.Prequest, count: Callable[[], None]) -> "LibraryPersistentRequest":
        """Return a request of mpi4py's with this class; ``count`` counts a start."""
        made = cls(request)
        made._count = count
        return made

    def Start(self) -> None:
        """Begin, as mpi4py's does."""
        super().Start()
        self._count()
