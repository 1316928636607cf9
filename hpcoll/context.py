"""What hpcoll keeps for one MPI communicator: a private duplicate, settings, plans, scratch, the ledger. Floor 7.

It hangs on the communicator as an attribute, so that every `hpcoll.Communicator` over the same MPI communicator shares it and
it dies with it. A plan is kept per call shape; running it again is a lookup and one crossing into compiled code.
"""

import os
import weakref
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.agreement import agree
from hpcoll.call import Call
from hpcoll.config import NATIVE, log, positive_segment
from hpcoll.engines.host import ALONE, CROWDED, HostEngine, advance
from hpcoll.errors import ArgumentError, TransportError
from hpcoll.ledger import Ledger
from hpcoll.native import as_native
from hpcoll.plans import Plan, aligned, build_engine, message_nbytes
from hpcoll.selection import Choice, Need, choose
from hpcoll.transports.mpi import handle

_MAX_PLANS = 1024
_TWO_THREADS = "another thread is inside a collective on this communicator: use one each"
_IN_PLACE = MPI.IN_PLACE
_ndarray = np.ndarray
_is_finalized = MPI.Is_finalized
_memory = MPI.buffer  # contiguous memory of an object, or BufferError
_live: "weakref.WeakSet[Context]" = weakref.WeakSet()


