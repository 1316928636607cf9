"""Resources of a communicator's calls on GPU arrays: memory that its ranks map of each other, message contexts, routes, engines."""

from collections import Counter
from collections.abc import Mapping
from typing import ClassVar
from weakref import WeakKeyDictionary

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import ArgumentError, DeviceError
from hpcoll.comm.arguments.call import Call
from hpcoll.comm.gpu.one_shot import one_shot
from hpcoll.comm.plans.engine_builder import EngineBuilder, Ways
from hpcoll.comm.plans.ledger import Account
from hpcoll.comm.plans.plan import ContextPool, MessageContext
from hpcoll.comm.plans.segmentation import lane_nbytes, ledger_nbytes
from hpcoll.comm.plans.signature import Purpose, counted
from hpcoll.comm.team.resources import Resources
from hpcoll.comm.team.shared_staging import StagingLease
from hpcoll.comm.team.team import IN_FLIGHT
from hpcoll.runtime.engine.gpu_engine import GpuEngine
from hpcoll.runtime.engine.host_engine import Binding, HostEngine, Shape
from hpcoll.runtime.engine.wait_policy import WaitPolicy
from hpcoll.runtime.gpu.channel import Channel
from hpcoll.runtime.gpu.cuda_aware import takes_gpu_memory
from hpcoll.runtime.gpu.device import Gpu, Memory, kernels
from hpcoll.runtime.gpu.ipc import Directory
from hpcoll.runtime.gpu.routes import PinnedRingRoute, gpu_routes
from hpcoll.runtime.program.fields import STAGING_SLOTS
from hpcoll.runtime.program.opcodes import Program
from hpcoll.runtime.program.route import Routes
from hpcoll.runtime.transports.mpi import library
from hpcoll.schedules.placement import Nodes, numbered
from hpcoll.schedules.row import Algorithm
from hpcoll.selection.config import DEVICE, DIRECT, IPC, log
from hpcoll.selection.topology import Topology

LANE_NBYTES = 16 << 20  # of the message, where all ranks read each other's GPU memory
CAPACITY_NBYTES = 4 << 20  # of a staging slot in pinned memory, elsewhere
_NO_STAGING_NBYTES = 4096


