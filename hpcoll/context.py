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

from hpcoll.agreement import agree
from hpcoll.call import Call
from hpcoll.config import NATIVE, log, positive_segment
from hpcoll.describe import DESCRIBE, Caller
from hpcoll.engines import again
from hpcoll.engines.entry import RUN, cross
from hpcoll.engines.host import ALONE, CROWDED, HostEngine
from hpcoll.engines.walk import BUSY
from hpcoll.errors import ArgumentError, TransportError
from hpcoll.inflight import collect, drain
from hpcoll.ledger import Ledger
from hpcoll.native import as_native
from hpcoll.plans import Channel, Plan, build_engine, message_nbytes
from hpcoll.requests import Persistent, start
from hpcoll.selection import Choice, Need, choose
from hpcoll.transports.mpi import handle
from hpcoll.transports.shm import CAPACITY_NBYTES, Node, make_stream
from hpcoll.tuning import type_class

_MAX_PLANS = 1024
_OWN_SCRATCH = 64 << 10  # bytes; blocking calls that need more share their context's
_SHORT = 16 << 10  # bytes of a call in flight that need not wait for the helper
_IN_FLIGHT = 2  # channels for non-blocking calls
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


class Context(Caller):
    """State of one communicator. Made collectively; used by one thread at a time.

    Attributes:
        caller: The caller's communicator, as plain mpi4py object.
        comm: Private duplicate on which hpcoll's messages travel.
        rank, nranks: Of the communicator.
        config: Settings from the environment, equal on all ranks.
        node: The ranks that share memory with this one.
        channels: For blocking calls, then for non-blocking ones.
        ledger: Sums per operation and algorithm.
        tables: Addresses of earlier calls.
        token: The byte that a barrier passes round.
        lock: 1 while a thread is inside a blocking collective.
        closed: Why it cannot be used any more; the empty string while it can.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.rank, self.nranks = comm.Get_rank(), comm.Get_size()
        self.caller = MPI.Intracomm(comm)
        self.comm = self.caller.Dup()
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.closed = ""
        try:
            self.config, hosts = agree(self.comm)
        except ArgumentError:
            self.comm.Free()
            raise
        self._patience = CROWDED if hosts.count(hosts[self.rank]) > (os.cpu_count() or 1) else ALONE
        self.node = Node(self.comm, self.config.shm, self.config.shm_ranks)
        self.channels = [self.channel(index) for index in range(1 + _IN_FLIGHT)]
        if self.node.refused and self.node.rank == 0:
            log.warning("ranks of this node exchange MPI messages: %s", self.node.refused)
        self.ledger, self.tables = Ledger(), _Tables()
        self.token, self.lock = np.zeros(1, np.uint8), np.zeros(1, np.int64)
        self._handle = handle(self.comm)
        self._plans: dict[tuple[Any, ...], Plan] = {}
        self._blocking: dict[int, HostEngine] = {}  # by id of the plan
        self._arena = np.empty(0, np.uint8)
        self._issued = self._prepared = 0
        self.persistent: weakref.WeakValueDictionary[int, Persistent] = weakref.WeakValueDictionary()
        _live.add(self)

    def channel(self, index: int) -> Channel:
        """A new channel; collective."""
        stream = None
        if self.node.nranks > 1 and self.config.shm != 0:
            stream = make_stream(self.node)
        if index == 0:
            shared = self.nranks > 1 and any(self.comm.allgather(stream is not None))
            self._capacity = CAPACITY_NBYTES if shared else 0
        return Channel(index, stream)

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
            repeats, address = call.direct, engine.address
        if table is not None and repeats and (address == 0 or id(plan) in self._blocking):
            table.enter(arguments[2] if call.op is not None else None, buffers, address, plan)

    def issue(self, method: str, arguments: tuple[Any, ...], algorithm: str | None, segment: Any) -> MPI.Request:
        """Start a non-blocking call; errors as in `run`, those of the transport when the request is waited for."""
        self.check()
        collect()
        call, plan = self.plan(method, arguments, algorithm, segment)
        name = f"I{method.lower()}"
        if call is None or plan is None:
            return getattr(self.caller, name)(*as_native(method, arguments))
        if plan.algorithm == NATIVE:
            return getattr(self.caller, name)(*self.natively(call, method, arguments))
        self._issued += 1  # on all ranks alike
        return start(self, self.channels[1 + self._issued % _IN_FLIGHT], plan, call)

    def prepare(self, method: str, arguments: tuple[Any, ...], algorithm: str | None, segment: Any) -> MPI.Prequest:
        """Plan a persistent call; collective, errors as in `run`."""
        self.check()
        call, plan = self.plan(method, arguments, algorithm, segment)
        name = f"{method}_init"
        if call is None or plan is None:
            return getattr(self.caller, name)(*as_native(method, arguments))
        if plan.algorithm == NATIVE:
            return getattr(self.caller, name)(*self.natively(call, method, arguments))
        self._prepared += 1
        request = Persistent()
        describe = None if call.direct else partial(DESCRIBE[method], self, *arguments)
        request._bind(self, plan, self.channel(_IN_FLIGHT + self._prepared), call, describe)
        return request

    def plan(self, method: str, arguments: tuple[Any, ...], algorithm: str | None, segment: Any) -> tuple[Call | None, Plan | None]:
        """Describe a call and find how it runs; neither where only the MPI library understands it.

        Raises:
            ArgumentError: the arguments are wrong or the forced algorithm cannot serve them.
        """
        call = DESCRIBE[method](self, *arguments)
        if call is None:
            if algorithm not in (None, NATIVE):
                raise ArgumentError(f"rank {self.rank}: only the MPI library can serve this call, got algorithm={algorithm!r}")
            return None, None
        try:
            return call, self._find_plan(call, method, algorithm, None if segment is None else positive_segment(segment))
        except ArgumentError as error:
            raise ArgumentError(f"rank {self.rank}: {call.collective} of {call.count} elements of {call.dtype}: {error}") from None

    def natively(self, call: Call, method: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arguments for the MPI library's own method.

        Raises:
            ArgumentError: it does not have the operator.
        """
        try:
            return as_native(method, arguments, call.aliased)
        except ArgumentError as error:
            raise ArgumentError(f"rank {self.rank}: {call.collective} of {call.count} elements of {call.dtype}: {error}") from None

    def _find_plan(self, call: Call, method: str, algorithm: str | None, segment: int | None) -> Plan:
        op = call.op and (call.op.name, call.op.function, call.op.commutative)
        shape = (call.collective, call.count, call.dtype, op, call.root, call.in_place, call.blocks, call.native, call.strict)
        key = (*shape, method, algorithm, segment)
        plan = self._plans.get(key)
        if plan is not None:
            return plan
        choice = self._choose(call, algorithm, segment)
        sizes = self._all_sizes(call, choice)
        account = self.ledger.account(call.collective, choice.algorithm, call.count * call.dtype.itemsize)
        shape_only = call._replace(finish=None, keep=())
        build = partial(
            build_engine, shape_only, choice, self.rank, self.nranks, self._handle, self._patience, sizes, self._capacity, self.lock, account
        )
        title = f"{call.collective}/{choice.algorithm} of {call.count} elements of {call.dtype}"
        plan = Plan(title, choice.algorithm, account, build, short=call.count * call.dtype.itemsize <= _SHORT)
        if sizes:  # the root's counts may change from call to call without this rank knowing
            return plan
        if len(self._plans) >= _MAX_PLANS:
            self._forget()
        self._plans[key] = plan
        return plan

    def _forget(self) -> None:
        self._plans.clear()
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
        plan.account += 1, perf_counter_ns() - start

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

    def _choose(self, call: Call, algorithm: str | None, segment: int | None) -> Choice:
        unknown = call.blocks is not None and call.collective in ("gather", "scatter", "alltoall")
        need = Need(
            call.collective, self.nranks, None if unknown else message_nbytes(call, self.nranks),
            call.op is not None and not call.op.commutative, call.blocks is not None, call.native, call.strict,
            type_class(call.dtype if call.op else None),
        )  # fmt: skip
        choice = choose(need, self.config, algorithm, segment)
        if self.rank == 0:
            log.info("%s of %s: %s, segment %d (%s)", call.collective, call.dtype, choice.algorithm, choice.segment, choice.why)
        return choice

    def _all_sizes(self, call: Call, choice: Choice) -> tuple[int, ...]:
        """Bytes of every rank's block, told by the root, where a schedule forwards blocks that only the root knows."""
        if call.blocks is None or call.collective not in ("gather", "scatter") or choice.algorithm in ("direct", NATIVE):
            return ()
        sizes = np.zeros(self.nranks, np.int64)
        if self.rank == call.root:
            sizes[:] = call.blocks[2]
        self.comm.Bcast(sizes, root=call.root)
        return tuple(sizes.tolist())


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
