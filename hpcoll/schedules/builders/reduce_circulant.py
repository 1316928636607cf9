"""Circulant n-block reduce: the circulant broadcast with time and arrows reversed.

4 ranks, 3 blocks, root 0 (skips 1, 2, then 4); contributions in each block that has not been sent on:

    start       skip 2      skip 1      skip 2      skip 1
    0: 1 1 1    1 1 2       1 1 4       1 4 4       4 4 4
    1: 1 1 1    1 . 2       2 . .       3 . .       . . .
    2: 1 1 1    1 1 .       . 3 .       . . .       . . .
    3: 1 1 1    1 2 .       1 . .       . . .       . . .

Only blocks that other ranks send here need scratch for partial results.
"""

from hpcoll.schedules.ir import Chunk, Writer, inputs, outputs
from hpcoll.schedules.patterns import circulant


def reduce_circulant(w: Writer) -> None:
    """Write n - 1 + q rounds of m/n, the fewest possible on one port, for any p and n. Commutative operators."""
    partials: dict[int, Chunk] = {}
    for turn in reversed(circulant.rounds(w.vrank, w.nranks, w.nchunks)):
        if turn.received is not None:
            w.send(w.peer(turn.left), partials.get(turn.received, inputs(turn.received)))
        if turn.sent is not None:
            chunk = turn.sent
            partial = partials.get(chunk, inputs(chunk))
            if chunk not in partials:
                partials[chunk] = w.scratch(chunk) if w.vrank else outputs(chunk)
            w.recv_reduce(w.peer(turn.right), partial, partials[chunk])
