"""Recursive doubling exscan: the partial result that a rank passes on includes its contribution, the one that it keeps does not.

4 ranks, a..d their contributions, ``passed on | kept``:

    start      round 0 (from r-1)      round 1 (from r-2)
    0: a |     a  |                    .  |
    1: b |     ab | a                  .  | a
    2: c |     .  | b                  .  | ab
    3: d |     .  | c                  .  | abc

In place OUTPUT is INPUT, which is passed on first: partial results stay in scratch, only the last one goes to OUTPUT.

Source: Hillis and Steele, Communications of the ACM 1986, with a second partial result.
"""

from hpcoll.schedules.ir import Writer, cell, inputs, outputs


def exscan_recursive_doubling(w: Writer) -> None:
    """Write q rounds of m, at most two combinations in each."""
    p, r = w.nranks, w.rank
    slots = w.scratch(0, 0, 0, 0) if r else inputs(0)
    passed_on, kept = inputs(0), cell(slots, 0)
    for k in range((p - 1).bit_length()):
        distance = 1 << k
        if r + distance < p:
            w.send(r + distance, passed_on)
        if r >= distance:
            received = cell(slots, k % 2)
            w.recv(r - distance, received)
            if r + 2 * distance < p:
                w.reduce(cell(slots, 2), received, passed_on)
                passed_on = cell(slots, 2)
            if k:
                last = r < 2 * distance
                w.reduce(outputs(0) if last else cell(slots, 3), received, kept)
                kept = cell(slots, 3)
    if r == 1:
        w.copy(kept, outputs(0))
