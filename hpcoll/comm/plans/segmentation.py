"""Segmentation: cuts the message of a call into segments that are in flight together, and lanes that fit a staging slot."""

from __future__ import annotations

import math
from operator import index
from typing import TYPE_CHECKING, Any

from hpcoll.runtime.program.chunks import Segments, block_segments, varying_blocks, vector_segments
from hpcoll.runtime.program.opcodes import CACHE_LINE_NBYTES
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES, nblocks
from hpcoll.schedules.ir import Schedule
from hpcoll.schedules.placement import Nodes, members
from hpcoll.schedules.row import Algorithm, schedule

if TYPE_CHECKING:  # it needs MPI, without which calls can be planned
    from hpcoll.comm.arguments.call import Call

_MAX_CHUNKS = 128  # of a lane that goes through shared memory


def window(nranks: int) -> int:
    """Return the number of segments in flight: enough to fill the pipeline up and down a binary tree."""
    return 2 * math.ceil(math.log2(max(2, nranks))) + 2


def lane_nbytes(row: Algorithm, capacity: int, nodes: Nodes, *, apart: bool = True) -> int:
    """Return the most bytes of the message in one lane, so that the part that any rank stages fits a staging slot.

    Args:
        row: Catalogue row, whose ``staged`` bounds that part; each piece is rounded up to a cache line.
        capacity: Bytes of a staging slot.
        nodes: Placement of the ranks, 2 or more.
        apart: Nodes share no memory with each other; else messages of a hierarchical row between them are staged, too.
    """
    pieces = 2 * len(nodes) + (_MAX_CHUNKS if row.chunked else 0) + (row.graph.degree if row.graph else 0)
    # it has messages of any number, all of which the costs count that are derived from its schedules
    if not row.staged:
        pieces = max(pieces, int(row.cost("messages", len(nodes), _MAX_CHUNKS if row.chunked else 1, nodes)))
    staged = row.cost("staged", len(nodes), nodes=nodes) + (0 if apart else _staged_between(row, nodes))
    return int((capacity - CACHE_LINE_NBYTES * pieces) / staged)


def _staged_between(row: Algorithm, nodes: Nodes) -> float:
    """Return the bytes that the outer algorithm of a hierarchical row stages on any rank, as a fraction of m."""
    sizes = [len(ranks) for ranks in members(nodes)]
    if not row.hierarchical or len(sizes) < 2:
        return 0.0
    nstripes = int(row.cost("stripes", len(nodes), nodes=nodes))
    part = 1.0 if row.collective == "alltoall" else sum(-(-size // nstripes) for size in sizes) / len(nodes)
    return part * CATALOGUE[row.outer].cost("staged", len(sizes))


def message_nbytes(call: Call, nranks: int) -> int:
    """Return m, the bytes of the whole message as the catalogue counts them."""
    return (
        call.count
        * call.dtype.itemsize
        * (nblocks(call.collective, nranks, call.graph) if call.blocks is None else 1)
    )


def counts_of(cell: tuple[int, int], call: Call, nranks: int, size: int) -> tuple[int, int]:
    """Return the least and most counts of ``size`` bytes for which a call with equal blocks has a message within a cell of sizes."""
    unit = size * nblocks(call.collective, nranks, call.graph)
    return -(-cell[0] // unit), cell[1] // unit


def ledger_nbytes(call: Call | None, nranks: int) -> int:
    """Return the bytes of this rank's message, as the ledger counts them."""
    return 0 if call is None else call.nbytes * nparts(call, nranks)


def nparts(call: Call, nranks: int) -> int:
    """Return how many times the count of a call is in this rank's message."""
    varies = call.collective not in ("alltoall", "neighbor_alltoall") or call.blocks is not None
    return 1 if varies else nblocks(call.collective, nranks, call.graph)


def segmented(
    row: Algorithm,
    call: Any,
    segment_nbytes: int,
    most: int | None,
    rank: int,
    nodes: Nodes,
    sizes: tuple[int, ...],
    unit: int = 1,
) -> tuple[Schedule, Segments]:
    """Return schedule and segments of a call, a `Call` or what has its collective, count, dtype, root and blocks.

    No segment is longer than ``most`` bytes of the message. Chunks are whole multiples of ``unit`` elements.
    """
    nranks = len(nodes)
    size, blocks = call.dtype.itemsize, COLLECTIVES[row.collective].blocks
    n = nblocks(row.collective, nranks, row.graph)
    count = max(1, call.count * n)
    longest = max(1, count if most is None else min(count, most // size))
    segment = max(1, segment_nbytes // size)
    if row.chunked:
        nchunks = max(1, -(-min(call.count, longest) // segment))
        nchunks = index(nchunks if most is None else min(nchunks, _MAX_CHUNKS))
        steps = schedule(row, nranks, rank, call.root, nchunks)
        return steps, vector_segments(call.count, longest, steps.nchunks, unit)
    steps = schedule(row, nranks, rank, call.root, nodes=nodes)
    if call.blocks is not None:
        return steps, varying_blocks(
            call.blocks[0],
            call.blocks[1],
            sizes or call.blocks[2],
            0 if most is None else max(1, most // size // n),
        )
    if row.pipelined:
        longest = min(longest, segment)
    if blocks:
        return steps, block_segments(steps, call.count, max(1, longest // n), unit)
    return steps, vector_segments(call.count, longest, steps.nchunks, unit)
