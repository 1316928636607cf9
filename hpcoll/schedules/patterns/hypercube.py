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
