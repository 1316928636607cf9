"""What a communicator's calls are planned with: a private duplicate, settings, the node, channels, plans, the ledger. Floor 7."""

import os
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.agreement import agree
from hpcoll.call import Call
from hpcoll.config import NATIVE, log, positive_segment
from hpcoll.describe import DESCRIBE, Caller
from hpcoll.engines.host import ALONE, CROWDED
from hpcoll.errors import ArgumentError
from hpcoll.ledger import Ledger
from hpcoll.native import as_native
from hpcoll.plans import Channel, Plan, build_engine, message_nbytes
from hpcoll.selection import Choice, Need, choose
from hpcoll.transports.mpi import handle
from hpcoll.transports.shm import CAPACITY_NBYTES, Node, make_stream
from hpcoll.tuning import type_class

_MAX_PLANS = 1024
_SHORT = 16 << 10  # bytes of a call in flight that need not wait for the helper
IN_FLIGHT = 2  # channels for non-blocking calls


class Planner(Caller):
    """Finds how the calls of one communicator run. Made collectively.

    Attributes:
        caller: The caller's communicator, as plain mpi4py object.
        comm: Private duplicate on which hpcoll's messages travel.
        rank, nranks: Of the communicator.
        config: Settings from the environment, equal on all ranks.
        node: The ranks that share memory with this one.
        channels: For blocking calls, then for non-blocking ones.
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
        self._patience = CROWDED if hosts.count(hosts[self.rank]) > (os.cpu_count() or 1) else ALONE
        self.node = Node(self.comm, self.config.shm, self.config.shm_ranks)
        self.channels = [self.channel(index) for index in range(1 + IN_FLIGHT)]
        if self.node.refused and self.node.rank == 0:
            log.warning("ranks of this node exchange MPI messages: %s", self.node.refused)
        self._near = self.nranks > 1 and all(self.comm.allgather(self.channels[0].stream is not None and self.node.nranks == self.nranks))
        self.ledger = Ledger()
        self.token, self.lock = np.zeros(1, np.uint8), np.zeros(1, np.int64)
        self._handle = handle(self.comm)
        self._plans: dict[tuple[Any, ...], Plan] = {}

    def channel(self, index: int) -> Channel:
        """A new channel; collective."""
        stream = None
        if self.node.nranks > 1 and self.config.shm != 0:
            stream = make_stream(self.node, self._staging_nbytes())
        if index == 0:
            shared = self.nranks > 1 and any(self.comm.allgather(stream is not None))
            self._capacity = self._staging_nbytes() if shared else 0
        return Channel(index, stream)

    def _staging_nbytes(self) -> int:
        """Bytes of a place of a stream: with very many ranks a lane has very many pieces."""
        return max(CAPACITY_NBYTES, 256 * self.nranks)

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
        shape = (call.collective, call.count, call.dtype, op, call.root, call.in_place, call.blocks, call.native, call.strict, call.copied)
        key = (*shape, method, algorithm, segment)
        plan = self._plans.get(key)
        if plan is not None:
            return plan
        choice = self._choose(call, algorithm, segment)
        sizes = self._all_sizes(call, choice)
        account = self.ledger.account(call.collective, choice.algorithm, call.count * call.dtype.itemsize)
        shape_only = call._replace(finish=None, keep=())
        build = partial(
            build_engine, shape_only, choice, self.rank, self.nranks, self._handle, self._patience, sizes, self._capacity,
            self.lock, account,
        )  # fmt: skip
        title = f"{call.collective}/{choice.algorithm} of {call.count} elements of {call.dtype}"
        plan = Plan(title, choice.algorithm, account, build, short=call.count * call.dtype.itemsize <= _SHORT)
        if sizes:  # the root's counts may change from call to call without this rank knowing
            return plan
        if len(self._plans) >= _MAX_PLANS:
            self.forget()
        self._plans[key] = plan
        return plan

    def _choose(self, call: Call, algorithm: str | None, segment: int | None) -> Choice:
        unknown = call.blocks is not None and call.collective in ("gather", "scatter", "alltoall")
        need = Need(
            call.collective, self.nranks, None if unknown else message_nbytes(call, self.nranks),
            call.op is not None and not call.op.commutative, call.blocks is not None, call.native, call.strict,
            type_class(call.dtype if call.op else None), self._near,
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

    def forget(self) -> None:
        """Drop all plans; they are made anew when needed."""
        self._plans.clear()
