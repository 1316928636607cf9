"""Bruck alltoall: a block for rank + i moves 2^k ranks on in every round k with bit k set in i.

Slot i of rank r of 4, as source>destination:

    start                 after k=0               after k=1
    r>r                   r>r                     r>r
    r>r+1                 r-1>r   (arrived)       r-1>r
    r>r+2                 r>r+2                   r-2>r   (arrived)
    r>r+3                 r-1>r+2                 r-3>r   (arrived)

A round's slots are packed in descending order, so that blocks that have arrived are contiguous in OUTPUT, too.
"""

from hpcoll.schedules.ir import Chunk, Writer, cell, cyclic_runs, inputs, outputs


def alltoall_bruck(w: Writer) -> None:
    """Write q rounds of at most p/2 blocks. Equal blocks only."""
    p, r = w.nranks, w.rank
    w.copy(inputs(r), outputs(r))
    received: list[Chunk] = []  # by rounds
    bit = 1
    while bit < p:
        nslots = _below(p, bit)
        packed = w.scratch(*[(r, r)] * nslots)
        place = 0
        for first in reversed(range(bit, p, 2 * bit)):
            for k in reversed(range(len(received))):  # slots that arrived last in round k
                slot = first + (1 << k)
                n = min(1 << k, p - slot)
                if n > 0:
                    behind = _below(p, 1 << k) - _below(slot + n, 1 << k)
                    w.copy(cell(received[k], behind, n), cell(packed, place, n))
                    place += n
            w.copy(inputs((r + first) % p), cell(packed, place))
            place += 1
        received.append(w.scratch(*[(r, r)] * nslots))
        w.send((r + bit) % p, packed)
        w.recv((r - bit) % p, received[-1])
        arrived = min(bit, p - bit)  # slots below 2 * bit
        farthest = r - bit - arrived + 1
        for first, n in cyclic_runs(farthest, arrived, p):
            w.copy(cell(received[-1], nslots - arrived + (first - farthest) % p, n), outputs(first, n))
        bit *= 2


def _below(end: int, bit: int) -> int:
    """Return how many numbers below ``end`` have a bit."""
    return end // (2 * bit) * bit + max(0, end % (2 * bit) - bit)
