"""Dissemination: in round k every rank hears from rank - 2^k and tells rank + 2^k.

    5 ranks, round 0: 0 -> 1 -> 2 -> 3 -> 4 -> 0    round 1: 0 -> 2 -> 4 -> 1 -> 3 -> 0    round 2: 0 -> 4 -> 3 -> 2 -> 1 -> 0
"""


def peers(rank: int, nranks: int) -> tuple[tuple[int, int], ...]:
    """``(source, destination)`` of each of the ceil(log2 nranks) rounds.

    >>> peers(0, 5)
    ((4, 1), (3, 2), (1, 4))
    """
    rounds = (nranks - 1).bit_length()
    return tuple(((rank - (1 << k)) % nranks, (rank + (1 << k)) % nranks) for k in range(rounds))
