"""Engines for calls: from a call and a choice to a schedule, its program and what runs it.

There is one path for arrays of hosts and of GPUs, which differ in the routes of their messages, in how long a lane may be, and in
the engine.
"""

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

import numpy as np

from hpcoll.base.machine import last_level_nbytes, ncaches
from hpcoll.base.ops import BOR
from hpcoll.base.sizes import Sizes
from hpcoll.comm.arguments.call import Call
from hpcoll.comm.plans.ledger import Account, named
from hpcoll.comm.plans.plan import MAX_WINDOW, MOST_ENGINES, MessageContext, addressed
from hpcoll.comm.plans.segmentation import lane_nbytes, ledger_nbytes, message_nbytes, segmented, window
from hpcoll.comm.plans.signature import Signature, counted, signed_nbytes
from hpcoll.kernels import WIDE_NBYTES
from hpcoll.kernels.host import kernel_address
from hpcoll.runtime.engine.host_engine import Binding, HostEngine, Shape
from hpcoll.runtime.engine.wait_policy import WaitPolicy
from hpcoll.runtime.program.fields import STAGING_SLOTS
from hpcoll.runtime.program.lowering import lower
from hpcoll.runtime.program.opcodes import Program
from hpcoll.runtime.program.route import Route
from hpcoll.runtime.transports.host_routes import host_routes
from hpcoll.runtime.transports.mpi import library
from hpcoll.schedules.catalogue import PACKAGE, find
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.placement import Nodes
from hpcoll.schedules.row import Algorithm
from hpcoll.selection.choice import Choice
from hpcoll.selection.config import log
from hpcoll.selection.topology import Topology

Ways: TypeAlias = Counter[str]  # number of peers by the name of the route

# Engines that never run, of which engines that run are copies: by all that a program depends on but counts; the oldest first.
_PATTERNS: dict[tuple[Any, ...], list[tuple[HostEngine, Ways]]] = {}
_MOST_PATTERNS = 512


def past_the_caches(nbytes: int, nranks: int, *, rooted: bool) -> bool:
    """Say whether results are written past the caches, since these will not hold them until they are read.

    Measured on two Zen 4 cores that share 32 MiB, with 2 and 4 ranks. It gains 8 to 20 % where all arrays together are too large for the
    cache, and loses up to 40 % where they just fit. With a root it gains little before 32 MiB.

    Args:
        nbytes: Bytes of the message.
        nranks: Ranks that share a last-level cache.
        rooted: The collective has a root.
    """
    return nbytes >= last_level_nbytes() if rooted else 2 * nranks * nbytes > last_level_nbytes()


