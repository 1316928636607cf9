"""What hpcoll keeps for one MPI communicator: a private duplicate, settings, plans, channels, the ledger. Floor 7.

It hangs on the communicator as an attribute, so that every `hpcoll.Communicator` over the same MPI communicator shares it and
it dies with it. A plan is kept per call shape; running it again is one crossing into compiled code.
"""

import os
import weakref
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.call import Call
from hpcoll.config import NATIVE
from hpcoll.describe import DESCRIBE
from hpcoll.engines import again
from hpcoll.engines.entry import RUN, cross
from hpcoll.engines.fields import BUSY
from hpcoll.engines.host import HostEngine
from hpcoll.errors import ArgumentError, TransportError
from hpcoll.inflight import can_be_helped, collect, drain, lasting
from hpcoll.native import as_native
from hpcoll.planner import IN_FLIGHT, Planner
from hpcoll.plans import Plan
from hpcoll.requests import Persistent, start

_OWN_SCRATCH = 64 << 10  # bytes; blocking calls that need more share their context's
_live: "weakref.WeakSet[Context]" = weakref.WeakSet()

Key = tuple[str, Any, str | None, int | str | None]  # method, root, algorithm, segment


class _Tables(dict[Key, int]):
    """Address of the table of calls for each key."""

    def __init__(self) -> None:
        self.tables: dict[Key, again.Table] = {}

    def __missing__(self, key: Key) -> int:
        table = self.tables[key] = again.Table()
        self[key] = table.address
        return table.address


