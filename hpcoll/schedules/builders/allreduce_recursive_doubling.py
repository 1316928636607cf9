"""Recursive doubling allreduce: neighbours in a hypercube exchange their partial results, one dimension per round, nearest first.

4 ranks, a..d their contributions:

    start      round 0     round 1             with 6 ranks, first 0 -> 1 and 2 -> 3,
    0: a       ab          abcd                then 1, 3, 4, 5 are the hypercube,
    1: b       ab          abcd                last 1 -> 0 and 3 -> 2
    2: c       cd          abcd
    3: d       cd          abcd

A message must not change while it is sent, so a round receives into a slot. Two slots in turn let the next receive be posted early.
"""

from hpcoll.schedules.ir import Writer, inputs, outputs
from hpcoll.schedules.patterns import hypercube


def allreduce_recursive_doubling(w: Writer) -> None:
    """Write floor(log2 p) rounds of m, two more unless p is a power of two; keeps rank order."""
    place = hypercube.place(w.rank, w.nranks)
    if place.host is not None:
        w.send(place.host, inputs(0))
        w.recv(place.host, outputs(0))
        return
    partial = inputs(0)
    if place.guest is not None:
        w.recv_reduce(place.guest, outputs(0), partial, received_first=True)
        partial = outputs(0)
    slots = [w.scratch(0) for _ in place.peers[:2]]
    for k, peer in enumerate(place.peers):
        received = slots[k % 2]
        w.send(peer, partial)
        w.recv(peer, received)
        w.reduce(outputs(0), *((received, partial) if peer < w.rank else (partial, received)))
        partial = outputs(0)
    if place.guest is not None:
        w.send(place.guest, outputs(0))
