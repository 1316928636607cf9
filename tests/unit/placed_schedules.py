"""Placements of ranks on nodes, schedules made for them, and what leaves a node: chunks, or blocks, counted from the steps alone."""

import random
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from hpcoll.analysis.prove import placements
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.ir import Op, Schedule
from hpcoll.schedules.placement import Nodes, members, numbered
from hpcoll.schedules.row import Algorithm, schedule


def placements_of(nranks: int) -> list[Nodes]:
    """Blocks, cyclic, uneven, one node, a node for each rank, and random ones."""
    rng = random.Random(nranks)
    drawn = [numbered(rng.randrange(rng.choice((2, 3, nranks))) for _ in range(nranks)) for _ in range(4)]
    return list(dict.fromkeys([*placements(nranks), *drawn]))


def some_roots(row: Algorithm, nranks: int) -> set[int]:
    if not COLLECTIVES[row.collective].rooted:
        return {0}
    return set(range(nranks)) if nranks < 10 else {0, 1, nranks // 2, nranks - 1}


@cache
def schedules(key: str, nodes: Nodes, root: int = 0) -> tuple[Schedule, ...]:
    return tuple(schedule(CATALOGUE[key], len(nodes), rank, root, nodes=nodes) for rank in range(len(nodes)))


def sizes(nodes: Nodes) -> list[int]:
    return [len(ranks) for ranks in members(nodes)]


def is_even(nodes: Nodes) -> bool:
    return len(set(sizes(nodes))) == 1


class Crossing(NamedTuple):
    """A message from one node to another."""

    source: int
    target: int
    nchunks: int


def crossings(key: str, nodes: Nodes, root: int = 0) -> Iterator[Crossing]:
    for one in schedules(key, nodes, root):
        for step in (
            step
            for steps in one.channels
            for step in steps
            if step.op == Op.SEND and nodes[step.peer] != nodes[one.rank]
        ):
            yield Crossing(one.rank, step.peer, step.srcs[0].n)


def traffic(key: str, nodes: Nodes, root: int = 0) -> tuple[Counter[int], Counter[int]]:
    """Chunks that each node sends to others, and receives from them."""
    sent: Counter[int] = Counter()
    received: Counter[int] = Counter()
    for one in crossings(key, nodes, root):
        sent[nodes[one.source]] += one.nchunks
        received[nodes[one.target]] += one.nchunks
    return sent, received