class Gpus(ContextPool):
    """The GPUs of a communicator's ranks, and what they reach of each other. Made collectively, at their first call with GPU arrays.

    Args:
        resources: Resources of the communicator.
        gpu: GPU of this rank.

    Attributes:
        mapped: Whether all ranks map each other's GPU memory.
        gpus: Number of each rank's GPU if so, else empty.
        directory: Memory that the local ranks export to each other, or None.

    Raises:
        ArgumentError: on every rank, when the route that is forced does not exist.
    """

    def __init__(self, resources: Resources, gpu: Gpu) -> None:
        self.gpu, self._resources, self._ranks, self._path = (
            gpu,
            resources,
            resources.node,
            resources.config.cuda_path,
        )
        self._me = object()  # by which the group's turns know whose they are
        self._turn: StagingLease | None = None
        self._blocking: MessageContext | None = None
        self._in_flight: list[MessageContext] = []
        self._channels: WeakKeyDictionary[MessageContext, Channel] = WeakKeyDictionary()
        with resources.alone(Purpose.GPU, "the first call of arrays in GPU memory"):
            self._find(resources.native)
            self._stages = bool(self._capacity and resources.capacity)
            if not self._stages:
                self._blocking, *self._in_flight = self._new_message_contexts(1 + IN_FLIGHT)
        if self._ranks.rank == 0:
            log.info("GPU arrays of rank %d: %s", resources.rank, self.routes_text())

    def _find(self, comm: MPI.Intracomm) -> None:
        """Find what GPUs can reach, and what they must have for that."""
        path, ranks = self._path, self._ranks
        self.directory: Directory | None = None
        self._readers, self._why, problem = frozenset[int](), "they share no memory", ""
        if self._resources.shares_memory and path in (None, IPC, DEVICE):
            self._meet()
        asks = path == DIRECT or (path is None and ranks.nranks < comm.size)
        self._mpi_takes_gpu = asks and self._node_takes()
        if path == DIRECT and not self._mpi_takes_gpu:
            problem = f"rank {comm.rank}: HPCOLL_CUDA_PATH is direct, but the MPI library does not take addresses of GPU memory"
        mapped = len(self._readers) == comm.size - 1
        if path == IPC and len(self._readers) < ranks.nranks - 1:
            problem = f"rank {comm.rank}: HPCOLL_CUDA_PATH is ipc, but ranks of the node cannot map its memory: {self._why}"
        if path == DEVICE and not mapped:
            problem = f"rank {comm.rank}: HPCOLL_CUDA_PATH is device, but not all ranks can map its memory: {self._why}"
        everyone = comm.allgather(
            (problem, mapped, self.gpu.driver.bus_id(self.gpu.ordinal), self.gpu.has_mps)
        )
        if any(text for text, *_ in everyone):
            raise ArgumentError(next(text for text, *_ in everyone if text))
        self.mapped = all(mapped for _, mapped, *_ in everyone)
        self.gpus: Nodes = numbered(bus for _, _, bus, _ in everyone) if self.mapped else ()
        if path == DEVICE and len({*self.gpus}) < comm.size and not all(mps for *_, mps in everyone):
            why = "ranks share a GPU without MPS, where a kernel that waits for another rank keeps that from running"
            raise ArgumentError(f"rank {comm.rank}: HPCOLL_CUDA_PATH is device, but {why}")
        self._capacity = 0 if self.mapped or path == DIRECT else CAPACITY_NBYTES

    def _meet(self) -> None:
        """Make the directory."""
        try:
            self.directory = Directory(self._ranks, self.gpu)
        except ArgumentError as error:
            self._why = str(error)
        else:
            self._readers, self._why = self.directory.readers, self.directory.problem

    def _node_takes(self) -> bool:
        """Say whether the MPI library takes GPU memory; tried once per node, in another process."""
        return bool(self._ranks.comm.bcast(takes_gpu_memory(self.gpu) if self._ranks.rank == 0 else None))

    def routes_text(self) -> str:
        """Return the routes to the peers in words, for the log."""
        reached = self._resources.message_contexts[0].local_peers if self._path != DIRECT else {}
        routes, local = self._routes(reached, (True, True)), self._ranks.local_peers
        counts = Counter(
            (rank in local, type(routes[rank]))
            for rank in range(self._resources.nranks)
            if rank != self._resources.rank
        )
        parts = []
        for (is_local, route), n in sorted(counts.items(), key=lambda entry: not entry[0][0]):
            why = f" ({self._why})" if route is PinnedRingRoute else ""
            parts.append(
                (f"{n} of {len(local)} ranks of the node " if is_local else "other nodes ") + route.text + why
            )
        return "; ".join(parts) or "one rank"

    def routes(self, call: Call, message_context: MessageContext) -> Routes:
        """Return the route to each peer."""
        assert call.exported is not None
        return self._routes(message_context.local_peers, call.exported)

    def _routes(self, reached: Mapping[int, int], exported: tuple[bool, bool]) -> Routes:
        return gpu_routes(
            reached, self._readers, exported, mpi_takes_gpu=self._mpi_takes_gpu, puts=self.mapped
        )

    def channel(self, message_context: MessageContext) -> Channel:
        """Return the channel on which one-shot kernels of a message context meet; collective when first asked for."""
        if message_context not in self._channels:
            assert self.directory is not None
            with self._resources.alone(Purpose.GPU, "the first call by one kernel"):
                self._channels[message_context] = Channel(self.gpu, self.directory, self._resources.rank)
        return self._channels[message_context]

    def begin(self) -> MessageContext:
        """Return the message context of a blocking call; where staging memory is large, the team's communicators take turns with it."""
        resources, turns = self._resources, self._resources.team.turns
        if self._stages and (self._turn is None or not turns.begin(self._turn, self._me)):
            with resources.alone(Purpose.GPU, "a blocking call of arrays in GPU memory"):
                self._turn, self._blocking = (
                    turns.take(self._me, self.gpu, resources.native) or self._new_turn()
                )
        assert self._blocking is not None
        return self._blocking

    def end(self) -> None:
        """Let another communicator have the message context, which must try itself where memory was refused."""
        blocking = self._blocking
        if (
            self._turn is not None
            and blocking is not None
            and (blocking.rings is not None or not self._resources.shares_memory)
        ):
            self._turn.end(blocking)

    def _new_turn(self) -> tuple[StagingLease, MessageContext]:
        (made,) = self._new_message_contexts(1)
        return self._resources.team.turns.add(self._me, self.gpu), made

    def in_flight(self, turn: int) -> MessageContext:
        """Return the message context of a non-blocking call; the first ones are made."""
        if not self._in_flight:
            with self._resources.alone(Purpose.GPU, "the first call in flight of arrays in GPU memory"):
                self._in_flight = self._new_message_contexts(IN_FLIGHT)
        return self._in_flight[turn]

    def message_context(self) -> MessageContext:
        """Make a message context for a persistent request."""
        with self._resources.alone(Purpose.GPU, "a persistent request of arrays in GPU memory"):
            (made,) = self._new_message_contexts(1)
        return made

    def give_back(self, message_context: MessageContext) -> None:
        """Do nothing: its memory goes with it."""

    def _new_message_contexts(self, n: int) -> list[MessageContext]:
        """Return message contexts whose staging memory GPUs read and write; collective.

        It is pinned at once, which gives it pages, and all ranks of the node do without it where that fails on one of them.
        """
        message_contexts = self._resources.team.new_message_contexts(n, self._capacity or _NO_STAGING_NBYTES)
        problem = (
            ""
            if message_contexts[0].rings is not None or not self._resources.shares_memory
            else self._ranks.refused
        )
        try:
            for message_context in message_contexts:
                self._pin(message_context)
        except DeviceError as error:
            problem = str(error)
        refused = next(filter(None, self._ranks.comm.allgather(problem)), "")
        if refused:
            log.warning("GPU arrays travel by MPI on this node: %s", refused)
        use = not refused and self._path != DIRECT
        self._resources.team.uses_mpi |= not use
        return message_contexts if use else [message_context.by_mpi() for message_context in message_contexts]

    def _pin(self, message_context: MessageContext) -> None:
        """Let GPUs read and write a message context's staging memory, if it has any.

        Raises:
            DeviceError: they cannot.
        """
        rings = message_context.rings
        if rings is None or not self._capacity:
            return
        try:
            for address, nbytes in rings.staging:
                self.gpu.pin(rings.window, address, nbytes)
        except DeviceError as error:
            raise DeviceError(
                f"rank {self._resources.rank}: shared memory cannot be pinned: {error}", code=error.code
            ) from error

    def exported(self, call: Call, spans: list[tuple[int, int]]) -> tuple[bool, bool]:
        """Say whether peers may map INPUT, and OUTPUT, which are the caller's arrays, of these spans, or temporary memory."""
        if call.one_shot:
            return False, False
        return self._is_exported(call.send, spans), self._is_exported(call.recv, spans)

    def _is_exported(self, pointer: int, spans: list[tuple[int, int]]) -> bool:
        if self.directory is None or not self._readers or not pointer:
            return False
        end = next((end for first, end in spans if first <= pointer < end), pointer + 1)
        return self.directory.export(pointer, end - pointer)

    def symmetric(self, nbytes: int) -> Memory:
        """Return GPU memory that the local ranks map at once; collective.

        Raises:
            DeviceError: there is none.
        """
        memory, problem = None, ""
        try:
            memory = Memory(self.gpu, nbytes)
        except DeviceError as error:
            problem = str(error)
        if self.directory is not None:
            with self._resources.alone(Purpose.GPU, "an array in GPU memory"):
                self.directory.share(memory.address if memory else 0)
        if memory is None:
            raise DeviceError(problem)
        return memory


