"""Parallel aggregated trees: an allgather that sends single blocks far and many blocks near.

Blocks that rank 0 of 5 has, by the distance from which they came; rank r has the same, rotated by r:

    start          distance 4     distance 2      distance 1
    0              0 1            0 1 3           0 1 3 4 2

Blocks gather in scratch in the order in which they come, and are copied to OUTPUT at the end.

Source: Jeaugey, arXiv 2506.20252; NCCL 2.23, which cuts it in parts for bounded buffers, where segments do that here.
"""

from collections.abc import Sequence
from itertools import accumulate

from hpcoll.schedules.ir import Chunk, Writer, cell, inputs, outputs
from hpcoll.schedules.patterns.block_trees import Turn, pat


def allgather_pat(w: Writer) -> None:
    """Write q rounds with p-1 blocks sent, both the least possible, for any p; half of the blocks go to the next rank."""
    collect(w, *pat(w.rank, w.nranks))


def collect(w: Writer, blocks: Sequence[int], turns: Sequence[Turn], places: Chunk | None = None) -> None:
    """Write an allgather among the ranks whose blocks these are; of INPUT, or of the first of ``places`` in scratch."""
    own = cell(places, 0) if places else inputs(0)
    if places is None:
        places = w.scratch(*blocks)
        w.copy(own, cell(places, 0))
    for turn in turns:
        runs = [cell(places, *run) for run in turn.sent]
        packed = (
            runs[0]
            if len(runs) == 1
            else w.scratch(*(blocks[first + i] for first, n in turn.sent for i in range(n)))
        )
        for at, run in zip(accumulate((run.n for run in runs), initial=0), runs if len(runs) > 1 else ()):
            w.copy(run, cell(packed, at, run.n))
        w.send(turn.target, packed if turn is not turns[0] else own)
        w.recv(turn.source, cell(places, *turn.received))
    for place, block in enumerate(blocks):
        w.copy(cell(places, place) if place else own, outputs(block))
