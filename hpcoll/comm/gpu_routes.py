"""What a communicator's calls on GPU arrays need besides: what its ranks map of each other, message_contexts, the ways for bytes."""

from collections.abc import Callable, Iterable

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import ArgumentError, DeviceError
from hpcoll.comm.calls.call import Call
from hpcoll.comm.plan import MessageContext, cut, lane_nbytes
from hpcoll.runtime.engine.gpu_engine import DeviceEngine
from hpcoll.runtime.engine.host_engine import WaitPolicy
from hpcoll.runtime.gpu.arrays import DeviceArray
from hpcoll.runtime.gpu.cuda_aware import takes_gpu_memory
from hpcoll.runtime.gpu.device import Gpu, Memory, kernels
from hpcoll.runtime.gpu.ipc import Directory
from hpcoll.runtime.program.lowering import lower
from hpcoll.runtime.program.opcodes import Ways
from hpcoll.runtime.transports.mpi import library
from hpcoll.runtime.transports.shm import STAGING_SLOTS, Node
from hpcoll.schedules.catalogue import find
from hpcoll.schedules.placement import Nodes
from hpcoll.selection.choose import Choice
from hpcoll.selection.config import DIRECT, IPC, log

LANE_NBYTES = 16 << 20  # of the message, where all ranks read each other's GPU memory
CAPACITY_NBYTES = 4 << 20  # pinned memory of one place of a stream, elsewhere
_NO_STAGING_NBYTES = 4096