class Context:
    """State of one communicator. Made collectively; used by one thread at a time.

    Attributes:
        caller: The caller's communicator, as plain mpi4py object.
        comm: Private duplicate on which hpcoll's messages travel.
        rank, nranks: Of the communicator.
        config: Settings from the environment, equal on all ranks.
        ledger: Sums per operation and algorithm.
        token: The byte that a barrier passes round.
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
        self.ledger = Ledger()
        self._handle = handle(self.comm)
        self._plans: dict[tuple[Any, ...], Plan] = {}
        self._repeats: dict[tuple[Any, ...], Plan] = {}
        self.token = np.zeros(1, np.uint8)
        self._tokens = [0]  # empty while a thread is inside a collective
        self._arena = np.empty(0, np.uint8)
        _live.add(self)

    def free(self) -> None:
        """Free the duplicate and all plans."""
        if not self.closed:
            self.closed = "the communicator was freed"
            self._plans.clear()
            self._repeats.clear()
            if not MPI.Is_finalized():
                self.comm.Free()

    def _find_plan(self, call: Call, method: str, algorithm: str | None, segment: int | None) -> Plan:
        """The plan for a call's shape, built when first asked for.

        Raises:
            ArgumentError: the forced algorithm cannot serve the call.
            KernelError: the operator does not compile.
        """
        op = call.op and (call.op.name, call.op.function, call.op.commutative)
        shape = (call.collective, call.count, call.dtype, op, call.root, call.in_place, call.blocks, call.native, call.strict)
        key = (*shape, method, algorithm, segment)
        plan = self._plans.get(key)
        if plan is None:
            choice = self._choose(call, algorithm, segment)
            sizes = self._all_sizes(call, choice)
            engine = None
            if choice.algorithm != NATIVE:
                engine = build_engine(call, choice, self.rank, self.nranks, self._handle, self._patience, sizes)
            title = f"{call.collective}/{choice.algorithm} of {call.count} elements of {call.dtype}"
            account = self.ledger.account(call.collective, choice.algorithm, call.count * call.dtype.itemsize)
            plan = Plan(title, engine, getattr(self.caller, method), account)
            if sizes:  # the root's counts may change from call to call without this rank knowing
                return plan
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
                self._repeats.clear()
            self._plans[key] = plan
        return plan

    def check(self) -> None:
        """Refuse a communicator that cannot be used any more.

        Raises:
            ArgumentError: says why.
        """
        if self.closed or MPI.Is_finalized():
            why = "MPI is finalised" if MPI.Is_finalized() else self.closed
            raise ArgumentError(f"rank {self.rank}: this communicator cannot be used: {why}")

    def execute(self, call: Call | None, key: tuple[Any, ...], arguments: tuple[Any, ...], *buffers: Any) -> None:
        """Run a call.

        Args:
            call: What to run; None for one that only the MPI library understands.
            key: Method, what tells one call from another but the buffers, ``algorithm`` and ``segment``.
            arguments: The caller's positional arguments.
            buffers: With which `repeat` may be asked the next time.
        Raises:
            ArgumentError: the keywords do not fit the call, or another thread is inside this communicator.
            KernelError: the operator does not compile.
            TransportError: the MPI library failed; the communicator cannot be used any more.
        """
        method, *_, algorithm, segment = key
        if call is None:
            if algorithm not in (None, NATIVE):
                raise ArgumentError(f"rank {self.rank}: only the MPI library can serve this call, got algorithm={algorithm!r}")
            getattr(self.caller, method)(*as_native(method, arguments))
            return
        try:
            plan = self._find_plan(call, method, algorithm, None if segment is None else positive_segment(segment))
            theirs = as_native(method, arguments, call.aliased) if plan.engine is None else ()
        except ArgumentError as error:
            raise ArgumentError(f"rank {self.rank}: {call.collective} of {call.count} elements of {call.dtype}: {error}") from None
        if plan.engine is None:
            self._run_native(plan, theirs)
            repeats = all(one is other for one, other in zip(theirs, arguments, strict=True))
        else:
            self._run(plan, plan.engine, call.send, call.recv, call.finish)
            repeats = call.direct
        if buffers and repeats:
            found = _shape(key, *buffers)
            if found is not None:
                self._repeats[found[0]], plan.reach = plan, max(plan.reach, found[1])

    def repeat(self, key: tuple[Any, ...], sendbuf: Any, recvbuf: Any, arguments: tuple[Any, ...]) -> bool:
        """Run a call like an earlier one, on one-dimensional NumPy arrays. Short calls spend most of their time here.

        Args:
            key, arguments: As in `execute`.
            sendbuf, recvbuf: Those buffers of the caller that count on this rank; sendbuf may be ``MPI.IN_PLACE``.
        Returns:
            False when there was no such call yet, or this one must be looked at closely; nothing has happened then.
        """
        if self.closed or _is_finalized() or type(recvbuf) is not _ndarray or recvbuf.ndim != 1:
            return False
        dtype = recvbuf.dtype
        try:
            if sendbuf is _IN_PLACE:
                plan = self._repeats[key, dtype, recvbuf.size]
                recv = _memory(recvbuf)
                send_address = recv_address = recv.address
            elif type(sendbuf) is _ndarray and sendbuf.dtype is dtype:
                plan = self._repeats[key, dtype, recvbuf.size, sendbuf.size]
                recv = _memory(recvbuf)
                send_address, recv_address = _memory(sendbuf).address, recv.address
                if -plan.reach < send_address - recv_address < plan.reach:
                    return False
            else:
                return False
        except (KeyError, TypeError, BufferError):  # not seen before, an operator that cannot be a key, not contiguous
            return False
        engine = plan.engine
        if engine is None:
            self._run_native(plan, arguments)
        elif recv.readonly:
            return False
        else:
            self._run(plan, engine, send_address, recv_address)
        return True

    def _run_native(self, plan: Plan, arguments: tuple[Any, ...]) -> None:
        start = perf_counter()
        plan.native(*arguments)
        plan.account.calls += 1
        plan.account.seconds += perf_counter() - start

    def _run(self, plan: Plan, engine: HostEngine, send: int, recv: int, finish: Callable[[], None] | None = None) -> None:
        try:
            token = self._tokens.pop()  # atomic, and half the price of a lock
        except IndexError:
            raise ArgumentError(f"rank {self.rank}: {_TWO_THREADS}") from None
        try:
            start = perf_counter()
            if plan.scratch is None:
                engine.bind_scratch(self._scratch(engine.scratch_nbytes))
            status = advance(engine.address, send, recv, 1)
            if status:
                engine.go_on(status)
            if finish is not None:
                finish()
            account = plan.account
            account.calls += 1
            account.seconds += perf_counter() - start
        except BaseException as error:
            self._interrupted(plan, error)
            raise
        finally:
            self._tokens.append(token)

    def _interrupted(self, plan: Plan, error: BaseException) -> None:
        """A collective that stopped half-way leaves messages under way: say where, and refuse further use."""
        where = f"rank {self.rank}: {plan.title}, {self.nranks} ranks"
        self.closed = f"an earlier collective did not end ({where})"
        if isinstance(error, TransportError):
            text = MPI.Get_error_string(error.code) if error.code else str(error)
            raise TransportError(f"{where}: {text}", code=error.code) from error

    def _choose(self, call: Call, algorithm: str | None, segment: int | None) -> Choice:
        unknown = call.blocks is not None and call.collective in ("gather", "scatter", "alltoall")
        need = Need(
            call.collective, self.nranks, None if unknown else message_nbytes(call, self.nranks),
            call.op is not None and not call.op.commutative, call.blocks is not None, call.native, call.strict,
        )  # fmt: skip
        choice = choose(need, self.config, algorithm, segment)
        if self.rank == 0:
            log.info("%s of %s: %s, segment %d (%s)", call.collective, call.dtype, choice.algorithm, choice.segment, choice.why)
        return choice

    def _all_sizes(self, call: Call, choice: Choice) -> tuple[int, ...]:
        """Bytes of every rank's block, told by the root, where a schedule forwards blocks that only the root knows."""
        if call.blocks is None or call.collective not in ("gather", "scatter") or choice.algorithm in ("direct", NATIVE):
            return ()
        if not self._tokens:
            raise ArgumentError(_TWO_THREADS)
        sizes = np.zeros(self.nranks, np.int64)
        if self.rank == call.root:
            sizes[:] = call.blocks[2]
        self.comm.Bcast(sizes, root=call.root)
        return tuple(sizes.tolist())

    def _scratch(self, nbytes: int) -> int:
        if self._arena.size < nbytes + 64:
            self._arena = np.empty(nbytes + 64, np.uint8)
        return aligned(self._arena)


