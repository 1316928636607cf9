"""Dissemination barrier: in round k every rank tells rank + 2^k which ranks it knows to have come.

Ranks that rank 0 of 6 knows to have come:

    start   after k=0   after k=1     after k=2
    0       5 0         3 4 5 0       1 2 3 4 5 0    (5 and 0 arrive twice, which is harmless)
"""

from hpcoll.schedules.ir import Writer, cell, inputs, outputs


def barrier_dissemination(w: Writer) -> None:
    """Write q rounds of one chunk, which has no bytes."""
    p, r = w.nranks, w.rank
    rounds = (p - 1).bit_length()
    heard = w.scratch(*[0] * rounds)
    known = inputs(0)
    for k in range(rounds):
        w.send((r + (1 << k)) % p, known)
        w.recv_reduce((r - (1 << k)) % p, known, cell(heard, k))
        known = cell(heard, k)
    w.copy(known, outputs(0))
