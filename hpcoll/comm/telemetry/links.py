"""The links of hosts, tried on request: which host's link is slower than the others'."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.comm.team.resources import Resources
from hpcoll.comm.telemetry.clock import clock_of
from hpcoll.comm.telemetry.leaders import Leaders
from hpcoll.runtime.transports.mpi import may_call

_NBYTES = 192 << 10  # of a message: more than what links save up and carry at once
_ALL, _TURNS = 8, 2  # nodes up to which all pairs are tried; times that each is
_PATIENCE_S = 10.0
_LONG_NS = 1 << 60


def slow_links(resources: Resources, gather: Callable[[Any], list[Any]]) -> dict[str, float]:
    """Return how many times slower each host's link is than the median link; empty where that cannot be told. Collective.

    One rank of each node exchanges messages with those of others, a pair after another: on a link of 10 Mbit/s, a second and a half. The
    best pair of a host counts. Of two hosts nobody knows whose link is slow.

    Args:
        resources: Resources of a communicator.
        gather: Returns every rank's object; what it raises is raised.
    """
    leaders = clock_of(resources.team).leaders
    nnodes = len(leaders.ranks)
    if nnodes < 3:
        return {}
    every = pairs(nnodes)
    mine = [pair for pair in every if leaders.node in pair]
    times = [_LONG_NS] * len(mine)
    leaders.begin(_PATIENCE_S)
    if leaders.leads and may_call():
        try:
            for i, (a, b) in enumerate(mine):
                times[i] = _exchange(leaders, b if leaders.node == a else a)
        except (MPI.Exception, TimeoutError):
            times = []
    told = gather(times)
    if not all(told):
        leaders.left_messages()
        return {}
    return _slowness(
        [told[rank] for rank in leaders.ranks],
        every,
        [resources.topology.hosts[rank] for rank in leaders.ranks],
    )


def pairs(nnodes: int) -> list[tuple[int, int]]:
    """Return which nodes try their links, in an order in which many pairs do so at a time: all, or those near each other on a ring.

    >>> pairs(3), len(pairs(8)), len(pairs(9))
    ([(0, 1), (0, 2), (1, 2)], 28, 18)
    """
    ways = [
        (i, (i + d) % nnodes, d)
        for d in (range(1, nnodes) if nnodes <= _ALL else (1, 2))
        for i in range(nnodes)
    ]
    once = {(min(a, b), max(a, b)): d for a, b, d in reversed(ways)}
    return sorted(once, key=lambda pair: (once[pair], pair[0] // once[pair] % 2, pair[0]))


def _exchange(leaders: Leaders, other: int) -> int:
    """Exchange messages with another node, and return the nanoseconds of the shortest time that it took."""
    sent, received, best = np.zeros(_NBYTES, np.uint8), np.empty(_NBYTES, np.uint8), _LONG_NS
    for turn in range(_TURNS):
        leaders.send(other, turn, 0)
        leaders.receive(other, turn)
        begin = time.monotonic_ns()
        leaders.exchange(other, sent, received)
        best = min(best, time.monotonic_ns() - begin)
    return best


def _slowness(
    told: Sequence[Sequence[int]], every: Sequence[tuple[int, int]], hosts: Sequence[str]
) -> dict[str, float]:
    """Return how many times slower each host's best pair is than the median host's, given what all nodes have measured, pair by pair."""
    by_pair: dict[tuple[int, int], int] = {}
    best = [_LONG_NS] * len(hosts)
    for node, times in enumerate(told):
        for pair, took in zip([pair for pair in every if node in pair], times, strict=False):
            by_pair[pair] = max(by_pair.get(pair, 0), took)
    for pair, took in by_pair.items():
        for node in pair:
            best[node] = min(best[node], took)
    middle = float(np.median(best))
    return {host: took / middle for host, took in zip(hosts, best, strict=True)}
