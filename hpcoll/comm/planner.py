"""What a communicator's calls are planned with: a private duplicate, settings, the node, message_contexts, plans, the ledger."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import ArgumentError
from hpcoll.comm.calls.call import Call
from hpcoll.comm.calls.methods import Caller
from hpcoll.comm.calls.native import as_native
from hpcoll.comm.ledger import Ledger
from hpcoll.comm.plan import MessageContext, Plan, build_engine, message_nbytes
from hpcoll.runtime.engine.host_engine import OWN_CORE, SHARED_CORE, HostEngine
from hpcoll.runtime.transports.mpi import handle
from hpcoll.runtime.transports.shm import CAPACITY_NBYTES, Node, Rings, make_rings
from hpcoll.selection.agreement import agree
from hpcoll.selection.choose import Choice, Need, choose
from hpcoll.selection.config import NATIVE, log, positive_segment
from hpcoll.selection.topology import find_topology
from hpcoll.selection.tuning import type_class

_MAX_PLANS = 1024
_SHORT = 16 << 10  # bytes of a call in flight that need not wait for the helper
_YIELDS = "OMPI_MCA_mpi_yield_when_idle"  # how a user tells Open MPI that cores have several ranks
IN_FLIGHT = 2  # message_contexts for non-blocking calls


class Planner(Caller):
    """Finds how the calls of one communicator run. Made collectively.

    Attributes:
        caller: The caller's communicator, as plain mpi4py object.
        comm: Private duplicate on which hpcoll's messages travel.
        rank, nranks: Of the communicator.
        config: Settings from the environment, equal on all ranks.
        node: The ranks that share memory with this one.
        topology: Where all ranks run.
        levels: What messages cost on a node and between nodes.
        message_contexts: For blocking calls, then for non-blocking ones.
        ledger: Sums per operation and algorithm.
        token: The byte that a barrier passes round.
        lock: 1 while a thread is inside a blocking collective.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.rank, self.nranks = comm.Get_rank(), comm.Get_size()
        self.caller = MPI.Intracomm(comm)
        self.comm = self.caller.Dup()
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        try:
            self.config, hosts = agree(self.comm)
        except ArgumentError:
            self.comm.Free()
            raise
        crowded = hosts.count(hosts[self.rank]) > (os.cpu_count() or 1) or os.environ.get(_YIELDS, "0") not in ("", "0", "false")
        self._wait_policy = SHARED_CORE if crowded else OWN_CORE
        self.node = Node(self.comm, self.config.shm, self.config.shm_ranks)
        self.message_contexts = self.new_message_contexts(0, 1 + IN_FLIGHT)
        self.topology = find_topology(self.comm, hosts, self.node.first)
        self.levels = self.topology.levels(self.config.levels)
        if self.rank == 0:
            log.info("ranks: %s", self.topology)
        shares = self.message_contexts[0].rings is not None
        self._capacity = self._staging_nbytes() if any(self.comm.allgather(shares)) else 0
        self._one_node = shares and self.node.nranks == self.nranks  # alike on all ranks
        self.ledger = Ledger()
        self.token, self.lock = np.zeros(1, np.uint8), np.zeros(1, np.int64)
        self._handle = handle(self.comm)
        self._plans: dict[tuple[Any, ...], Plan] = {}

    def new_message_contexts(self, first: int, n: int, capacity: int | None = None) -> list[MessageContext]:
        """``n`` message_contexts, numbered from ``first`` on, with so many bytes of each staging slot; collective."""
        rings: Sequence[Rings | None] | None = None
        if self.node.nranks > 1 and self.config.shm != 0:
            said = self.node.refused
            rings = make_rings(self.node, n, capacity or self._staging_nbytes())
            if rings is None and self.node.rank == 0 and not said:
                log.warning("ranks of this node exchange MPI messages: %s", self.node.refused)
        return [MessageContext(first + i, one) for i, one in enumerate(rings or [None] * n)]

    def _staging_nbytes(self) -> int:
        """Bytes of a staging slot: with very many ranks a lane has very many pieces."""
        return max(CAPACITY_NBYTES, 256 * self.nranks)

    def plan(self, call: Call | None, method: str, algorithm: str | None, segment: Any) -> Plan | None:
        """Find how a call runs; None where only the MPI library understands it.

        Raises:
            ArgumentError: the forced algorithm cannot serve it.
        """
        if call is None:
            if algorithm not in (None, NATIVE):
                raise ArgumentError(f"rank {self.rank}: only the MPI library can serve this call, got algorithm={algorithm!r}")
            return None
        try:
            return self._find_plan(call, method, algorithm, None if segment is None else positive_segment(segment))
        except ArgumentError as error:
            raise self._refusal(call, error) from None

    def natively(self, call: Call | None, method: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arguments for the MPI library's own method; ``call`` is None where only that understands them.

        Raises:
            ArgumentError: it does not have the operator.
        """
        try:
            return as_native(method, arguments, call is not None and call.aliased)
        except ArgumentError as error:
            raise self._refusal(call or method, error) from None

    def _refusal(self, call: Call | str, error: ArgumentError) -> ArgumentError:
        """The error, with the rank and what was called."""
        what = call if isinstance(call, str) else f"{call.collective} of {call.count} elements of {call.dtype}"
        return ArgumentError(f"rank {self.rank}: {what}: {error}")

    def _find_plan(self, call: Call, method: str, algorithm: str | None, segment: int | None) -> Plan:
        op = call.op and (call.op.name, call.op.function, call.op.commutative)
        shape = (call.collective, call.count, call.dtype, op, call.root, call.in_place, call.blocks, call.native, call.strict, call.copied)
        key = (*shape, call.exported, call.one_fold, method, algorithm, segment)
        plan = self._plans.get(key)
        if plan is not None:
            return plan
        choice = self._choose(call, algorithm, segment)
        sizes = self._all_sizes(call, choice)
        parts = self.nranks if call.collective == "alltoall" and call.blocks is None else 1
        nbytes = parts * call.count * call.dtype.itemsize
        account = self.ledger.account(call.collective, choice.algorithm, nbytes)
        build = self._builder(call._replace(finish=None, keep=(), before=(), start=None), choice, sizes, account)
        title = f"{call.collective}/{choice.algorithm} of {call.count} elements of {call.dtype}"
        plan = Plan(title, choice.algorithm, account, build, short=call.exported is None and call.count * call.dtype.itemsize <= _SHORT)
        if sizes:  # the root's counts may change from call to call without this rank knowing
            return plan
        if len(self._plans) >= _MAX_PLANS:
            self.forget()
        self._plans[key] = plan
        return plan

    def _builder(self, call: Call, choice: Choice, sizes: tuple[int, ...], account: np.ndarray) -> Callable[[MessageContext], HostEngine]:
        """What makes engines for a call's shape."""
        return partial(
            build_engine, call, choice, self.topology, self._handle, self._wait_policy, sizes, self._capacity, self.lock, account
        )

    def _choose(self, call: Call, algorithm: str | None, segment: int | None) -> Choice:
        need = Need(
            call.collective, self.nranks, self.known_nbytes(call), call.op is not None and not call.op.commutative,
            call.blocks is not None, call.native, call.strict, type_class(call.dtype if call.op else None), self._one_node,
            self.topology.nodes, self.levels, call.exported is not None, call.one_fold,
        )  # fmt: skip
        choice = choose(need, self.config, algorithm, segment)
        if self.rank == 0:
            log.info("%s of %s: %s, segment %d (%s)", call.collective, call.dtype, choice.algorithm, choice.segment, choice.why)
        return choice

    def known_nbytes(self, call: Call) -> int | None:
        """m, or None where a rank cannot know it."""
        unknown = call.blocks is not None and call.collective in ("gather", "scatter", "alltoall")
        return None if unknown else message_nbytes(call, self.nranks)

    def _all_sizes(self, call: Call, choice: Choice) -> tuple[int, ...]:
        """Bytes of every rank's block, told by the root, where a schedule forwards blocks that only the root knows."""
        if call.blocks is None or call.collective not in ("gather", "scatter") or choice.algorithm in ("direct", NATIVE):
            return ()
        sizes = np.zeros(self.nranks, np.int64)
        if self.rank == call.root:
            sizes[:] = call.blocks[2]
        self.comm.Bcast(sizes, root=call.root)
        return tuple(sizes.tolist())

    def forget(self) -> None:
        """Drop all plans; they are made anew when needed."""
        self._plans.clear()
