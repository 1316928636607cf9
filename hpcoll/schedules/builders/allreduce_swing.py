"""Swing allreduce: a reduce-scatter among ranks farther and farther away on alternating sides, then the allgather backwards.

Partial results of 4 ranks, 4 chunks; ``+n`` counts contributions; an even rank adds the distance, an odd one subtracts it:

    start              distance 1        distance -1       distance -1       distance 1
    0: 0 3 1 2         0: 0+2 3+2        0: 0+4            0: 0 3            0: 0 3 1 2
    1: 1 2 0 3         1: 1+2 2+2        1: 1+4            1: 1 2            1: 1 2 0 3
    2: 2 1 3 0         2: 2+2 1+2        2: 2+4            2: 2 1            2: 2 1 3 0
    3: 3 0 2 1         3: 3+2 0+2        3: 3+4            3: 3 0            3: 3 0 2 1

Of an odd number of ranks the last one gives each of the others its part of a chunk, and gets the result.

Source: De Sensi et al., NSDI 2024; as Bine in arXiv 2508.17311.
"""

from hpcoll.schedules.builders.allgather_pat import collect
from hpcoll.schedules.builders.reduce_scatter_pat import combine
from hpcoll.schedules.ir import Writer, cell, inputs, outputs
from hpcoll.schedules.patterns.block_trees import bine


def allreduce_swing(w: Writer) -> None:
    """Write at most 2q rounds with 2(p-1)/p m sent where p is even; half of it goes to a neighbour. Commutative operators."""
    paired, last = w.nchunks, w.nranks - 1
    if w.rank == paired:
        for peer in range(paired):
            w.send(peer, inputs(peer))
        for peer in range(paired):
            w.recv(peer, outputs(peer))
        return
    blocks, turns = bine(w.rank, paired)
    places = combine(w, blocks, turns)
    if paired == last:
        w.recv_reduce(last, cell(places, 0))
        w.send(last, cell(places, 0))
    collect(w, blocks, turns, places)
