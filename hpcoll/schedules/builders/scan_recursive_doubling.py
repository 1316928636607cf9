"""Recursive doubling scan: partners exchange the totals of their blocks of 2^k ranks; a prefix grows by those of lower partners.

4 ranks, a..d their contributions, ``total | prefix``:

    start      round 0 (with r^1)      round 1 (with r^2)
    0: a | a   ab | a                  .  | a
    1: b | b   ab | ab                 .  | ab
    2: c | c   .  | c                  .  | abc
    3: d | d   .  | cd                 .  | abcd

Ranks go on with a total only where a higher partner is sent it later. Prefixes are canonical expressions (`hpcoll.base.canonical`), because
the blocks are their subtrees.

Source: classic, the recursive doubling of MPI libraries; Hillis and Steele's (1986) has partners at a distance, and no common subtrees.
"""

from collections.abc import Iterator
from itertools import cycle

from hpcoll.schedules.ir import Chunk, Writer, inputs, outputs
from hpcoll.schedules.patterns.hypercube import exchanges


def scan_recursive_doubling(w: Writer) -> None:
    """Write q rounds of m, at most two combinations in each; keeps rank order."""
    if w.rank == 0:
        w.copy(inputs(0), outputs(0))
    total = prefix = inputs(0)
    totals, prefixes, slots = two_cells(w), two_cells(w), two_cells(w)
    for peer, sends, receives, grows in exchanges(w.rank, w.nranks):
        if sends:
            w.send(peer, total)
        if peer < w.rank and grows and prefix != total:
            received = next(slots)
            w.recv(peer, received)
            grown = next(totals)
            w.reduce(received, total, dst=grown)
            w.reduce(received, prefix, dst=outputs(0))
            total, prefix = grown, outputs(0)
        elif peer < w.rank:  # a total as long as the prefix is the same
            last = 2 * (w.rank - peer) > w.rank
            total = outputs(0) if last or not grows else next(prefixes)
            w.recv_reduce(peer, prefix, total, received_first=True)
            prefix = total
        elif receives:
            grown = next(totals)
            w.recv_reduce(peer, total, grown)
            total = grown


def two_cells(w: Writer) -> Iterator[Chunk]:
    """Yield two cells of SCRATCH in turn, for messages that come, or change, while another is sent."""
    cells = []
    for _ in range(2):
        cells.append(w.scratch(0))
        yield cells[-1]
    yield from cycle(cells)