class GpuEngines(EngineBuilder):
    """The builder of engines for arrays in GPU memory.

    Args:
        gpus: GPUs of the communicator.
        topology: As in `EngineBuilder`.
        wait_policy: As in `EngineBuilder`.
        lock: As in `EngineBuilder`.
    """

    on_gpu: ClassVar[bool] = True

    def __init__(self, gpus: Gpus, topology: Topology, wait_policy: WaitPolicy, lock: np.ndarray) -> None:
        super().__init__(topology, wait_policy, lock)
        self._gpus = gpus

    def _unscheduled(
        self, account: Account, call: Call, message_context: MessageContext
    ) -> tuple[HostEngine, Ways] | None:
        """Return an engine that launches one kernel, where that does the call."""
        topology, gpu = self._topology, self._gpus.gpu
        found = one_shot(call, topology.rank, topology.nranks) if call.one_shot else None
        if found is None:
            return None
        engine = self._engine(found.program(), call, account.sums, message_context, None)
        kernel = kernels().one_shot(call.op, call.op and call.dtype, gpu.cc)
        engine.bind_one_shot(gpu.function(kernel), self._gpus.channel(message_context), found.values)
        engine.bind_counts(call.count, ledger_nbytes(call, topology.nranks), counted(call), 0)
        return engine, Counter({DEVICE: topology.nranks - 1})

    def _routes(self, call: Call, message_context: MessageContext) -> Routes:
        return self._gpus.routes(call, message_context)

    def _placement(self, row: Algorithm) -> Nodes:
        return (row.per_gpu and self._gpus.gpus) or super()._placement(row)

    def _lane_nbytes(self, row: Algorithm) -> int | None:
        if self._gpus.mapped:
            return LANE_NBYTES
        return lane_nbytes(row, CAPACITY_NBYTES, self._topology.nodes) if self._topology.nranks > 1 else None

    def _window(self, nchannels: int) -> int:
        return STAGING_SLOTS

    def _engine(
        self,
        program: Program,
        call: Call,
        account: np.ndarray,
        message_context: MessageContext,
        shape: Shape | None,
    ) -> GpuEngine:
        gpu, function = self._gpus.gpu, 0
        if call.op is not None and len(program.sources):
            function = gpu.function(kernels().fold(call.op, call.dtype, gpu.cc))
        binding = Binding(
            message_context.comm,
            self._lock,
            account,
            0,
            message_context.rings,
            message_context.log,
            message_context.tags,
        )
        return GpuEngine(
            program,
            library(),
            self._wait_policy,
            binding,
            function,
            gpu,
            message_context.index,
            self._gpus.directory,
        )
