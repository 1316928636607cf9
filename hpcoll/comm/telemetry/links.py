"""The links of hosts, tried on request: which host's link is slower than the others'."""

import time
from collections.abc import Sequence
from statistics import median

import numpy as np
from mpi4py import MPI

from hpcoll.comm.plans.signature import Purpose
from hpcoll.comm.team.resources import Resources
from hpcoll.comm.telemetry.clock import clock_of
from hpcoll.comm.telemetry.leaders import Leaders
from hpcoll.runtime.transports.mpi import may_call

_NBYTES = 192 << 10  # of a message: more than what links save up and carry at once
_ALL, _MOST_PAIRS, _TURNS = 8, 7, 2  # nodes up to which all pairs are tried; pairs of a node; times that each is tried
_PATIENCE_S = 10.0
_LONG_NS, _FAILED = 1 << 60, -1


def slow_links(resources: Resources) -> dict[str, float]:
    """Return how many times slower each host's link is than the median link; empty where that cannot be told. Collective.

    One rank of each node exchanges messages with those of others, a pair after another: on a link of 10 Mbit/s, a second and a half. The
    best pair of a host counts. Of two hosts nobody knows whose link is slow. Raises what service collectives raise.
    """
    leaders = clock_of(resources.team).leaders
    nnodes = len(leaders.ranks)
    if nnodes < 3:
        return {}
    every = pairs(nnodes)
    mine = [pair for pair in every if leaders.node in pair]
    times = np.full(_MOST_PAIRS, _LONG_NS)
    leaders.begin(_PATIENCE_S)
    if leaders.leads and may_call():
        try:
            for i, (a, b) in enumerate(mine):
                times[i] = _exchange(leaders, b if leaders.node == a else a)
        except (MPI.Exception, TimeoutError):
            times[:] = _FAILED
    told = np.empty((resources.nranks, _MOST_PAIRS), np.int64)
    resources.service_collectives.gather(times, told, Purpose.CLOCKS)
    if (told == _FAILED).any():
        leaders.left_messages()
        return {}
    return _slowness(told[leaders.ranks], every, [resources.topology.hosts[rank] for rank in leaders.ranks])


def pairs(nnodes: int) -> list[tuple[int, int]]:
    """Return which nodes try their links, in an order in which many pairs do so at a time: all, or those near each other on a ring.

    >>> pairs(3), len(pairs(8)), len(pairs(9))
    ([(0, 1), (0, 2), (1, 2)], 28, 18)
    """
    found = [(i, (i + d) % nnodes, d) for d in (range(1, nnodes) if nnodes <= _ALL else (1, 2)) for i in range(nnodes)]
    once = {(min(a, b), max(a, b)): d for a, b, d in reversed(found)}
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


def _slowness(told: np.ndarray, every: Sequence[tuple[int, int]], hosts: Sequence[str]) -> dict[str, float]:
    """Return how many times slower each host's best pair is than the median host's, given what all nodes have measured, pair by pair."""
    by_pair: dict[tuple[int, int], int] = {}
    best = [_LONG_NS] * len(hosts)
    for node, times in enumerate(told.tolist()):
        for pair, took in zip([pair for pair in every if node in pair], times, strict=False):
            by_pair[pair] = max(by_pair.get(pair, 0), took)
    for pair, took in by_pair.items():
        for node in pair:
            best[node] = min(best[node], took)
    middle = median(best)
    return {host: took / middle for host, took in zip(hosts, best, strict=True)}
