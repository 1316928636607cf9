"""Dissemination barrier: in round k every rank tells rank + 2^k of all ranks it has heard of.

Ranks that rank 0 of 6 has heard of:

    start   after k=0   after k=1     after k=2
    0       5 0         3 4 5 0       1 2 3 4 5 0    (5 and 0 heard of twice: harmless, hence idempotent)

Source: Hensgen, Finkel and Manber, Int. J. Parallel Program. 1988.
"""

from hpcoll.schedules.ir import Writer, cell, inputs, outputs
from hpcoll.schedules.patterns.dissemination import peers


def barrier_dissemination(w: Writer) -> None:
    """q rounds of one chunk, which has no bytes."""
    rounds = peers(w.rank, w.nranks)
    heard = w.scratch(*[0] * len(rounds))
    known = inputs(0)
    for k, (source, to) in enumerate(rounds):
        w.send(to, known)
        w.recv_reduce(source, cell(heard, k), known)
        known = cell(heard, k)
    w.copy(known, outputs(0))
