"""Blocks lowered together give the program that they give one by one: the same operations, bytes and order."""

import random

import pytest
from lowering_cases import Case, in_place_modes
from reference_calls import Setting

from hpcoll.base.sizes import Multiples, Sizes
from hpcoll.runtime.program import items, route
from hpcoll.runtime.program.chunks import ChunkLayout, Segments, block_segments
from hpcoll.runtime.program.lowering import lower
from hpcoll.runtime.program.opcodes import Program
from hpcoll.runtime.transports.host_routes import host_routes
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.ir import Schedule
from hpcoll.schedules.placement import parse_nodes
from hpcoll.schedules.row import Algorithm

BLOCKS = [
    row
    for row in CATALOGUE.values()
    if COLLECTIVES[row.collective].blocks and not COLLECTIVES[row.collective].neighbours
]


def one_by_one(segments: Segments) -> Segments:
    """Return segments whose layouts do not say that all blocks are alike."""
    layouts: dict[int, ChunkLayout] = {}
    return [
        (displ, layouts.setdefault(id(layout), layout._replace(blocks=None))) for displ, layout in segments
    ]


def cases(row: Algorithm, most: int, rng: random.Random) -> list[Case]:
    """Return calls of up to so many ranks, on nodes of several sizes."""
    found = []
    for nranks in (2, 3, 5, 8, 12, 16, 23, 32, 48, 64):
        for per_node in {1, 3, 8, nranks} if nranks <= most else ():
            nodes = parse_nodes(str(per_node), nranks)
            in_place = rng.choice(in_place_modes(row, nranks, rng))
            root = rng.randrange(nranks) if COLLECTIVES[row.collective].rooted else 0
            segment = rng.choice((1 << 40, 1 << 40, 5))
            found.append(Case(row, nranks, 11, in_place, Setting(0, nodes=nodes), root, segment, nodes=nodes))
    return found


def program(case: Case, steps: Schedule, segments: Segments, mapped: tuple[int, ...]) -> Program:
    """Return one rank's program for elements of 8 bytes."""
    peers = host_routes(case.local_peers(steps.rank))
    in_place = case.in_place[steps.rank]
    return lower(steps, segments, 8, 2, in_place=in_place, routes=peers, mapped=mapped)


def contents(program: Program) -> tuple[object, ...]:
    """Return all numbers of a program."""
    tables = [table.tolist() for table in (program.rows, program.sources, program.lanes)]
    needs = program.nrequests, program.scratch_nbytes, program.staging_nbytes, program.nmessages
    return *tables, needs


@pytest.mark.parametrize("row", BLOCKS, ids=[row.key for row in BLOCKS])
def test_the_same_program(row: Algorithm, short: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (items, route):
        monkeypatch.setattr(module, "BATCH", 2)  # so that few ranks have batches
    rng = random.Random(row.key)
    for case in cases(row, 23 if short else 64, rng):
        for steps in rng.sample(case.schedules(), 2):
            mapped = rng.choice(((), (), (0,), (1,), (0, 1)))
            segments = block_segments(steps, case.count, min(case.segment, case.count))
            together = program(case, steps, segments, mapped)
            single = program(case, steps, one_by_one(segments), mapped)
            assert contents(together) == contents(single), (case.nranks, case.nodes, steps.rank, mapped)


@pytest.mark.parametrize("nbytes", [8, 512])
def test_batches_are_written(nbytes: int) -> None:
    """Numbers of many rows are kept together; else the tests above would compare a program with itself."""
    row, nodes = CATALOGUE["alltoall/hierarchical"], parse_nodes("16", 64)
    case = Case(row, 64, nbytes // 8, (False,) * 64, Setting(0, nodes=nodes), nodes=nodes)
    (count,) = Sizes((case.count,)).given
    steps = case.schedules()[5]
    symbols = program(case, steps, block_segments(steps, count, 1 << 40), ()).symbols
    assert any(isinstance(symbol.size, Multiples) for symbol in symbols)
    assert len(symbols) < 64 * 16
