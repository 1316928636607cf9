"""Parallel aggregated trees: a reduce-scatter that sends many partial results near and single ones far; the allgather backwards.

Partial results of rank 0 of 5; ``+n`` counts contributions, rank r has the same, rotated by r:

    start          distance 1            distance 2           distance 4
    0 1 3 4 2      0+2 1 3+2 . .         0+4 1 . . .          0+5
                   (4 2 sent to 4)       (3 sent to 3)        (1 sent to 1)

The contributions are copied to scratch in the order in which they leave.

Source: Jeaugey, arXiv 2506.20252; NCCL 2.23, which cuts it in parts for bounded buffers, where segments do that here.
"""

from collections.abc import Sequence
from itertools import accumulate

from hpcoll.schedules.ir import Chunk, Writer, cell, inputs, outputs
from hpcoll.schedules.patterns.block_trees import Turn, pat


def reduce_scatter_pat(w: Writer) -> None:
    """Write q rounds with p-1 blocks sent, both the least possible; half of the blocks go to the next rank. Commutative operators."""
    combine(w, *pat(w.rank, w.nranks), outputs(0))


def combine(w: Writer, blocks: Sequence[int], turns: Sequence[Turn], into: Chunk | None = None) -> Chunk:
    """Write a reduce-scatter among the ranks whose blocks these are; return the places. Without ``into`` the first has the result."""
    places = w.scratch(*blocks)
    for place, block in enumerate(blocks):
        w.copy(inputs(block), cell(places, place))
    for turn in reversed(turns):
        w.send(turn.source, cell(places, *turn.received))
        runs = [cell(places, *run) for run in turn.sent]
        if len(runs) == 1:
            w.recv_reduce(turn.target, runs[0], (into or runs[0]) if turn is turns[0] else runs[0])
            continue
        packed = w.scratch(*(blocks[first + i] for first, n in turn.sent for i in range(n)))
        w.recv(turn.target, packed)
        for at, run in zip(accumulate((run.n for run in runs), initial=0), runs):
            w.reduce(run, cell(packed, at, run.n), dst=run)
    return places
