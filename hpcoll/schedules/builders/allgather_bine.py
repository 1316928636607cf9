"""Bine allgather: ranks exchange what they have, and come nearer and nearer, on alternating sides.

Blocks that ranks of 4 have, by the distance at which they exchange; an even rank adds it, an odd one subtracts it:

    start     distance -1           distance 1
    0: 0      0: 0 3    0 <-> 3     0: 0 3 1 2      0 <-> 1
    1: 1      1: 1 2    1 <-> 2     1: 1 2 0 3
    2: 2      2: 2 1                2: 2 1 3 0      2 <-> 3
    3: 3      3: 3 0                3: 3 0 2 1

Distances are two thirds of recursive doubling's, and do not end at powers of two: fewer messages leave a node, whatever its ranks are.
Of an odd number of ranks the last one exchanges its block with each of the others.

Source: De Sensi et al., arXiv 2508.17311.
"""

from hpcoll.schedules.builders.allgather_pat import collect
from hpcoll.schedules.ir import Writer, inputs, outputs
from hpcoll.schedules.patterns.block_trees import bine


def allgather_bine(w: Writer) -> None:
    """Write at most q rounds with p-1 blocks sent; half of the blocks go to a neighbour."""
    paired, last = w.nranks - w.nranks % 2, w.nranks - 1
    if w.rank == paired:
        for peer in range(paired):
            w.send(peer, inputs(0))
        for peer in range(paired):
            w.recv(peer, outputs(peer))
        w.copy(inputs(0), outputs(w.rank))
        return
    if paired == last:
        w.send(last, inputs(0))
    collect(w, *bine(w.rank, paired))
    if paired == last:
        w.recv(last, outputs(last))
