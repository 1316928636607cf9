"""Lowered programs of ranks that share a node: right results in any order of things, and nothing is read that may be overwritten."""

import itertools
import random
from collections.abc import Callable

import pytest
from lowering_cases import Case, every_row, in_place_modes, random_nodes
from lowering_play import check, programs_of
from reference_calls import Setting, operands_of
from reference_memory import STAGING_SLOTS

from hpcoll.runtime.program.fields import (
    BUFFER,
    CODE,
    IN_PLACE,
    NBYTES,
    STAGED_DISPL,
)
from hpcoll.runtime.program.opcodes import MESSAGES, Code, Program
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.ir import Buffer
from hpcoll.schedules.placement import Nodes
from hpcoll.schedules.row import Algorithm

NODES: dict[str, Callable[[int], int]] = {  # on which node a rank is
    "all on one": lambda rank: 0,
    "neighbours in pairs": lambda rank: rank // 2,
    "neighbours in threes": lambda rank: rank // 3,
    "in turn on two": lambda rank: rank % 2,
}
SHORT = ("all on one", "neighbours in threes")  # the placements of the short run
# elements of 1, 3, 8 or 16 bytes: chunks on both sides of 56 bytes
COUNTS = (
    0,
    1,
    2,
    3,
    4,
    6,
    7,
    8,
    9,
    18,
    19,
    20,
    33,
    70,
)


def shared_modes(nranks: int, rng: random.Random) -> list[tuple[tuple[bool, bool], ...]]:
    """Nobody's, everybody's, some buffers are in symmetric memory."""
    return [
        (),
        ((True, True),) * nranks,
        tuple((rng.random() < 0.5, rng.random() < 0.5) for _ in range(nranks)),
    ]


def node_setting(rng: random.Random, where: Callable[[int], int], nranks: int) -> Setting:
    return Setting(
        rng.randrange(1 << 30),
        rng.choice((0, 24, 1 << 30)),
        tuple(map(where, range(nranks))),
        rng.choice((1, 1, 2, 5)),
    )


def random_case(row: Algorithm, nranks: int, setting: Setting, rng: random.Random) -> Case:
    count = 1 if row.collective == "barrier" else rng.choice(COUNTS)
    return Case(
        row,
        nranks,
        count,
        rng.choice(in_place_modes(row, nranks, rng)),
        setting,
        root=rng.randrange(nranks) if COLLECTIVES[row.collective].rooted else 0,
        segment=rng.choice((1 << 40, max(1, count), 20, 8, 5)),
        window=rng.choice((1, 2, STAGING_SLOTS)),
        most_nbytes=rng.choice((1 << 30, 16)),
        shared=rng.choice(shared_modes(nranks, rng)),
        nodes=random_nodes(row, nranks, rng) if row.hierarchical and rng.random() < 0.5 else (),
    )


# --- results


@pytest.mark.parametrize(
    "where", [pytest.param(name, marks=() if name in SHORT else pytest.mark.full) for name in NODES]
)
@every_row
def test_results(row: Algorithm, where: str, short: bool) -> None:
    rng = random.Random(row.key + where)
    for nranks, _ in itertools.product(
        (2, 3, 5, 7) if short else (2, 3, 4, 5, 6, 7, 9), range(1 if short else 3)
    ):
        check(random_case(row, nranks, node_setting(rng, NODES[where], nranks), rng))


@pytest.mark.parametrize(
    "key", [key for key, row in CATALOGUE.items() if COLLECTIVES[row.collective].blocks and not row.uniform]
)
def test_varying_blocks(key: str, short: bool) -> None:
    """Blocks that are empty, one huge among small ones, cut into pieces and not."""
    row, rng = CATALOGUE[key], random.Random(key)
    for nranks, where in itertools.product((2, 5) if short else (2, 3, 5, 7), NODES):
        for sizes in (
            [rng.choice((0, 0, 1, 7, 8, 19)) for _ in range(nranks)],
            [100 * (rank == nranks - 1) for rank in range(nranks)],
        ):
            case = random_case(row, nranks, node_setting(rng, NODES[where], nranks), rng)
            check(case._replace(count=sum(sizes), sizes=tuple(sizes), segment=rng.choice((1 << 40, 10, 3))))


