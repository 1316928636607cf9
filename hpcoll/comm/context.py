"""What hpcoll keeps for one MPI communicator: a private duplicate, settings, plans, message_contexts, the ledger.

It hangs on the communicator as an attribute, so that every `hpcoll.Communicator` over the same MPI communicator shares it and
it dies with it. A plan is kept per call shape; running it again is one crossing into compiled code.
"""

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any

from mpi4py import MPI

from hpcoll.base.errors import ArgumentError, DeviceError, TransportError
from hpcoll.comm.calls.call import Call
from hpcoll.comm.calls.native import compiled
from hpcoll.comm.gpu_planner import FIRST_PERSISTENT, GpuPlanner
from hpcoll.comm.plan import MessageContext, Plan
from hpcoll.comm.planner import IN_FLIGHT
from hpcoll.comm.progress_thread import abandon, can_be_helped, collect, drain, lasting
from hpcoll.comm.requests import Persistent, start
from hpcoll.runtime.engine import call_cache
from hpcoll.runtime.engine.entry import RUN, call_compiled
from hpcoll.runtime.engine.host_engine import HostEngine
from hpcoll.runtime.engine.mpi_collectives import MpiCall
from hpcoll.runtime.program.fields import BUSY
from hpcoll.selection.config import NATIVE

_OWN_SCRATCH = 64 << 10  # bytes; blocking calls that need more share their context's
_live: "weakref.WeakSet[Context]" = weakref.WeakSet()


