"""Trees that pass blocks between nearer and nearer ranks: a rank that has blocks sends them all to one other rank in each turn.

Blocks that rank 0 of 8 has after each turn, by the distance from which they came:

    pat         4: 0 4          2: 0 4 6 2           1: 0 4 6 2 7 3 5 1         r sends to r + distance
    bine        3: 0 3         -1: 0 3 7 4           1: 0 3 7 4 1 6 2 5         even r exchange with r + distance, odd r with r - distance

Half of all blocks come from the nearest rank. A rank keeps its blocks in the order in which they came, so that a turn's message is a run
of them. For other numbers of ranks than powers of two it may be several runs, since the receiver has some blocks already. Reductions run
the turns backwards.

Source: Jeaugey, arXiv 2506.20252 (pat); De Sensi et al., arXiv 2508.17311 (bine, whose distances are those of Swing, arXiv 2401.09356).
"""

from functools import lru_cache
from typing import NamedTuple

Runs = tuple[tuple[int, int], ...]  # (first place, number of places)


class Turn(NamedTuple):
    """A turn of a rank, when blocks spread."""

    target: int  # rank that is sent to
    sent: Runs
    source: int  # rank that is received from
    received: tuple[int, int]  # a run of as many places


def pat(rank: int, nranks: int) -> tuple[list[int], list[Turn]]:
    """Return the blocks of a rank's places, its own first, and its turns.

    >>> pat(0, 5)[0], [(turn.target, turn.sent, turn.source, turn.received) for turn in pat(0, 5)[1]]
    ([0, 1, 3, 4, 2], [(4, ((0, 1),), 1, (1, 1)), (2, ((0, 1),), 3, (2, 1)), (1, ((0, 1), (2, 1)), 4, (3, 2))])
    """
    distances = tuple(1 << k for k in reversed(range((nranks - 1).bit_length())))
    return _of_rank(rank, nranks, distances, mirrored=False)


def bine(rank: int, nranks: int) -> tuple[list[int], list[Turn]]:
    """Return the blocks of a rank's places, its own first, and its turns; ``nranks`` is even.

    >>> bine(0, 4)[0], [turn.target for turn in bine(0, 4)[1]], [turn.target for turn in bine(1, 4)[1]]
    ([0, 3, 1, 2], [3, 1], [2, 0])
    """
    distances = tuple((1 - (-2) ** (k + 1)) // 3 for k in reversed(range((nranks - 1).bit_length())))
    return _of_rank(rank, nranks, distances, mirrored=True)


def _of_rank(
    rank: int, nranks: int, distances: tuple[int, ...], *, mirrored: bool
) -> tuple[list[int], list[Turn]]:
    offsets, sent = _spread(nranks, distances, mirrored)
    sign, place, turns = 1 if mirrored and rank % 2 == 0 else -1, 1, []
    for distance, runs in zip(distances, sent):
        source, n = (rank + sign * distance) % nranks, sum(n for _, n in runs)
        turns.append(Turn(source if mirrored else (rank + distance) % nranks, runs, source, (place, n)))
        place += n
    return [(rank + sign * offset) % nranks for offset in offsets], turns


@lru_cache(maxsize=64)
def _spread(nranks: int, distances: tuple[int, ...], mirrored: bool) -> tuple[list[int], list[Runs]]:
    """Return how far away the blocks of a rank's places are, and the runs of places that are sent in each turn."""
    offsets, sent = [0], []
    for distance in distances:
        have, runs = set(offsets), list[tuple[int, int]]()
        for place, offset in enumerate(list(offsets)):
            new = (distance - offset) % nranks if mirrored else offset + distance
            if new >= nranks or new in have:
                continue
            offsets.append(new)
            follows = runs and sum(runs[-1]) == place
            runs[-1:] = [(runs[-1][0], runs[-1][1] + 1)] if follows else [*runs[-1:], (place, 1)]
        sent.append(tuple(runs))
    return offsets, sent
