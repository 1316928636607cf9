"""Circulant allreduce: ranks a skip apart exchange halves of their partial results, then the way back for the results.

Partial results of rank 0 of 5 (skips 1, 2, 3, then 5), chunk rank + i in column i; ``+n`` counts contributions:

    start            reduce-scatter: k=2   k=1             k=0             allgather: k=0   k=1      k=2
    0 1 2 3 4        0+2 1+2 2 . .         0+3 1+2 . .     0+5 . . . .     0 1 . . .        0 1 2    0 1 2 3 4
                     (3 4 sent to 3)       (2 sent to 2)   (1 sent to 1)   (from 1)         (from 2) (from 3)

A rank's chunks are a cyclic range, so a message is one run, or two where the range passes the last chunk.
"""

from itertools import pairwise

from hpcoll.schedules.ir import Writer, cyclic_runs, inputs, outputs
from hpcoll.schedules.patterns.circulant import skips


def allreduce_circulant(w: Writer) -> None:
    """Write 2q rounds with 2(p-1)/p m sent, for any p: the least volume, in the fewest rounds known. Commutative operators."""
    p, r = w.nranks, w.rank
    levels = list(pairwise(skips(p)))
    have = inputs
    if p % 2:  # no first message has the middle chunk
        w.copy(inputs((r + p // 2) % p), outputs((r + p // 2) % p))
    for near, far in reversed(levels):
        for first, n in cyclic_runs(r + near, far - near, p):
            w.send((r + near) % p, have(first, n))
        for first, n in cyclic_runs(r, far - near, p):
            w.recv_reduce((r - near) % p, have(first, n), outputs(first, n))
        have = outputs
    for near, far in levels:
        for first, n in cyclic_runs(r, far - near, p):
            w.send((r - near) % p, outputs(first, n))
        for first, n in cyclic_runs(r + near, far - near, p):
            w.recv((r + near) % p, outputs(first, n))