class Context(GpuPlanner):
    """State of one communicator. Made collectively; used by one thread at a time.

    Attributes:
        tables: Addresses of earlier calls.
        persistent: Living persistent requests by message_context.
        closed: Why it cannot be used any more; the empty string while it can.
    """

    def __init__(self, comm: MPI.Intracomm, mixed: bool) -> None:
        super().__init__(comm, mixed)
        self.closed = ""
        self.tables = call_cache.CallCache()
        self._blocking: dict[int, HostEngine] = {}  # by id of the plan
        self._arenas: dict[type, Any] = {}  # by kind of engine
        self._issued = self._prepared = 0
        self.persistent: weakref.WeakValueDictionary[int, Persistent] = weakref.WeakValueDictionary()
        _live.add(self)

    def free(self) -> None:
        """Free the duplicate and all plans."""
        if not self.closed:
            drain(self)
            self.close("the communicator was freed")
            self.forget()
            self.message_contexts.clear()
            self._arenas.clear()
            self._gpus = None
            if not MPI.Is_finalized():
                self.node.free()
                self.comm.Free()

    def close(self, why: str) -> None:
        """Refuse further use."""
        self.closed = why
        self.tables.forget()
        for request in self.persistent.values():
            request.close()

    @contextmanager
    def closing(self, what: Plan | str) -> Iterator[None]:
        """Where the GPU may fail on this rank alone, before its part of a collective begins: refuse further use then."""
        try:
            yield
        except DeviceError as error:
            self.interrupted(what, error)

    def check(self) -> None:
        """Refuse a communicator that cannot be used any more.

        Raises:
            ArgumentError: says why.
        """
        if self.closed or MPI.Is_finalized():
            why = "MPI is finalised" if MPI.Is_finalized() else self.closed
            raise ArgumentError(f"rank {self.rank}: this communicator cannot be used: {why}")

    def run(self, status: int, key: call_cache.Key, arguments: tuple[Any, ...], *buffers: Any, stream: Any = None) -> None:
        """Run a call, or end one that was begun.

        Args:
            status: What `hpcoll.runtime.engine.call_cache.run_cached` answered, not `DONE`.
            key: Method, root where it tells one call from another, ``algorithm`` and ``segment``.
            arguments: The caller's positional arguments.
            buffers: Those by which `run_cached` finds the call.
            stream: The caller's ``stream=``.
        Raises:
            ArgumentError: the arguments or keywords are wrong, or another thread is inside this communicator.
            KernelError: the operator does not compile.
            TransportError, DeviceError: the MPI library or the GPU failed; the communicator cannot be used any more.
            mpi4py.MPI.Exception: the MPI library's own collective failed.
        """
        if status == BUSY:
            raise ArgumentError(f"rank {self.rank}: another thread is inside a collective on this communicator: use one each")
        table = self.tables.tables[key] if buffers else None
        if status == call_cache.MISS:
            self._run_described(key, arguments, stream, table, *buffers)
            return
        assert table is not None
        plan, engine = table.latest
        if isinstance(engine, MpiCall):
            raise MPI.Exception(engine.error)
        if engine is None:
            self._run_native(plan, key[0], arguments)
        else:
            self._go_on(plan, engine, status)

    def _run_described(
        self, key: call_cache.Key, arguments: tuple[Any, ...], stream: Any, table: call_cache.CallTable | None, *buffers: Any
    ) -> None:
        self.check()
        method = key[0]
        runs: HostEngine | MpiCall | None
        with self.closing(method):
            call, plan, served, mirror, _ = self.serve(method, arguments, key[2], key[3], stream)
        if call is None or plan is None or plan.algorithm == NATIVE:
            theirs = self.natively(call, method, served)
            self._run_native(plan, method, theirs)
            if mirror is not None:
                with self.closing(method):
                    mirror.store()
            if call is None or plan is None:
                return
            repeats = bool(buffers) and all(one is other for one, other in zip(theirs, arguments, strict=True))
            runs = compiled(method, self.caller, call, _op(call, arguments), buffers, plan.sums) if repeats else None
        else:
            with self.closing(plan):
                engine = self._engine(plan, self.message_contexts_of(call)[0])
                if call.start is not None:
                    call.start(engine)
            status = call_compiled(RUN, engine.address, call.send, call.recv, 1)
            if status == BUSY:
                self.run(status, key, arguments)
            if status or call.finish is not None:
                self._go_on(plan, engine, status, call)
            same_memory = call.aliased and not (buffers and buffers[0] is MPI.IN_PLACE)  # which `run_cached` does not look for
            repeats, runs = call.direct and not same_memory and id(plan) in self._blocking, engine
        if table is not None and repeats:
            table.enter(_op(call, arguments), buffers, runs, plan)

    def issue(self, method: str, arguments: tuple[Any, ...], algorithm: str | None, segment: Any, stream: Any) -> MPI.Request:
        """Start a non-blocking call; errors as in `run`, those of the transport when the request is waited for."""
        self.check()
        collect()
        arguments = lasting(arguments)
        moves = can_be_helped() or algorithm is not None
        if method in ("Gatherv", "Scatterv"):  # others would have to ask the root for sizes first, and wait
            algorithm = algorithm or "direct"
            if algorithm not in ("direct", NATIVE):
                raise ArgumentError(f"rank {self.rank}: I{method.lower()} takes algorithm 'direct' or 'native', got {algorithm!r}")
        with self.closing(method):
            call, plan, *_ = self.serve(method, arguments, algorithm, segment, stream, in_flight=True)
        if call is None or plan is None or plan.algorithm == NATIVE or not (moves or call.strict or not call.native):
            # the library's own requests move whenever it is called, by whatever method
            return getattr(self.caller, f"I{method.lower()}")(*self.natively(call, method, arguments))
        self._issued += 1  # on all ranks alike
        with self.closing(plan):
            return start(self, self.message_contexts_of(call)[1 + self._issued % IN_FLIGHT], plan, call)

    def prepare(self, method: str, arguments: tuple[Any, ...], algorithm: str | None, segment: Any, stream: Any) -> MPI.Prequest:
        """Plan a persistent call; collective, errors as in `run`."""
        self.check()
        arguments = self.counted(method, lasting(arguments))
        with self.closing(method):
            call, plan, _, _, describe = self.serve(method, arguments, algorithm, segment, stream, in_flight=True)
        if call is None or plan is None or plan.algorithm == NATIVE:
            return getattr(self.caller, f"{method}_init")(*self.natively(call, method, arguments))
        self._prepared += 1
        (message_context,) = self.more_message_contexts(call, FIRST_PERSISTENT + self._prepared)
        request = Persistent()
        with self.closing(plan):
            request._bind(self, plan, message_context, call, None if call.direct else describe)
        return request

    def forget(self) -> None:
        super().forget()
        self._blocking.clear()
        self.tables.forget()

    def _engine(self, plan: Plan, message_context: MessageContext) -> HostEngine:
        """The plan's engine for blocking calls, ready to run."""
        engine = self._blocking.get(id(plan))
        if engine is None:
            engine = plan.build(message_context)
            if engine.scratch_nbytes <= _OWN_SCRATCH:
                engine.bind_scratch(engine.fresh(engine.scratch_nbytes))
            else:
                self._share(engine)
            if plan in self._plans.values():
                self._blocking[id(plan)] = engine
        return engine

    def _share(self, engine: HostEngine) -> None:
        """Bind the scratch that engines of one kind have in common, made large enough."""
        kind = type(engine)
        arena = self._arenas.get(kind)
        if arena is None or arena.nbytes < engine.scratch_nbytes:
            arena = self._arenas[kind] = engine.fresh(engine.scratch_nbytes)
            for other in self._blocking.values():
                if type(other) is kind and other.scratch_nbytes > _OWN_SCRATCH:
                    other.bind_scratch(arena)
        engine.bind_scratch(arena)

    def _run_native(self, plan: Plan | None, method: str, arguments: tuple[Any, ...]) -> None:
        start = perf_counter_ns()
        getattr(self.caller, method)(*arguments)
        if plan is None:
            return
        sums = plan.sums
        sums[0] += 1
        sums[1] += perf_counter_ns() - start

    def _go_on(self, plan: Plan, engine: HostEngine, status: int, call: Call | None = None) -> None:
        try:
            engine.go_on(status)
            if call is not None and call.finish is not None:
                call.finish()
        except BaseException as error:
            if call is not None:
                abandon(engine, call)
            self.interrupted(plan, error)
            raise

    def interrupted(self, what: Plan | str, error: BaseException) -> None:
        """A collective that stopped half-way leaves messages under way: say where, and refuse further use."""
        where = f"rank {self.rank}: {what if isinstance(what, str) else what.title}, {self.nranks} ranks"
        self.close(f"an earlier collective did not end ({where})")
        if isinstance(error, DeviceError):
            raise DeviceError(f"{where}: {error}", code=error.code) from error
        if isinstance(error, TransportError):
            text = MPI.Get_error_string(error.code) if error.code else str(error)
            raise TransportError(f"{where}: {text}", code=error.code) from error


def _op(call: Call, arguments: tuple[Any, ...]) -> Any:
    """The operator as the caller gives it, or None."""
    return arguments[2] if call.op is not None else None


def _after_fork() -> None:
    for context in _live:
        context.close("this process is a fork: MPI belongs to its parent")


os.register_at_fork(after_in_child=_after_fork)


def _deleted(comm: MPI.Comm, keyval: int, context: Context) -> None:
    context.free()


def _finalizing(comm: MPI.Comm, keyval: int, nothing: object) -> None:
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
        comm.Set_attr(_KEYVALS[0], context)
    assert isinstance(context, Context)
    if mixed is not None and mixed != context.asked_mixed:
        raise ArgumentError(f"rank {context.rank}: the communicator was made with mixed={context.asked_mixed}, got mixed={mixed}")
    return context
