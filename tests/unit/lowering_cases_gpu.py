"""Calls on arrays in GPU memory to lower, by what reaches a rank's memory; and rows of their programs."""

import random
from collections.abc import Callable

from lowering_cases import Case, in_place_modes, random_nodes
from lowering_play import programs_of
from reference_calls import Reach, Setting
from reference_memory import STAGING_SLOTS

from hpcoll.runtime.program.fields import CODE
from hpcoll.runtime.program.opcodes import Code, Program
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.row import Algorithm

NODES: list[Callable[[int], int]] = [
    lambda rank: 0,
    lambda rank: rank // 2,
    lambda rank: rank % 2,
    lambda rank: rank // 3,
]


def local_peers(rank: int, nodes: tuple[int, ...]) -> frozenset[int]:
    return frozenset(other for other, node in enumerate(nodes) if other != rank and node == nodes[rank])


def some(ranks: frozenset[int], rng: random.Random) -> frozenset[int]:
    return frozenset(rank for rank in sorted(ranks) if rng.random() < 0.5)


def all_mapped(ranks: frozenset[int], rng: random.Random) -> Reach:
    return Reach(ranks, False, (True, True), puts=True)


SOME_EXPORTED = (False, False), (True, False), (False, True)
# On which nodes ranks are, and what reaches the memory of one that has these local peers.
REACH: dict[str, tuple[list[Callable[[int], int]], Callable[[frozenset[int], random.Random], Reach]]] = {
    "all mapped": (NODES[:1], all_mapped),
    "all staged": (NODES[:1], lambda ranks, rng: Reach(frozenset(), False, (True, True))),
    "CUDA-aware": ([lambda rank: rank], lambda ranks, rng: Reach(frozenset(), True, (True, True))),
    "pinned": ([lambda rank: rank], lambda ranks, rng: Reach(frozenset(), False, (True, True))),
    "not exported": (NODES[:2], lambda ranks, rng: Reach(ranks, True, rng.choice(SOME_EXPORTED), puts=True)),
    "nodes": (NODES[1:], lambda ranks, rng: Reach(ranks, rng.random() < 0.5, (True, True), puts=True)),
    "no puts": (NODES[:1], lambda ranks, rng: Reach(ranks, False, (True, True))),
    "anything": (
        NODES,
        lambda ranks, rng: Reach(
            some(ranks, rng), rng.random() < 0.5, (rng.random() < 0.5, rng.random() < 0.5)
        ),
    ),
}


def gpu_case(row: Algorithm, nranks: int, reach: str, rng: random.Random) -> Case:
    """A call in which all but the number of ranks and the kind of reach is drawn."""
    nodes = tuple(map(rng.choice(REACH[reach][0]), range(nranks)))
    sizes = None
    if COLLECTIVES[row.collective].blocks and not row.uniform and rng.random() < 0.3:
        sizes = tuple(rng.choice((0, 0, 1, 7, 19)) for _ in range(nranks))
    count = (
        sum(sizes) if sizes else 1 if row.collective == "barrier" else rng.choice((0, 1, 2, 3, 9, 19, 37, 70))
    )
    return Case(
        row,
        nranks,
        count,
        rng.choice(in_place_modes(row, nranks, rng)),
        Setting(rng.randrange(1 << 30), rng.choice((0, 24, 1 << 30)), nodes, rng.choice((1, 1, 2, 5))),
        root=rng.randrange(nranks) if COLLECTIVES[row.collective].rooted else 0,
        segment=rng.choice((1 << 40, max(1, count), 20, 5)),
        window=rng.choice((1, 2, 3, STAGING_SLOTS)),
        sizes=sizes,
        most_nbytes=rng.choice((1 << 30, 16)),
        reach=tuple(REACH[reach][1](local_peers(rank, nodes), rng) for rank in range(nranks)),
        nodes=random_nodes(row, nranks, rng) if row.placed and rng.random() < 0.5 else (),
    )


def rows_of(program: Program, *codes: Code) -> list[tuple[int, ...]]:
    return [tuple(row) for row in program.rows.tolist() if row[CODE] in codes]


def programs(key: str, nranks: int, reach: str, *, in_place: bool = False, count: int = 0) -> list[Program]:
    """Of all ranks, in one lane; elements of 8 bytes."""
    rng = random.Random(0)
    case = gpu_case(CATALOGUE[key], nranks, reach, rng)._replace(
        in_place=(in_place,) * nranks,
        sizes=None,
        count=count or 3 * nranks,
        segment=1 << 40,
        root=0,
        most_nbytes=1 << 30,
    )
    return programs_of(case, 8)
