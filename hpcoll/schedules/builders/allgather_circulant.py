"""Circulant allgather: in round k every rank sends its blocks to rank - skip k, and so has twice as many.

Blocks held by rank 0 of 5 (skips 1, 2, 3, then 5); rank r holds the same, rotated by r:

    start           after k=0 (from 1)  after k=1 (from 2)  after k=2 (from 3)
    0 . . . .       0 1 . . .           0 1 2 . .           0 1 2 3 4

A rank's blocks are a cyclic range, so a message is one run of OUTPUT, or two where the range passes the last block.

Source: Traeff, arXiv 2407.18004; for powers of two Bruck et al., IEEE TPDS 1997.
"""

from itertools import pairwise

from hpcoll.schedules.ir import Writer, cyclic_runs, inputs, outputs
from hpcoll.schedules.patterns.circulant import skips


def allgather_circulant(w: Writer) -> None:
    """Write q rounds with p-1 blocks sent, both the least possible, for any p."""
    p, r = w.nranks, w.rank
    skip = skips(p)
    w.copy(inputs(0), outputs(r))
    for near, far in pairwise(skip):
        for first, n in cyclic_runs(r, far - near, p):
            w.send((r - near) % p, outputs(first, n) if near > 1 else inputs(0))
        for first, n in cyclic_runs(r + near, far - near, p):
            w.recv((r + near) % p, outputs(first, n))
