"""Hypercube: vertices are neighbours along dimension k where their numbers differ in bit k.

011 ---- 111        Other numbers of ranks are folded first: with e ranks too many, the first 2e form pairs whose
 | \\      | \\       even rank is the guest of the odd one. 6 ranks make 4 vertices:
 | 001 ---- 101
 |  |     |  |          guest    0     2
010 | -- 110 |          vertex   0     1     2   3
   \\|       \\|          rank     1     3     4   5
   000 ---- 100
"""

from typing import NamedTuple


class Exchange(NamedTuple):
    """A rank's part in a round of a scan, in which partners differ in one bit and exchange the totals of their blocks of 2^k ranks."""

    peer: int
    sends: bool  # the partner's prefix, or total, needs this rank's total
    receives: bool
    grows: bool  # this rank goes on with the total of both blocks


def exchanges(rank: int, nranks: int) -> list[Exchange]:
    """Return the rounds of a scan in which a rank has a partner; totals go where a rank with a higher partner passes them on.

    >>> exchanges(1, 4)
    [Exchange(peer=0, sends=True, receives=True, grows=True), Exchange(peer=3, sends=True, receives=False, grows=False)]
    >>> exchanges(2, 3)
    [Exchange(peer=0, sends=False, receives=True, grows=False)]
    """
    rounds = range((nranks - 1).bit_length())

    def goes_on(rank: int, k: int) -> bool:
        """Say whether a rank passes on the total of its block of 2^k ranks: to a higher partner, or to a rank below that does so."""
        own = rank & (1 << k) - 1
        return any(not rank >> j & 1 and (rank >> j << j | own) + (1 << j) < nranks for j in rounds[k:])

    steps = []
    for k in rounds:
        peer = rank ^ 1 << k
        if peer < nranks:
            grows = goes_on(rank, k + 1)
            sends, receives = (True, grows) if rank < peer else (goes_on(peer, k + 1), True)
            steps.append(Exchange(peer, sends, receives, grows))
    return steps


class Position(NamedTuple):
    """A rank's place in the folded hypercube."""

    vertex: int  # of a guest its host's
    host: int | None  # of a guest
    guest: int | None  # of a host
    peers: tuple[int, ...]  # neighbours' ranks, dimension 0 first; empty for a guest


def place(rank: int, nranks: int) -> Position:
    """Return the vertex, partner and neighbours of a rank. Vertices are in rank order.

    >>> place(5, 8)
    Position(vertex=5, host=None, guest=None, peers=(4, 7, 1))
    >>> place(0, 6), place(1, 6)
    (Position(vertex=0, host=1, guest=None, peers=()), Position(vertex=0, host=None, guest=0, peers=(3, 4)))
    """
    dimensions = nranks.bit_length() - 1
    surplus = nranks - (1 << dimensions)
    paired = rank < 2 * surplus
    vertex = rank // 2 if paired else rank - surplus
    if paired and rank % 2 == 0:
        return Position(vertex, rank + 1, None, ())
    peers = tuple(rank_of(vertex ^ 1 << k, nranks) for k in range(dimensions))
    return Position(vertex, None, rank - 1 if paired else None, peers)


def rank_of(vertex: int, nranks: int) -> int:
    """Return the rank at a vertex, a host's where there is one.

    >>> [rank_of(vertex, 6) for vertex in range(4)]
    [1, 3, 4, 5]
    """
    surplus = nranks - (1 << nranks.bit_length() - 1)
    return 2 * vertex + 1 if vertex < surplus else vertex + surplus