@pytest.mark.parametrize("where", NODES)
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.full if seed > 3 else ()) for seed in range(12)]
)
def test_calls_one_after_another(seed: int, where: str) -> None:
    """A rank may be calls ahead: what it staged for the last one must stay until everybody has used it."""
    rng = random.Random(f"{seed} {where}")
    nranks = rng.choice((2, 3, 4, 5))
    setting = node_setting(rng, NODES[where], nranks)
    check(
        *(
            random_case(rng.choice(list(CATALOGUE.values())), nranks, setting, rng)
            for _ in range(2 * STAGING_SLOTS)
        )
    )


# --- structure


def node_programs(
    key: str, nranks: int, count: int, *, in_place: bool = False, nodes: Nodes = ()
) -> list[Program]:
    """Programs of all ranks of one node, elements of 8 bytes; the schedule may be one for several nodes."""
    return programs_of(
        Case(
            CATALOGUE[key], nranks, count, (in_place,) * nranks, Setting(0, nodes=(0,) * nranks), nodes=nodes
        ),
        8,
    )


def rows_of(program: Program, *codes: Code) -> list[tuple[int, ...]]:
    return [tuple(row) for row in program.rows.tolist() if row[CODE] in codes]


@pytest.mark.parametrize(
    "key", ["bcast/direct", "allgather/direct", "allreduce/direct", "bcast/binomial", "bcast/tree"]
)
def test_what_several_get_is_staged_once(key: str) -> None:
    root = node_programs(key, 8, 16, in_place=COLLECTIVES[CATALOGUE[key].collective].always_in_place)[0]
    (stage,) = rows_of(root, Code.STAGE)
    posts = rows_of(root, Code.POST)
    assert len(posts) >= 2
    assert {post[STAGED_DISPL : NBYTES + 1] for post in posts} == {stage[STAGED_DISPL : NBYTES + 1]}


@pytest.mark.parametrize(
    "key", ["allreduce/direct", "reduce_scatter/direct", "allreduce/two_shot", "reduce/direct"]
)
def test_a_reduction_reads_messages_where_they_are(key: str) -> None:
    nranks = 5
    program = node_programs(key, nranks, 40)[0]
    (row,) = rows_of(program, Code.REDUCE)
    sources = {buffer for buffer, _ in operands_of(program, row)[1]}
    assert sources == {Buffer.INPUT, *range(MESSAGES, MESSAGES + nranks - 1)}
    assert program.nmessages == nranks - 1
    at = program.rows.tolist().index(list(row))
    assert [code for code, *_ in program.rows[at + 1 : at + nranks].tolist()] == [Code.ACK] * (nranks - 1)


def test_memory_that_is_overwritten_later_is_never_read_in_place() -> None:
    """A ring forwards partial sums from OUTPUT and overwrites them in its second half, where it forwards what stays."""
    program = node_programs("allreduce/ring", 4, 400)[1]
    posts = rows_of(program, Code.POST)
    expected = [("INPUT", 1), ("OUTPUT", 0), ("OUTPUT", 0)] + 3 * [("OUTPUT", 1)]
    assert [(Buffer(post[BUFFER]).name, post[IN_PLACE]) for post in posts] == expected
    assert [row[BUFFER] for row in rows_of(program, Code.DRAIN)] == [Buffer.INPUT, Buffer.OUTPUT]
    in_place = node_programs("allreduce/ring", 4, 400, in_place=True)[1]
    assert [post[IN_PLACE] for post in rows_of(in_place, Code.POST)] == [0, 0, 0, 1, 1, 1]
