"""From a call and a choice to something that runs: schedule, program, engine."""

import math
from collections.abc import Callable

import numpy as np

from hpcoll.base.ops import BOR
from hpcoll.comm.calls.call import Call
from hpcoll.kernels.host import kernel_address
from hpcoll.runtime.engine.host_engine import HostEngine, WaitPolicy
from hpcoll.runtime.program.chunk_layout import Segments, block_segments, varying_blocks, vector_segments
from hpcoll.runtime.program.lowering import lower
from hpcoll.runtime.program.opcodes import CACHE_LINE_NBYTES
from hpcoll.runtime.transports.mpi import library
from hpcoll.runtime.transports.shm import STAGING_SLOTS, Rings
from hpcoll.schedules.catalogue import find
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.ir import Schedule
from hpcoll.schedules.placement import Nodes
from hpcoll.schedules.row import Algorithm, schedule
from hpcoll.selection.choose import Choice
from hpcoll.selection.topology import Topology

UNCACHED_NBYTES = 4 << 20  # messages from here on are not expected to be found in a cache
_MAX_CHUNKS = 128  # of a lane that goes through shared memory
MAX_WINDOW = 128  # of a window, hence tags of a message_context


class MessageContext:
    """What one collective at a time travels on; others may travel on other message_contexts meanwhile.

    Attributes:
        index: Number, equal on all ranks.
        rings: For local peers, or None.
        tag: First of `MAX_WINDOW` tags for the others.
        issued: Operations that were started on it.
        ended: int64: operations that have ended.
    """

    def __init__(self, index: int, rings: Rings | None) -> None:
        self.index, self.rings, self.tag = index, rings, index * MAX_WINDOW
        self.issued, self.ended = 0, np.zeros(1, np.int64)


class Plan:
    """How one shape of call runs: by engines, one per message_context at a time; or, with ``algorithm`` native, by the MPI library.

    Attributes:
        title: For texts.
        algorithm: A catalogue name, or ``native``.
        sums: Line of the ledger: calls, nanoseconds in them.
        build: Makes an engine for a message_context.
        short: A start in flight may run it to its end at once.
        kept: It serves later calls too.
    """

    __slots__ = ("_engines", "algorithm", "build", "kept", "short", "sums", "title")

    def __init__(
        self, title: str, algorithm: str, account: np.ndarray, build: Callable[[MessageContext], HostEngine], *, short: bool
    ) -> None:
        self.title, self.algorithm, self.build, self.short = title, algorithm, build, short
        self.sums = memoryview(account)  # type: ignore[arg-type]  # the same numbers, at a third of the price
        self.kept, self._engines = False, dict[int, list[HostEngine]]()

    def take(self, message_context: MessageContext) -> HostEngine:
        """An engine with scratch of its own, which nobody else uses until it is given back."""
        engines = self._engines.get(message_context.index)
        if engines:
            return engines.pop()
        engine = self.build(message_context)
        engine.bind_scratch(engine.fresh(engine.scratch_nbytes))
        return engine

    def give(self, message_context: MessageContext, engine: HostEngine) -> None:
        """Give an engine back."""
        self._engines.setdefault(message_context.index, []).append(engine)


def window(nranks: int) -> int:
    """Segments in flight: enough to fill the pipeline up and down a binary tree."""
    return 2 * math.ceil(math.log2(max(2, nranks))) + 2


def lane_nbytes(row: Algorithm, capacity: int, nodes: Nodes) -> int:
    """Most bytes of the message in one lane, so that what any rank stages of them fits a staging slot.

    Args:
        row: Catalogue row, whose ``staged`` bounds what a rank hands out; each piece is rounded up to a cache line.
        capacity: Bytes of a staging slot.
        nodes: Placement of the ranks, 2 or more.
    """
    pieces = 2 * len(nodes) + (_MAX_CHUNKS if row.chunked else 0)
    return int((capacity - CACHE_LINE_NBYTES * pieces) / row.cost("staged", len(nodes), nodes=nodes))


def build_engine(
    call: Call, choice: Choice, topology: Topology, comm: int, wait_policy: WaitPolicy, sizes: tuple[int, ...],
    capacity: int, lock: np.ndarray, account: np.ndarray, message_context: MessageContext,
) -> HostEngine:  # fmt: skip
    """An engine for all calls of this shape.

    Args:
        call: Its counts, element type, operator, root and in-place form are used; its addresses are not.
        choice: A catalogue algorithm and the segment size.
        topology: Of the communicator.
        comm: Handle of the communicator for the messages.
        wait_policy: How a rank waits.
        sizes: Bytes of every rank's block where blocks vary and the schedule must know; else empty.
        capacity: Bytes of a staging slot where any rank of the communicator has rings, else 0.
        lock, account: As in `HostEngine`.
        message_context: What the messages travel on.
    Raises:
        KernelError: the operator does not compile for the element type.
    """
    row = find(call.collective, choice.algorithm)
    nranks = topology.nranks
    most = lane_nbytes(row, capacity, topology.nodes) if capacity and nranks > 1 else None
    steps, segments = cut(row, call, choice.segment, most, topology.rank, topology.nodes, sizes)
    local_peers = message_context.rings.local_peers if message_context.rings else {}
    most_lanes = STAGING_SLOTS if capacity else min(window(nranks) * len(steps.channels), MAX_WINDOW)
    program = lower(steps, segments, call.dtype.itemsize, most_lanes, in_place=call.in_place, local_peers=local_peers)
    operator = BOR if call.collective == "barrier" else call.op
    kernel = kernel_address(operator, call.dtype) if operator is not None and len(program.sources) else 0
    uncached = message_nbytes(call, nranks) >= UNCACHED_NBYTES
    engine = HostEngine(program, library(), comm, kernel, wait_policy, lock, account, message_context.rings, message_context.tag, uncached)
    if call.copied:
        engine.bind_copy(call.copied)
    return engine


def message_nbytes(call: Call, nranks: int) -> int:
    """m, the bytes of the whole message as the catalogue counts them."""
    blocks = nranks if COLLECTIVES[call.collective].blocks and call.blocks is None else 1
    return call.count * call.dtype.itemsize * blocks


def cut(
    row: Algorithm, call: Call, segment_nbytes: int, most: int | None, rank: int, nodes: Nodes, sizes: tuple[int, ...]
) -> tuple[Schedule, Segments]:
    """Schedule and segments of a call; no segment is longer than ``most`` bytes of the message."""
    nranks = len(nodes)
    size, blocks = call.dtype.itemsize, COLLECTIVES[row.collective].blocks
    count = max(1, call.count * nranks if blocks else call.count)
    longest = max(1, count if most is None else min(count, most // size))
    segment = max(1, segment_nbytes // size)
    if row.chunked:
        nchunks = max(1, -(-min(call.count, longest) // segment))
        nchunks = nchunks if most is None else min(nchunks, _MAX_CHUNKS)
        steps = schedule(row, nranks, rank, call.root, nchunks)
        return steps, vector_segments(call.count, longest, steps.nchunks)
    steps = schedule(row, nranks, rank, call.root, nodes=nodes)
    if call.blocks is not None:
        return steps, varying_blocks(*call.blocks[:2], sizes or call.blocks[2], 0 if most is None else max(1, most // size // nranks))
    if row.pipelined:
        longest = min(longest, segment)
    if blocks:
        return steps, block_segments(steps, call.count, max(1, longest // nranks))
    return steps, vector_segments(call.count, longest, steps.nchunks)
