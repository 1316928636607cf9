"""Recursive multiplying allreduce: recursive doubling with groups of four ranks, who send their partial results to each other at once.

8 ranks, a..h their contributions; 2 x 4 makes one round of pairs and one of fours:

    start      round 0     round 1                       messages of round 1
    0: a       ab          abcdefgh                      0 <-> 2, 4, 6
    1: b       ab          abcdefgh                      1 <-> 3, 5, 7
    ...

For networks where a message takes long to arrive and little to post: three sends leave one after another and travel together.

Source: Ruefenacht, Bull and Booth, Parallel Computing 2017; Trivance (arXiv 2602.17254) has rounds of three, with the nearest ranks.
"""

from itertools import pairwise

from hpcoll.schedules.ir import Writer, cell, inputs, outputs
from hpcoll.schedules.patterns import hypercube

BITS = 2  # dimensions of the hypercube that a round takes: groups of four


def allreduce_recursive_multiplying(w: Writer) -> None:
    """Write half as many rounds of m as recursive doubling, with up to three messages in each; keeps rank order."""
    place, p = hypercube.place(w.rank, w.nranks), w.nranks
    if place.host is not None:
        w.send(place.host, inputs(0))
        w.recv(place.host, outputs(0))
        return
    partial = inputs(0)
    if place.guest is not None:
        w.recv_reduce(place.guest, outputs(0), partial, received_first=True)
        partial = outputs(0)
    dimensions = len(place.peers)
    slots = [w.scratch(0, 0, 0) for _ in range(min(2, -(-dimensions // BITS)))]  # in turn, so that receives are posted early
    borders = [0, *range(dimensions % BITS or BITS, dimensions + 1, BITS)]
    for turn, (first, end) in enumerate(pairwise(borders)):
        peers = [hypercube.rank_of(place.vertex ^ i << first, p) for i in range(1, 1 << end - first)]
        partials = {w.rank: partial}
        for peer in peers:
            w.send(peer, partial)
        for i, peer in enumerate(peers):
            partials[peer] = cell(slots[turn % 2], i)
            w.recv(peer, partials[peer])
        w.reduce(outputs(0), *(partials[rank] for rank in sorted(partials)))
        partial = outputs(0)
    if place.guest is not None:
        w.send(place.guest, outputs(0))
