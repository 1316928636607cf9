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
from hpcoll.schedules.ir import Buffer, Chunk, Op, Schedule, Step
from hpcoll.schedules.placement import parse_nodes
from hpcoll.schedules.row import Algorithm, schedule

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


def random_runs(rng: random.Random, buffers: dict[Buffer, int], n: int) -> list[Chunk]:
    """Return several runs of one buffer, of ``n`` chunks each where there are so many."""
    buffer = rng.choice(list(buffers))
    n = min(n, buffers[buffer])
    last = buffers[buffer] - n
    start, step = rng.randint(0, last), rng.choice((1, 1, 2, -1))
    return [Chunk(buffer, (start + step * i) % (last + 1), n) for i in range(rng.choice((1, 2, 3, 6)))]


def random_schedule(rng: random.Random, row: Algorithm) -> Schedule:
    """Return a schedule of runs of alike steps, in no order that makes sense."""
    nranks, rank = 12, rng.choice((0, rng.randrange(12)))
    steps = schedule(row, nranks, rank)
    who = rank, nranks, 0, nranks
    meaning = steps.meaning
    extent = (0, 0) if row.collective == "alltoall" else 0
    cells = rng.choice((6, 12))
    written = {Buffer.SCRATCH: cells, Buffer.OUTPUT: meaning.noutputs(*who)}
    read = {**written, Buffer.INPUT: meaning.ninputs(*who)}
    written, read = ({buffer: n for buffer, n in sides.items() if n} for sides in (written, read))
    found: list[Step] = []
    for _ in range(rng.randrange(4, 16)):
        op, n = (
            rng.choice((Op.SEND, Op.RECV, Op.COPY, Op.COPY, Op.REDUCE, Op.RECV_REDUCE)),
            rng.choice((1, 1, 1, 3)),
        )
        peers = [peer for peer in rng.choice((range(6), range(6, 12))) if peer != rank]
        targets, sources = random_runs(rng, written, n), random_runs(rng, read, n)
        if op == Op.REDUCE:  # of messages right before it, or of anything
            n = targets[0].n
            sources = [src for src in sources if src.n == n]
            if rng.random() < 0.7:
                sources = [Chunk(Buffer.SCRATCH, cells + i * n, n) for i in range(rng.randrange(2, 5))]
                cells += n * len(sources)
                found += [Step(Op.RECV, rng.choice(peers), cell, ()) for cell in sources]
            if len(sources) > 1:
                found.append(Step(op, -1, targets[0], tuple(sources)))
            continue
        for dst, src in zip(targets, sources):
            if dst.n != src.n:
                continue
            peer = -1 if op == Op.COPY else rng.choice(peers)
            found.append(Step(op, peer, None if op == Op.SEND else dst, () if op == Op.RECV else (src,)))
    return steps._replace(channels=(tuple(found),), scratch=(extent,) * cells)


@pytest.mark.parametrize(
    "key", ["allgather/direct", "alltoall/direct", "gather/direct", "reduce_scatter/direct", "scatter/direct"]
)
def test_any_schedule(key: str, short: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks that are received, lent or overwritten again and again, as in no algorithm of the catalogue."""
    for module in (items, route):
        monkeypatch.setattr(module, "BATCH", 2)
    row, rng, nodes = CATALOGUE[key], random.Random(key), parse_nodes("6", 12)
    for number in range(300 if short else 2000):
        case = Case(row, 12, 11, (rng.random() < 0.5,) * 12, Setting(0, nodes=nodes))
        steps = random_schedule(rng, row)
        segments = block_segments(steps, case.count, rng.choice((11, 11, 5)))
        mapped = rng.choice(((), (), (0,), (1,)))
        together = program(case, steps, segments, mapped)
        assert contents(together) == contents(program(case, steps, one_by_one(segments), mapped)), number


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