def symbolic(call: Call, nranks: int) -> tuple[Call, Shape]:
    """Return a call with symbolic counts, in the order of `Call.counts`, and its shape."""
    sizes = Sizes(call.counts)
    given, blocks = iter(sizes.given), None  # type: Any, Any
    count: Any = next(given) if call.blocks is None else 0
    if call.blocks is not None:
        inputs, outputs, every = call.blocks
        places = [tuple((next(given), next(given)) for _ in side) for side in (inputs, outputs)]
        blocks = *places, tuple(given)
        count = sum(blocks[2] if every else [n for _, n in blocks[0] or blocks[1]])
    copied = call.copied and (
        count * (call.copied // call.count) if call.blocks is None else count * call.dtype.itemsize
    )
    call = call._replace(count=count, blocks=blocks, copied=copied)
    return call, Shape(sizes, count, ledger_nbytes(call, nranks), counted(call), copied)


class EngineBuilder(ABC):
    """Makes the engines of a communicator's calls, which share a lock."""

    on_gpu: ClassVar[bool] = False

    def __init__(self, topology: Topology, wait_policy: WaitPolicy, lock: np.ndarray) -> None:
        self._topology, self._wait_policy, self._lock = topology, wait_policy, lock
        self._nodes = topology.nodes if self.on_gpu else topology.parts  # as schedules see them

    def build(
        self,
        choice: Choice,
        sizes: tuple[int, ...],
        account: Account,
        call: Call,
        message_context: MessageContext,
    ) -> HostEngine:
        """Build an engine for calls of one kind, of all counts for which its program holds; on GPU arrays for these counts alone.

        Args:
            choice: A catalogue algorithm and the segment size.
            sizes: Bytes of every rank's block where blocks vary and the schedule must know; else empty.
            account: Line of the ledger, which notes the routes of messages.
            call: A call of the kind; its addresses are not used.
            message_context: Message context on which the calls travel.

        Raises:
            KernelError: The operator does not compile for the element type.
        """
        engine, ways = self._unscheduled(account, call, message_context) or self._lowered(
            choice, sizes, account, call, message_context
        )
        return self._signed(engine, choice, account, call, ways)

    def _unscheduled(
        self, account: Account, call: Call, message_context: MessageContext
    ) -> tuple[HostEngine, Ways] | None:
        """Return an engine that runs a call without a schedule, as `_lowered`; None where there is none."""
        return None

    def _lowered(
        self,
        choice: Choice,
        sizes: tuple[int, ...],
        account: Account,
        call: Call,
        message_context: MessageContext,
    ) -> tuple[HostEngine, Ways]:
        """Lower a program, and return its engine and the numbers of peers by route."""
        row = find(call.collective, choice.algorithm)._replace(graph=call.graph)
        call, shape = (call, None) if self.on_gpu or sizes else symbolic(call, len(self._topology.nodes))
        # kernels work on arrays that are all aligned alike
        unit = max(1, WIDE_NBYTES // call.dtype.itemsize) if self.on_gpu else 1
        rank, placement = self._topology.rank, self._placement(row)
        most = self._lane_nbytes(row) if call.cells is None else None  # one lane has all cells, whole
        steps, segments = segmented(row, call, choice.segment, most, rank, placement, sizes, unit)
        if row.chunked and row.key not in PACKAGE:
            from hpcoll.registry.proof import proven  # seldom needed

            proven(row, len(placement), call.root, steps.nchunks)
        routes = self._routes(call, message_context)
        program = lower(
            steps,
            segments,
            call.dtype.itemsize,
            self._window(len(steps.channels)),
            in_place=call.in_place,
            routes=routes,
            mapped=call.mapped,
            on_gpu=self.on_gpu,
        )
        engine = self._engine(program, call, account.sums, message_context, shape)
        if shape is None:
            engine.bind_counts(
                call.count, ledger_nbytes(call, len(self._topology.nodes)), counted(call), call.copied
            )
        return engine, Counter(route.name for route in routes.values())  # lowering has asked for no others

    def _signed(
        self, engine: HostEngine, choice: Choice, account: Account, call: Call, ways: Ways
    ) -> HostEngine:
        """Return an engine with its signature, by which peers compare calls; note its routes in ledger and log."""
        engine.sign(Signature.of(call, choice.algorithm, choice.segment).word, signed_nbytes(call))
        if call.cells is not None:
            engine.bind_cells(*call.cells, call.count)
        account.ways.update(ways)
        if log.isEnabledFor(logging.DEBUG):
            peers = ", ".join(f"{n} by {way}" for way, n in sorted(ways.items())) or "none"
            log.debug(
                "rank %d: %s: %s, peers: %s",
                self._topology.rank,
                named(call.collective, call.element),
                choice.algorithm,
                peers,
            )
        return engine

    @abstractmethod
    def _routes(self, call: Call, message_context: MessageContext) -> Mapping[int, Route]:
        """Return the route to each peer."""

    def _placement(self, row: Algorithm) -> Nodes:
        """Return the placement of ranks for which a row's schedule is made."""
        return self._nodes

    @abstractmethod
    def _lane_nbytes(self, row: Algorithm) -> int | None:
        """Return the most bytes of the message in one lane; None: any number."""

    @abstractmethod
    def _window(self, nchannels: int) -> int:
        """Return the most lanes in flight."""

    @abstractmethod
    def _engine(
        self,
        program: Program,
        call: Call,
        account: np.ndarray,
        message_context: MessageContext,
        shape: Shape | None,
    ) -> HostEngine:
        """Return the engine of a program."""


class HostEngines(EngineBuilder):
    """Makes engines for arrays in host memory; ``capacity`` has the bytes of a staging slot, 0 where no rank has rings."""

    def __init__(self, topology: Topology, wait_policy: WaitPolicy, lock: np.ndarray, capacity: int) -> None:
        super().__init__(topology, wait_policy, lock)
        self._capacity = capacity
        self._who = topology.rank, self._nodes, capacity, wait_policy
        alike = topology.domains.count(topology.domains[topology.rank])
        whole = topology.nodes.count(topology.nodes[topology.rank])
        self._sharing = alike if alike < whole else -(-alike // ncaches())

    def build(
        self,
        choice: Choice,
        sizes: tuple[int, ...],
        account: Account,
        call: Call,
        message_context: MessageContext,
    ) -> HostEngine:
        """Build an engine as `EngineBuilder.build`; calls of other element types, operators, methods and communicators share programs."""
        if sizes:
            return super().build(choice, sizes, account, call, message_context)
        local = tuple(message_context.local_peers.items())
        blocks = call.blocks and tuple(map(len, call.blocks))
        form = call.root, call.in_place, blocks, bool(call.copied), call.mapped, call.graph
        key = *self._who, local, call.collective, *choice[:2], call.dtype.itemsize, *form
        patterns = _PATTERNS.setdefault(key, [])
        counts = addressed(call.counts)
        for pattern, ways in patterns:
            binding = self._binding(pattern.program, call, account.sums, message_context)
            engine = pattern.another(counts.buffer_info()[0], binding)
            if engine is not None:
                return self._signed(engine, choice, account, call, ways)
        engine, ways = self._lowered(choice, sizes, account, call, message_context)
        unused = engine.another(counts.buffer_info()[0], Binding(0, np.zeros(1, np.int64), Account().sums))
        assert unused is not None
        patterns[MOST_ENGINES - 1 :] = []
        patterns.insert(0, (unused, ways))
        if len(_PATTERNS) > _MOST_PATTERNS:
            _PATTERNS.pop(next(iter(_PATTERNS)), None)
        return self._signed(engine, choice, account, call, ways)

    def _routes(self, call: Call, message_context: MessageContext) -> Mapping[int, Route]:
        return host_routes(message_context.local_peers)

    def _lane_nbytes(self, row: Algorithm) -> int | None:
        if not self._capacity or len(self._nodes) < 2:
            return None
        return lane_nbytes(row, self._capacity, self._nodes, apart=self._nodes == self._topology.nodes)

    def _window(self, nchannels: int) -> int:
        return (
            STAGING_SLOTS
            if self._capacity
            else min(window(len(self._topology.nodes)) * nchannels, MAX_WINDOW)
        )

    def _engine(
        self,
        program: Program,
        call: Call,
        account: np.ndarray,
        message_context: MessageContext,
        shape: Shape | None,
    ) -> HostEngine:
        return HostEngine(
            program,
            library(),
            self._wait_policy,
            self._binding(program, call, account, message_context),
            shape,
        )

    def _binding(
        self, program: Program, call: Call, account: np.ndarray, message_context: MessageContext
    ) -> Binding:
        operator = BOR if call.collective == "barrier" else call.op
        kernel = kernel_address(operator, call.dtype) if operator is not None and len(program.sources) else 0
        nbytes, rooted = message_nbytes(call, len(self._topology.nodes)), COLLECTIVES[call.collective].rooted
        uncached = past_the_caches(nbytes, self._sharing, rooted=rooted)
        return Binding(
            message_context.comm,
            self._lock,
            account,
            kernel,
            message_context.rings,
            message_context.log,
            message_context.tags,
            uncached,
        )
