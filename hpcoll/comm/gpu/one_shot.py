"""Calls on GPU arrays by one kernel on every rank, which meets the others in memory that all ranks map: ``HPCOLL_CUDA_PATH=device``.

The host launches it and waits. A rank that waits for others keeps its part of the GPU, so ranks share one by MPS alone: without it a GPU
works for one process at a time. Source: one-shot allreduces, such as those of NVIDIA's TensorRT-LLM and PyTorch's symmetric memory.
"""

from typing import NamedTuple

import numpy as np

from hpcoll.comm.arguments.call import Call
from hpcoll.kernels import MAX_SOURCES, WIDE_NBYTES
from hpcoll.kernels import one_shot_layout as n
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program.opcodes import Code, Program, aligned
from hpcoll.schedules.ir import Buffer

_BLOCK_NBYTES = 4096  # from which on of a message another block takes part
_ALL, _ROOT, _OTHERS = range(3)  # ranks
# Whether a rank sends each rank a piece of its own, who sends, who receives, and from whom.
_PARTS = {
    "allreduce": (False, _ALL, _ALL, _ALL),
    "reduce": (False, _ALL, _ROOT, _ALL),
    "reduce_scatter": (True, _ALL, _ALL, _ALL),
    "bcast": (False, _ROOT, _OTHERS, _ROOT),
    "allgather": (False, _ALL, _ALL, _ALL),
    "gather": (False, _ALL, _ROOT, _ALL),
    "scatter": (True, _ROOT, _ALL, _ROOT),
    "alltoall": (True, _ALL, _ALL, _ALL),
}
COLLECTIVES = frozenset(_PARTS)


class OneShot(NamedTuple):
    """The parameters by which a kernel does a call.

    Attributes:
        values: Parameters of the kernel: nbytes, chunk, npieces, first, nsources, part.
        grid: Blocks.
        displ: Displacement in INPUT of what this rank sends.
    """

    values: tuple[int, ...]
    grid: int
    displ: int

    def program(self) -> Program:
        """Return the program that launches the kernel, waits for it, and sees whether all ranks called the same."""
        rows = np.zeros((4, f.NCOLUMNS), np.int64)
        rows[0, [f.CODE, f.TO_BUFFER, f.BUFFER, f.DISPL, f.GRID]] = (
            Code.ONE_SHOT,
            Buffer.OUTPUT,
            Buffer.INPUT,
            self.displ,
            self.grid,
        )
        rows[1, [f.CODE, f.EVENT]] = Code.RECORD, 1
        rows[2, [f.CODE, f.EVENT]] = Code.SYNC, 1
        rows[3, f.CODE] = Code.COMPARED
        return Program(
            rows, np.zeros((0, 2), np.int64), np.array([[0, len(rows), 0]]), 1, 0, 0, 0, 0, nevents=2
        )


def one_shot(call: Call, rank: int, nranks: int) -> OneShot | None:
    """Return how a kernel does a call; None where it cannot, on all ranks alike."""
    if not 2 <= nranks <= MAX_SOURCES or call.collective not in _PARTS or call.blocks is not None:
        return None
    if call.cells is not None or (call.op is not None and call.op.function is not None):
        return None
    pieces, sends, receives, sources = _PARTS[call.collective]
    npieces = nranks if pieces else 1
    grid = min(n.MOST_BLOCKS, -(-npieces * call.nbytes // _BLOCK_NBYTES)) or 1
    chunk = aligned(-(-call.nbytes // grid), WIDE_NBYTES)
    if npieces * chunk > n.SLOT_NBYTES:
        return None
    here = {_ALL: True, _ROOT: rank == call.root, _OTHERS: rank != call.root}
    in_place = call.in_place and call.collective in ("allgather", "gather")
    reads = here[receives] and not (call.collective == "scatter" and call.in_place)
    part = n.WRITES * here[sends] + n.READS * reads
    first, nsources = (0, nranks) if sources == _ALL else (call.root, 1)
    values = call.nbytes, chunk, npieces, first, nsources, part
    return OneShot(values, grid, rank * call.nbytes if in_place else 0)
