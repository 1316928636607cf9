"""Bruck alltoall: a block for rank + i moves 2^k ranks on in every round k with bit k set in i.

Slot i of rank r of 4, as source>destination:

    start                 after k=0               after k=1
    r>r                   r>r                     r>r
    r>r+1                 r-1>r   (arrived)       r-1>r
    r>r+2                 r>r+2                   r-2>r   (arrived)
    r>r+3                 r-1>r+2                 r-3>r   (arrived)

A round's slots are packed in descending order, so that blocks that have arrived are contiguous in OUTPUT, too.
"""

from hpcoll.schedules.ir import Writer, cell, cyclic_runs, inputs, outputs


def alltoall_bruck(w: Writer) -> None:
    """Write q rounds of at most p/2 blocks. Equal blocks only."""
    p, r = w.nranks, w.rank
    w.copy(inputs(r), outputs(r))
    held = [inputs((r + i) % p) for i in range(p)]
    bit = 1
    while bit < p:
        slots = [i for i in reversed(range(p)) if i & bit]
        packed = w.scratch(*[(r, r)] * len(slots))
        received = w.scratch(*[(r, r)] * len(slots))
        for place, i in enumerate(slots):
            w.copy(held[i], cell(packed, place))
            held[i] = cell(received, place)
        w.send((r + bit) % p, packed)
        w.recv((r - bit) % p, received)
        arrived = min(bit, p - bit)  # slots below 2 * bit
        farthest = r - bit - arrived + 1
        for first, n in cyclic_runs(farthest, arrived, p):
            w.copy(cell(received, len(slots) - arrived + (first - farthest) % p, n), outputs(first, n))
        bit *= 2
