"""Bine reduce-scatter: ranks exchange halves of their partial results, and go farther and farther, on alternating sides.

Partial results of 4 ranks, by the distance at which they exchange; an even rank adds it, an odd one subtracts it:

    start              distance 1                      distance -1
    0: 0 3 1 2         0: 0+2 3+2    0 <-> 1           0: 0+4    0 <-> 3
    1: 1 2 0 3         1: 1+2 2+2                      1: 1+4    1 <-> 2
    2: 2 1 3 0         2: 2+2 1+2    2 <-> 3           2: 2+4
    3: 3 0 2 1         3: 3+2 0+2                      3: 3+4

It is the allgather backwards. Of an odd number of ranks the last one exchanges a contribution with each of the others.

Source: De Sensi et al., arXiv 2508.17311.
"""

from hpcoll.schedules.builders.reduce_scatter_pat import combine
from hpcoll.schedules.ir import Writer, inputs, outputs
from hpcoll.schedules.patterns.block_trees import bine


def reduce_scatter_bine(w: Writer) -> None:
    """Write at most q rounds with p-1 blocks sent; half of the blocks go to a neighbour. Commutative operators."""
    paired, last = w.nranks - w.nranks % 2, w.nranks - 1
    if w.rank == paired:
        for peer in range(paired):
            w.send(peer, inputs(peer))
        for peer in range(paired):
            w.recv_reduce(peer, outputs(0) if peer else inputs(last), outputs(0))
        return
    if paired == last:
        w.send(last, inputs(last))
    combine(w, *bine(w.rank, paired), outputs(0))
    if paired == last:
        w.recv_reduce(last, outputs(0))