class Gpus:
    """Ways between the GPUs of a communicator's ranks. Made collectively, at their first call with GPU arrays.

    Args:
        comm: The private duplicate.
        node: Ranks of the same node.
        nodes: Placement of all ranks.
        shares: Whether these share memory.
        gpu: Of this rank.
        path: The way that ``HPCOLL_CUDA_PATH`` forces, or None.
        new_message_contexts: Makes message_contexts, by their first number, how many, and bytes per place.
        first: Number of the first of ``n`` message_contexts.

    Attributes:
        message_contexts: For blocking calls, then for non-blocking ones.
        mapped: Whether all ranks read each other's GPU memory.
    Raises:
        ArgumentError: on every rank, when the way that is forced does not exist.
    """

    def __init__(
        self, comm: MPI.Intracomm, node: Node, nodes: Nodes, gpu: Gpu, path: str | None,
        new_message_contexts: Callable[[int, int, int], list[MessageContext]], first: int, n: int, *, shares: bool,
    ) -> None:  # fmt: skip
        self.gpu, self.comm, self._node, self._nodes, self._path = gpu, comm, node, nodes, path
        self._directory: Directory | None = None
        self._readers, self._why, problem = frozenset[int](), "they share no memory", ""
        if shares and path in (None, IPC):
            self._meet()
        asks = path == DIRECT or (path is None and node.nranks < comm.size)
        self._direct = asks and self._node_takes()
        if path == DIRECT and not self._direct:
            problem = f"rank {comm.rank}: HPCOLL_CUDA_PATH is direct, but the MPI library does not take addresses of GPU memory"
        mapped = len(self._readers) == comm.size - 1
        if path == IPC and len(self._readers) < node.nranks - 1:
            problem = f"rank {comm.rank}: HPCOLL_CUDA_PATH is ipc, but ranks of the node cannot map its memory: {self._why}"
        found = comm.allgather((problem, mapped))
        if any(text for text, _ in found):
            raise ArgumentError(next(text for text, _ in found if text))
        self.mapped = all(mapped for _, mapped in found)
        self._capacity = 0 if self.mapped else CAPACITY_NBYTES
        self._new_channels = new_message_contexts
        self.message_contexts = self.new_message_contexts(first, n)
        if node.rank == 0:
            log.info("GPU arrays of rank %d: %s", comm.rank, self.ways_text())

    def _meet(self) -> None:
        """Make the directory."""
        try:
            self._directory = Directory(self._node, self.gpu)
        except ArgumentError as error:
            self._why = str(error)
        else:
            self._readers, self._why = self._directory.readers, self._directory.problem

    def _node_takes(self) -> bool:
        """Whether the MPI library takes GPU memory; tried once per node, in another process."""
        return bool(self._node.comm.bcast(takes_gpu_memory(self.gpu) if self._node.rank == 0 else None))

    def ways_text(self) -> str:
        """Which way bytes take to whom, for the log."""
        near = len(self._node.local_peers)
        parts = []
        if self._readers:
            parts.append(f"{len(self._readers)} of {near} ranks of the node read them in place (CUDA IPC)")
        if near > len(self._readers):
            parts.append(f"{near - len(self._readers)} of {near} ranks of the node get them through pinned memory ({self._why})")
        if self._node.nranks < self.comm.size:
            parts.append("other nodes get them by MPI " + ("from GPU memory" if self._direct else "through pinned memory"))
        return "; ".join(parts) or "one rank"

    def new_message_contexts(self, first: int, n: int) -> list[MessageContext]:
        """Channels whose staging memory GPUs read and write; collective."""
        message_contexts = self._new_channels(first, n, self._capacity or _NO_STAGING_NBYTES)
        problem = ""
        if self._capacity and message_contexts[0].rings is not None:
            window = message_contexts[0].rings.window
            try:
                self.gpu.enter()
                self.gpu.pin(window, window.address, window.mapping.nbytes)
            except DeviceError as error:
                problem = f"rank {self.comm.rank}: shared memory cannot be pinned: {error}"
        refused = next(filter(None, self._node.comm.allgather(problem)), "")
        if refused:
            log.warning("GPU arrays travel by MPI on this node: %s", refused)
        use = not refused and self._path != DIRECT
        return [MessageContext(message_context.index, message_context.rings if use else None) for message_context in message_contexts]

    def exported(self, call: Call, arrays: Iterable[DeviceArray]) -> tuple[bool, bool]:
        """Whether peers may map INPUT and OUTPUT, which are the caller's arrays or temporary memory."""
        spans = [array.span for array in arrays]
        return self._is_exported(call.send, spans), self._is_exported(call.recv, spans)

    def _is_exported(self, pointer: int, spans: list[tuple[int, int]]) -> bool:
        if self._directory is None or not self._readers or not pointer:
            return False
        end = next((end for first, end in spans if first <= pointer < end), pointer + 1)
        return self._directory.export(pointer, end - pointer)

    def symmetric(self, nbytes: int) -> Memory:
        """GPU memory that the ranks of the node map at once; collective.

        Raises:
            DeviceError: there is none.
        """
        memory, problem = None, ""
        try:
            memory = Memory(self.gpu, nbytes)
        except DeviceError as error:
            problem = str(error)
        if self._directory is not None:
            self._directory.share(memory.address if memory else 0)
        if memory is None:
            raise DeviceError(problem)
        return memory

    def build(
        self, call: Call, choice: Choice, sizes: tuple[int, ...], exported: tuple[bool, bool], comm: int, wait_policy: WaitPolicy,
        lock: np.ndarray, account: np.ndarray, message_context: MessageContext,
    ) -> DeviceEngine:  # fmt: skip
        """An engine for all calls of this shape, as `hpcoll.comm.plan.build_engine`."""
        row, nodes = find(call.collective, choice.algorithm), self._nodes
        most = LANE_NBYTES if self.mapped else lane_nbytes(row, CAPACITY_NBYTES, nodes) if len(nodes) > 1 else None
        steps, segments = cut(row, call, choice.segment, most, self.comm.rank, nodes, sizes)
        local_peers = message_context.rings.local_peers if message_context.rings else {}
        ways = Ways(self._readers if local_peers else frozenset(), self._direct, exported)
        program = lower(steps, segments, call.dtype.itemsize, STAGING_SLOTS, in_place=call.in_place, local_peers=local_peers, ways=ways)
        function = 0
        if call.op is not None and len(program.sources):
            function = self.gpu.function(kernels().fold(call.op, call.dtype, self.gpu.cc))
        return DeviceEngine(
            program, library(), comm, function, wait_policy, lock, account, self.gpu, message_context.index, self._directory,
            message_context.rings, message_context.tag,
        )  # fmt: skip
