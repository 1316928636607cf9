"""Recursive doubling allreduce: neighbours in a hypercube exchange their partial results, one dimension per round, nearest first.

4 ranks, a..d their contributions:

    start      round 0     round 1             with 6 ranks, first 0 -> 1 and 2 -> 3,
    0: a       ab          abcd                then 1, 3, 4, 5 are the hypercube,
    1: b       ab          abcd                last 1 -> 0 and 3 -> 2
    2: c       cd          abcd
    3: d       cd          abcd

A message must not change while it is sent, so a round receives into slots. Two sets of slots in turn let the next receives be posted early.
"""

from itertools import pairwise

from hpcoll.schedules.ir import Writer, cell, inputs, outputs
from hpcoll.schedules.patterns import hypercube


def allreduce_recursive_doubling(w: Writer) -> None:
    """Write floor(log2 p) rounds of m, two more unless p is a power of two; keeps rank order."""
    exchange(w, 1)


def exchange(w: Writer, bits: int) -> None:
    """Write an allreduce whose rounds take so many dimensions of the hypercube each: all ranks that differ only there exchange at once."""
    place, p = hypercube.place(w.rank, w.nranks), w.nranks
    if place.host is not None:
        w.send(place.host, inputs(0))
        w.recv(place.host, outputs(0))
        return
    partial = inputs(0)
    if place.guest is not None:
        w.recv_reduce(place.guest, partial, outputs(0), received_first=True)
        partial = outputs(0)
    dimensions = len(place.peers)
    borders = [0, *range(dimensions % bits or bits, dimensions + 1, bits)]
    slots = [w.scratch(*[0] * ((1 << bits) - 1)) for _ in borders[1:3]]
    for turn, (first, end) in enumerate(pairwise(borders)):
        peers = [hypercube.rank_of(place.vertex ^ i << first, p) for i in range(1, 1 << end - first)]
        partials = {w.rank: partial}
        for peer in peers:
            w.send(peer, partial)
        for i, peer in enumerate(peers):
            partials[peer] = cell(slots[turn % 2], i)
            w.recv(peer, partials[peer])
        w.reduce(*(partials[rank] for rank in sorted(partials)), dst=outputs(0))
        partial = outputs(0)
    if place.guest is not None:
        w.send(place.guest, outputs(0))
