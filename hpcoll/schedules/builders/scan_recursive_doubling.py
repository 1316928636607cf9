"""Recursive doubling scan: after round k a rank has combined the 2^(k+1) ranks that end with itself.

4 ranks, a..d their contributions:

    start      round 0 (from r-1)      round 1 (from r-2)
    0: a       a                       a
    1: b       ab                      ab
    2: c       bc                      abc
    3: d       cd                      abcd

A message must not change while it is sent, so a round receives into a slot. Two slots in turn let the next receive be posted early.
"""

from hpcoll.schedules.ir import Writer, inputs, outputs


def scan_recursive_doubling(w: Writer) -> None:
    """Write q rounds of m, one combination in each."""
    if w.rank == 0:
        w.copy(inputs(0), outputs(0))
    partial = inputs(0)
    distances = [1 << k for k in range((w.nranks - 1).bit_length())]
    slots = [w.scratch(0) for distance in distances[:2] if distance <= w.rank]
    for k, distance in enumerate(distances):
        if w.rank + distance < w.nranks:
            w.send(w.rank + distance, partial)
        if w.rank >= distance:
            received = slots[k % 2]
            w.recv(w.rank - distance, received)
            w.reduce(outputs(0), received, partial)
            partial = outputs(0)
