"""Circulant graph: rank r is linked to r + s and r - s for about log2 nranks skips s.

    skips of 7: 1 2 4           0 --> 1 --> 2 --> 3 --> 4 --> 5 --> 6 --> 0
                                0 --------> 2 --------> 4 --------> 6 ...
                                0 --------------------> 4 ...

All ranks look alike, so every number of ranks is as good. Besides the skips there is the n-block schedule, which says which of n blocks a
rank sends in which round. A broadcast then ends after n - 1 + q rounds, the fewest possible on one port.

Source: Traeff, arXiv 2312.11236 and 2407.18004. The greedy rule for the receive schedule is ours. It is not proven in general, but was
checked for all nranks below 2500, and the verifier proves every schedule that is made of it.
"""

from bisect import bisect_right
from functools import lru_cache
from typing import NamedTuple


@lru_cache(maxsize=256)
def skips(nranks: int) -> tuple[int, ...]:
    """Return the skips ``s[0] = 1 < ... < s[q] = nranks``: each is half the next one, rounded up; ``q = ceil(log2 nranks)``.

    >>> skips(17), skips(7)
    ((1, 2, 3, 5, 9, 17), (1, 2, 4, 7))
    """
    descending = [nranks]
    while descending[-1] > 1:
        descending.append((descending[-1] + 1) // 2)
    return tuple(reversed(descending))


class Round(NamedTuple):
    """A round of a broadcast from vrank 0."""

    right: int  # vrank that is sent to
    sent: int | None  # block, or None
    left: int  # vrank that is received from
    received: int | None


@lru_cache(maxsize=512)  # all of a proof's roots have the same
def rounds(vrank: int, nranks: int, nblocks: int) -> tuple[Round, ...]:
    """Return a vrank's ``nblocks - 1 + q`` rounds of a broadcast to 2 or more ranks. Each block arrives exactly once.

    >>> [(turn.sent, turn.received) for turn in rounds(0, 5, 2)]
    [(0, None), (1, None), (1, None), (1, None)]
    >>> [(turn.sent, turn.received) for turn in rounds(1, 5, 2)]
    [(None, None), (None, 1), (None, 0), (1, None)]
    """
    skip = skips(nranks)
    q = len(skip) - 1
    receives, sends = receive_schedule(vrank, nranks), send_schedule(vrank, nranks)
    idle = -(nblocks - 1) % q  # rounds of the first phase without a block
    plan = []
    for i in range(idle, idle + nblocks - 1 + q):
        phase, k = divmod(i, q)
        right, left = (vrank + skip[k]) % nranks, (vrank - skip[k]) % nranks
        sent, received = (_block(schedule[k] + phase * q - idle, nblocks) for schedule in (sends, receives))
        plan.append(Round(right, sent if right else None, left, received if vrank else None))
    return tuple(plan)


def _block(number: int, nblocks: int) -> int | None:
    return min(number, nblocks - 1) if number >= 0 else None


def send_schedule(vrank: int, nranks: int) -> tuple[int, ...]:
    """Return the block sent to ``vrank + s[k]`` in each round k of the first phase; each later phase adds q. Negative: none yet.

    >>> send_schedule(0, 7), send_schedule(3, 7)
    ((0, 1, 2), (-3, -2, -3))
    """
    skip = skips(nranks)
    return tuple(receive_schedule((vrank + skip[k]) % nranks, nranks)[k] for k in range(len(skip) - 1))


@lru_cache(maxsize=1 << 15)
def receive_schedule(vrank: int, nranks: int) -> tuple[int, ...]:
    """Return the block received from ``vrank - s[k]`` in each round k of the first phase; each later phase adds q.

    Greedy: round k takes the largest base block not taken yet that some vrank within reach of its skip starts with.
    The q blocks differ modulo q, so over the phases a vrank gets every block once.

    >>> [receive_schedule(v, 7) for v in range(1, 4)]
    [(0, -2, -1), (-3, 1, -1), (-2, 0, -1)]
    """
    skip, (base, holders) = skips(nranks), _base_blocks(nranks)
    q = len(skip) - 1
    taken = [base[vrank]]
    for k in range(q):
        last, first = vrank - skip[k + 1], vrank - skip[k]  # the interval (last, first]
        near = (
            b
            for b in range(q, -1, -1)
            if b not in taken and bisect_right(holders[b], first) > bisect_right(holders[b], last)
        )
        taken.append(next(near, base[last % nranks]))
    return tuple(base[vrank] if block == q else block - q for block in taken[1:])


@lru_cache(maxsize=16)
def _base_blocks(nranks: int) -> tuple[list[int], list[list[int]]]:
    """Return the base block of every vrank, and for each block the vranks that have it, ascending from ``-nranks``.

    A vrank's base block is the index of the smallest skip of its greedy sum of skips: the round of the first phase in
    which a block first reaches it. The root has block q.
    """
    skip = skips(nranks)
    q = len(skip) - 1
    base = [q]
    for k in range(q):
        base += [k, *base[1 : skip[k + 1] - skip[k]]]
    holders: list[list[int]] = [[] for _ in range(q + 1)]
    for vrank in range(-nranks, nranks):
        holders[base[vrank]].append(vrank)
    return base, holders