class Context(Planner):
    """State of one communicator. Made collectively; used by one thread at a time.

    Attributes:
        tables: Addresses of earlier calls.
        persistent: Living persistent requests by channel.
        closed: Why it cannot be used any more; the empty string while it can.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        super().__init__(comm)
        self.closed = ""
        self.tables = _Tables()
        self._blocking: dict[int, HostEngine] = {}  # by id of the plan
        self._arena = np.empty(0, np.uint8)
        self._issued = self._prepared = 0
        self.persistent: weakref.WeakValueDictionary[int, Persistent] = weakref.WeakValueDictionary()
        _live.add(self)

    def free(self) -> None:
        """Free the duplicate and all plans."""
        if not self.closed:
            drain(self)
            self.close("the communicator was freed")
            self._plans.clear()
            self._blocking.clear()
            self.channels.clear()
            if not MPI.Is_finalized():
                self.node.free()
                self.comm.Free()

    def close(self, why: str) -> None:
        """Refuse further use."""
        self.closed = why
        for table in self.tables.tables.values():
            table.clear()
        for request in self.persistent.values():
            request.close()

    def check(self) -> None:
        """Refuse a communicator that cannot be used any more.

        Raises:
            ArgumentError: says why.
        """
        if self.closed or MPI.Is_finalized():
            why = "MPI is finalised" if MPI.Is_finalized() else self.closed
            raise ArgumentError(f"rank {self.rank}: this communicator cannot be used: {why}")

    def run(self, status: int, key: Key, arguments: tuple[Any, ...], *buffers: Any) -> None:
        """Run a call, or end one that was begun.

        Args:
            status: What `hpcoll.engines.again.again` answered, not `DONE`.
            key: Method, root where it tells one call from another, ``algorithm`` and ``segment``.
            arguments: The caller's positional arguments.
            buffers: Those by which `again` finds the call.
        Raises:
            ArgumentError: the arguments or keywords are wrong, or another thread is inside this communicator.
            KernelError: the operator does not compile.
            TransportError: the MPI library failed; the communicator cannot be used any more.
        """
        if status == BUSY:
            raise ArgumentError(f"rank {self.rank}: another thread is inside a collective on this communicator: use one each")
        table = self.tables.tables[key] if buffers else None
        if status == again.UNKNOWN:
            self._run_described(key, arguments, table, *buffers)
            return
        assert table is not None
        plan: Any = table.latest
        if status == again.NATIVE:
            self._run_native(plan, key[0], arguments)
        else:
            self._go_on(plan, self._blocking[id(plan)], status)

    def _run_described(self, key: Key, arguments: tuple[Any, ...], table: again.Table | None, *buffers: Any) -> None:
        self.check()
        method = key[0]
        call, plan = self.plan(method, arguments, key[2], key[3])
        if call is None or plan is None:
            getattr(self.caller, method)(*as_native(method, arguments))
            return
        if plan.algorithm == NATIVE:
            theirs = self.natively(call, method, arguments)
            self._run_native(plan, method, theirs)
            repeats, address = all(one is other for one, other in zip(theirs, arguments, strict=True)), 0
        else:
            engine = self._engine(plan)
            status = cross(RUN, engine.address, call.send, call.recv, 1)
            if status == BUSY:
                self.run(status, key, arguments)
            if status or call.finish is not None:
                self._go_on(plan, engine, status, call)
            same_memory = call.aliased and not (buffers and buffers[0] is MPI.IN_PLACE)  # which `again` does not look for
            repeats, address = call.direct and not same_memory, engine.address
        if table is not None and repeats and (address == 0 or id(plan) in self._blocking):
            table.enter(arguments[2] if call.op is not None else None, buffers, address, plan)

    def issue(self, method: str, arguments: tuple[Any, ...], algorithm: str | None, segment: Any) -> MPI.Request:
        """Start a non-blocking call; errors as in `run`, those of the transport when the request is waited for."""
        self.check()
        collect()
        arguments = lasting(arguments)
        moves = can_be_helped() or algorithm is not None
        if method in ("Gatherv", "Scatterv"):  # others would have to ask the root for sizes first, and wait
            algorithm = algorithm or "direct"
            if algorithm not in ("direct", NATIVE):
                raise ArgumentError(f"rank {self.rank}: I{method.lower()} takes algorithm 'direct' or 'native', got {algorithm!r}")
        call, plan = self.plan(method, arguments, algorithm, segment)
        name = f"I{method.lower()}"
        if call is None or plan is None:
            return getattr(self.caller, name)(*as_native(method, arguments))
        moves = moves or not call.native or call.strict
        if plan.algorithm == NATIVE or not moves:  # the library's own requests move whenever it is called, by whatever method
            return getattr(self.caller, name)(*self.natively(call, method, arguments))
        self._issued += 1  # on all ranks alike
        return start(self, self.channels[1 + self._issued % IN_FLIGHT], plan, call)

    def prepare(self, method: str, arguments: tuple[Any, ...], algorithm: str | None, segment: Any) -> MPI.Prequest:
        """Plan a persistent call; collective, errors as in `run`."""
        self.check()
        arguments = lasting(arguments)
        call, plan = self.plan(method, arguments, algorithm, segment)
        name = f"{method}_init"
        if call is None or plan is None:
            return getattr(self.caller, name)(*as_native(method, arguments))
        if plan.algorithm == NATIVE:
            return getattr(self.caller, name)(*self.natively(call, method, arguments))
        self._prepared += 1
        request = Persistent()
        describe = None if call.direct else partial(DESCRIBE[method], self, *arguments)
        request._bind(self, plan, self.channel(IN_FLIGHT + self._prepared), call, describe)
        return request

    def forget(self) -> None:
        super().forget()
        self._blocking.clear()
        for table in self.tables.tables.values():
            table.clear()

    def _engine(self, plan: Plan) -> HostEngine:
        """The plan's engine for blocking calls, ready to run."""
        engine = self._blocking.get(id(plan))
        if engine is None:
            engine = plan.build(self.channels[0])
            nbytes = engine.scratch_nbytes + 64
            if nbytes <= _OWN_SCRATCH:
                engine.bind_scratch(np.empty(nbytes, np.uint8))
            else:
                self._grow(nbytes)
                engine.bind_scratch(self._arena)
            if plan in self._plans.values():
                self._blocking[id(plan)] = engine
        return engine

    def _grow(self, nbytes: int) -> None:
        """Make the common scratch large enough."""
        if self._arena.size < nbytes:
            self._arena = np.empty(nbytes, np.uint8)
            for engine in self._blocking.values():
                if engine.scratch_nbytes + 64 > _OWN_SCRATCH:
                    engine.bind_scratch(self._arena)

    def _run_native(self, plan: Plan, method: str, arguments: tuple[Any, ...]) -> None:
        start = perf_counter_ns()
        getattr(self.caller, method)(*arguments)
        sums = plan.sums
        sums[0] += 1
        sums[1] += perf_counter_ns() - start

    def _go_on(self, plan: Plan, engine: HostEngine, status: int, call: Call | None = None) -> None:
        try:
            engine.go_on(status)
            if call is not None and call.finish is not None:
                call.finish()
        except BaseException as error:
            self.interrupted(plan, error)
            raise

    def interrupted(self, plan: Plan, error: BaseException) -> None:
        """A collective that stopped half-way leaves messages under way: say where, and refuse further use."""
        where = f"rank {self.rank}: {plan.title}, {self.nranks} ranks"
        self.close(f"an earlier collective did not end ({where})")
        if isinstance(error, TransportError):
            text = MPI.Get_error_string(error.code) if error.code else str(error)
            raise TransportError(f"{where}: {text}", code=error.code) from error

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


def context_of(comm: MPI.Intracomm) -> Context:
    """The context of a communicator; the first call for it is collective.

    Raises:
        ArgumentError: MPI is not initialised or already finalised, or the settings differ between ranks.
    """
    if not _KEYVALS:
        _KEYVALS.append(MPI.Comm.Create_keyval(delete_fn=_deleted))
        MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=_finalizing), None)  # MPI_Finalize deletes it first of all
    context: Any = comm.Get_attr(_KEYVALS[0])
    if context is None:
        context = Context(comm)
        comm.Set_attr(_KEYVALS[0], context)
    assert isinstance(context, Context)
    return context
