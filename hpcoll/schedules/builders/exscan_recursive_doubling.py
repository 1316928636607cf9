"""Recursive doubling exscan: as the scan, but a prefix begins with the total of the first lower partner.

4 ranks, a..d their contributions, ``total | prefix``:

    start      round 0 (with r^1)      round 1 (with r^2)
    0: a |     ab |                    .  |
    1: b |     ab | a                  .  | a
    2: c |     .  |                    .  | ab
    3: d |     .  | c                  .  | abc

In place OUTPUT is INPUT, which is passed on first: a prefix stays in scratch until its last partner.

Source: as of the scan.
"""

from hpcoll.schedules.builders.scan_recursive_doubling import two_cells
from hpcoll.schedules.ir import Chunk, Writer, inputs, outputs
from hpcoll.schedules.patterns.hypercube import exchanges


def exscan_recursive_doubling(w: Writer) -> None:
    """Write q rounds of m, at most two combinations in each; keeps rank order."""
    total, prefix = inputs(0), None
    totals, slots = two_cells(w), two_cells(w)
    kept = w.scratch(0) if w.rank & (w.rank - 1) else inputs(0)  # for ranks with several lower partners
    for peer, sends, receives, grows in exchanges(w.rank, w.nranks):
        if sends:
            w.send(peer, total)
        into = outputs(0) if 2 * (w.rank - peer) > w.rank else kept
        if peer < w.rank and grows:
            received = next(slots) if prefix or total == inputs(0) else into
            w.recv(peer, received)
            grown = next(totals)
            w.reduce(received, total, dst=grown)
            _add(w, into, received, prefix)
            total, prefix = grown, into
        elif peer < w.rank:
            if prefix:
                w.recv_reduce(peer, prefix, into, received_first=True)
            else:
                w.recv(peer, into)
            prefix = into
        elif receives:
            grown = next(totals)
            w.recv_reduce(peer, total, grown)
            total = grown


def _add(w: Writer, into: Chunk, received: Chunk, prefix: Chunk | None) -> None:
    """Write a lower partner's total before a prefix, or as its begin."""
    if prefix:
        w.reduce(received, prefix, dst=into)
    elif received != into:
        w.copy(received, into)
