"""Circulant reduce_scatter: in round k (q-1 down to 0) a rank sends the upper half of its partial results to rank + skip k.

Partial results of rank 0 of 5 (skips 1, 2, 3, then 5); ``+n`` counts contributions, rank r has the same, rotated by r:

    start            after k=2           after k=1       after k=0
    0 1 2 3 4        0+1 1+1 2 . .       0+2 1+1 . .     0+4
                     (3 4 sent to 3)     (2 sent to 2)   (1 sent to 1)

Scratch cell i keeps block rank + i, so all but the first round's messages are one run.
"""

from itertools import pairwise

from hpcoll.schedules.ir import Writer, cell, cyclic_runs, inputs, outputs
from hpcoll.schedules.patterns.circulant import skips


def reduce_scatter_circulant(w: Writer) -> None:
    """Write q rounds with p-1 blocks sent and as many combined, all the least possible. Commutative operators."""
    p, r = w.nranks, w.rank
    skip = skips(p)
    half = skip[-2]
    partial = w.scratch(*((r + i) % p for i in range(half))) if p > 2 else outputs(0)
    for first, n in cyclic_runs(r + half, p - half, p):
        w.send((r + half) % p, inputs(first, n))
    middle = inputs((r + half - 1) % p)  # for odd p the first round receives nothing for it
    if p % 2 and p > 5:
        w.copy(middle, cell(partial, half - 1))
    for first, n in cyclic_runs(r, p - half, p):
        w.recv_reduce((r - half) % p, inputs(first, n), cell(partial, (first - r) % p, n))
    for near, far in reversed(list(pairwise(skip[:-1]))):
        alone = p in (3, 5) and far == half  # then the middle is the whole message: no copy
        w.send((r + near) % p, middle if alone else cell(partial, near, far - near))
        run = cell(partial, 0, far - near)
        w.recv_reduce((r - near) % p, run, run if near > 1 else outputs(0))