def _shape(key: tuple[Any, ...], sendbuf: Any, recvbuf: Any) -> tuple[tuple[Any, ...], int] | None:
    """Key under which `Context.repeat` finds a call, and bytes within which its buffers may not meet; None where it cannot."""
    if type(recvbuf) is not _ndarray or recvbuf.ndim != 1 or isinstance(key[1], MPI.Op):
        return None
    if sendbuf is _IN_PLACE:
        return (key, recvbuf.dtype, recvbuf.size), 0
    if type(sendbuf) is not _ndarray or sendbuf.ndim != 1:
        return None
    return (key, recvbuf.dtype, recvbuf.size, sendbuf.size), max(recvbuf.nbytes, sendbuf.nbytes)


def _after_fork() -> None:
    for context in _live:
        context.closed = "this process is a fork: MPI belongs to its parent"


os.register_at_fork(after_in_child=_after_fork)


def _deleted(comm: MPI.Comm, keyval: int, context: Context) -> None:
    context.free()


_KEYVALS: list[int] = []


def context_of(comm: MPI.Intracomm) -> Context:
    """The context of a communicator; the first call for it is collective.

    Raises:
        ArgumentError: MPI is not initialised or already finalised, or the settings differ between ranks.
    """
    if not _KEYVALS:
        _KEYVALS.append(MPI.Comm.Create_keyval(delete_fn=_deleted))
    context: Any = comm.Get_attr(_KEYVALS[0])
    if context is None:
        context = Context(comm)
        comm.Set_attr(_KEYVALS[0], context)
    assert isinstance(context, Context)
    return context
