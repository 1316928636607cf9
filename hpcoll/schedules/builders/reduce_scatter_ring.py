"""Ring reduce_scatter: the partial result of block j starts at rank j+1 and goes round the ring, where each rank adds its contribution.

Blocks that 4 ranks have just added to (a..d are the ranks' contributions):

    round 0       round 1        round 2
    0: . . da .   . cda . .      bcda . . .
    1: . . . ab   . . dab .      . cdab . .
    2: bc . . .   . . . abc      . . dabc .
    3: . cd . .   bcd . . .      . . . abcd
"""

from hpcoll.schedules.ir import Writer, cell, inputs, outputs


def reduce_scatter_ring(w: Writer) -> None:
    """Write p-1 rounds of one block, to the right neighbour only. Commutative operators."""
    p, r = w.nranks, w.rank
    left, right = (r - 1) % p, (r + 1) % p
    partial = w.scratch(*((r - t - 2) % p for t in range(p - 2)))
    for t in range(p - 1):
        w.send(right, cell(partial, t - 1) if t else inputs((r - 1) % p))
        w.recv_reduce(left, inputs((r - t - 2) % p), cell(partial, t) if t < p - 2 else outputs(0))
