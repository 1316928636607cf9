"""From a call and a choice to something that runs: schedule, program, engine. Floor 7."""

import math
from collections.abc import Callable

import numpy as np

from hpcoll.algorithm import Algorithm, schedule
from hpcoll.call import Call
from hpcoll.catalogue import find
from hpcoll.collectives import COLLECTIVES
from hpcoll.engines.host import HostEngine, Patience
from hpcoll.ir import Schedule
from hpcoll.kernels.host import kernel_address
from hpcoll.layout import Segments, block_segments, varying_blocks, vector_segments
from hpcoll.ledger import Account
from hpcoll.lowering import lower
from hpcoll.ops import BOR
from hpcoll.selection import Choice
from hpcoll.transports.mpi import library

_OWN_SCRATCH = 64 << 10  # bytes; plans that need more scratch share their context's


class Plan:
    """An engine with its line in the ledger; or, with ``engine`` None, the MPI library's method."""

    __slots__ = ("account", "engine", "native", "reach", "scratch", "title")

    def __init__(self, title: str, engine: HostEngine | None, native: Callable[..., object], account: Account) -> None:
        self.title, self.engine, self.native, self.account = title, engine, native, account
        self.reach = 0
        self.scratch: np.ndarray | None = None
        if engine is not None and engine.scratch_nbytes <= _OWN_SCRATCH:
            self.scratch = np.empty(engine.scratch_nbytes + 64, np.uint8)
            engine.bind_scratch(aligned(self.scratch))


def aligned(array: np.ndarray) -> int:
    """First address in an array that starts a cache line."""
    return -(-array.ctypes.data // 64) * 64


def window(nranks: int) -> int:
    """Segments in flight: enough to fill the pipeline up and down a binary tree."""
    return 2 * math.ceil(math.log2(max(2, nranks))) + 2


def build_engine(call: Call, choice: Choice, rank: int, nranks: int, comm: int, patience: Patience, sizes: tuple[int, ...]) -> HostEngine:
    """An engine for all calls of this shape.

    Args:
        call: Its counts, element type, operator, root and in-place form are used; its addresses are not.
        choice: A catalogue algorithm and the segment size.
        rank, nranks: Of the communicator.
        comm: Handle of the communicator for the messages.
        patience: How a rank waits.
        sizes: Bytes of every rank's block where blocks vary and the schedule must know; else empty.
    Raises:
        KernelError: the operator does not compile for the element type.
    """
    row = find(call.collective, choice.algorithm)
    steps, segments = _cut(row, call, choice.segment, rank, nranks, sizes)
    program = lower(steps, segments, call.dtype.itemsize, window(nranks), in_place=call.in_place)
    operator = BOR if call.collective == "barrier" else call.op
    kernel = kernel_address(operator, call.dtype) if operator is not None and len(program.sources) else 0
    return HostEngine(program, library(), comm, kernel, patience)


def message_nbytes(call: Call, nranks: int) -> int:
    """m, the bytes of the whole message as the catalogue counts them."""
    blocks = nranks if COLLECTIVES[call.collective].blocks and call.blocks is None else 1
    return call.count * call.dtype.itemsize * blocks


def _cut(
    row: Algorithm, call: Call, segment_nbytes: int, rank: int, nranks: int, sizes: tuple[int, ...]
) -> tuple[Schedule, Segments]:
    segment = max(1, segment_nbytes // call.dtype.itemsize)
    if call.blocks is not None:
        steps = schedule(row, nranks, rank, call.root)
        return steps, varying_blocks(call.blocks[0], call.blocks[1], sizes or call.blocks[2])
    if COLLECTIVES[call.collective].blocks:
        steps = schedule(row, nranks, rank, call.root)
        return steps, block_segments(steps, call.count, max(1, segment // nranks) if row.pipelined else max(1, call.count))
    if row.chunked:
        nchunks = min(-(-call.count // segment) or 1, max(1, call.count))
        steps = schedule(row, nranks, rank, call.root, nchunks)
        return steps, vector_segments(call.count, max(1, call.count), steps.nchunks)
    steps = schedule(row, nranks, rank, call.root)
    return steps, vector_segments(call.count, segment if row.pipelined else max(1, call.count), steps.nchunks)
