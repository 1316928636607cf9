"""Lowered programs of all ranks, run on data by the reference engine: right results whatever the order of things; then their structure."""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import numpy as np
import pytest
from reference_engine import Memory, Operator, Setting, World

from hpcoll import lowering
from hpcoll.algorithm import Algorithm, schedule
from hpcoll.catalogue import CATALOGUE
from hpcoll.collectives import COLLECTIVES
from hpcoll.ir import Buffer, Schedule
from hpcoll.layout import Layout, Segments, block_segments, varying_blocks, vector_segments
from hpcoll.lowering import lower
from hpcoll.program import Code, Program

Blocks = list[tuple[int, int]]  # displacement and count of each, in elements

ROWS = list(CATALOGUE.values())
PRIME = 2**31 - 1

every_row = pytest.mark.parametrize("row", ROWS, ids=[row.key for row in ROWS])


def compose(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Composition of affine maps modulo a prime: exact, associative and not commutative."""
    (a, b), (c, d) = (part.view(np.int64).reshape(-1, 2).T for part in (left, right))
    return np.stack([a * c % PRIME, (c * b + d) % PRIME], axis=1).reshape(-1).view(np.uint8)


def add(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return (left.view(np.int64) + right.view(np.int64)).view(np.uint8)


def add_floats(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return (left.view(np.float64) + right.view(np.float64)).view(np.uint8)


COMPOSE, ADD, OR, MOVE = Operator(16, compose), Operator(8, add), Operator(1, np.bitwise_or), Operator(3, add)


def operator_of(row: Algorithm) -> Operator:
    if row.collective == "barrier":
        return OR
    if not COLLECTIVES[row.collective].reduces:
        return MOVE
    return COMPOSE if row.ordered else ADD


def elements(operator: Operator, count: int, rng: np.random.Generator) -> np.ndarray:
    """Random elements as bytes."""
    if operator is COMPOSE:
        return rng.integers(0, PRIME, 2 * count).view(np.uint8)
    if operator.combine is add_floats:
        return (rng.standard_normal(count) * 10.0 ** rng.integers(-8, 8, count)).view(np.uint8)
    return rng.integers(0, 256, count * operator.itemsize, np.uint8)


# --- one call


class Case(NamedTuple):
    """One call of all ranks; counts and displacements in elements.

    Attributes:
        count: Of the vector, or of one block.
        segment: Elements per segment; of a chunked row, per chunk.
        sizes: Counts of varying blocks, one per rank; for alltoall from ``sizes[rank][peer]``. None for equal ones.
        most_nbytes: Limit above which a message is split.
    """

    row: Algorithm
    nranks: int
    count: int
    in_place: tuple[bool, ...]
    setting: Setting
    root: int = 0
    segment: int = 1 << 40
    window: int = 2
    sizes: tuple[int, ...] | None = None
    most_nbytes: int = 1 << 30

    @property
    def collective(self) -> str:
        return self.row.collective

    def schedules(self) -> list[Schedule]:
        nchunks = min(-(-self.count // self.segment) or 1, max(1, self.count))
        return [schedule(self.row, self.nranks, rank, self.root, nchunks) for rank in range(self.nranks)]

    def size(self, source: int, target: int) -> int:
        """Elements of the block of these ranks; only alltoall has one for each pair."""
        if self.sizes is None:
            return self.count
        names = {"allgather": source, "gather": source, "reduce_scatter": target, "scatter": target}
        return self.sizes[names.get(self.collective, (source * 5 + target * 3) % self.nranks)]

    def blocks(self, rank: int) -> tuple[Blocks, Blocks]:
        """Blocks of INPUT and OUTPUT; varying ones lie in a random order with gaps between them."""
        collective, who = COLLECTIVES[self.collective], (rank, self.nranks, self.root, 1)
        nin, nout = collective.ninputs(*who), collective.noutputs(*who)
        if not collective.blocks:
            return [(0, self.count)] * nin, [(0, self.count)] * nout
        inputs = [self.size(rank, i if nin > 1 else rank) for i in range(nin)]
        outputs = [self.size(i if nout > 1 else rank, rank) for i in range(nout)]
        if self.nranks > 1 and self.collective in ("reduce_scatter", "scatter"):
            outputs = [self.size(self.root, rank)]
        return self._spread(inputs, rank), self._spread(outputs, rank + 100)

    def _spread(self, counts: list[int], seed: int) -> Blocks:
        if self.sizes is None:
            return [(i * count, count) for i, count in enumerate(counts)]
        rng, at = random.Random(seed + self.setting.seed), 0
        displs = [0] * len(counts)
        for i in rng.sample(range(len(counts)), len(counts)):
            displs[i] = at + rng.choice((0, 0, 1, 3))
            at = displs[i] + counts[i]
        return list(zip(displs, counts, strict=True))

    def segments(self, steps: Schedule) -> Segments:
        """As `hpcoll.plans` cuts."""
        if self.sizes is not None:
            known = () if self.collective == "alltoall" else self.sizes
            return varying_blocks(*self.blocks(steps.rank), known)
        segment = self.segment if self.row.pipelined else max(1, self.count)
        if COLLECTIVES[self.collective].blocks:
            return block_segments(steps, self.count, segment)
        return vector_segments(self.count, segment, steps.nchunks)


def wanted(case: Case, sent: list[list[np.ndarray]], operator: Operator) -> list[list[np.ndarray]]:
    """What every rank's OUTPUT blocks must hold, from every rank's INPUT blocks, by NumPy; an empty list leaves it as it was."""
    ranks, root = range(case.nranks), case.root

    def fold(block: int, upto: int = case.nranks) -> list[np.ndarray]:
        return [reduce(operator.combine, [sent[r][block] for r in range(upto)])] if upto else []

    def at_root(found: list[np.ndarray]) -> list[list[np.ndarray]]:
        return [found if r == root else [] for r in ranks]

    return {
        "allreduce": lambda: [fold(0)] * case.nranks,
        "barrier": lambda: [fold(0)] * case.nranks,
        "reduce": lambda: at_root(fold(0)),
        "bcast": lambda: [sent[root]] * case.nranks,
        "scan": lambda: [fold(0, r + 1) for r in ranks],
        "exscan": lambda: [fold(0, r) for r in ranks],
        "allgather": lambda: [[sent[r][0] for r in ranks]] * case.nranks,
        "gather": lambda: at_root([sent[r][0] for r in ranks]),
        "scatter": lambda: [[sent[root][r]] for r in ranks],
        "reduce_scatter": lambda: [fold(r) for r in ranks],
        "alltoall": lambda: [[sent[s][r] for s in ranks] for r in ranks],
    }[case.collective]()


class Side(NamedTuple):
    """One rank's memory, where its blocks are in it as (buffer, displacement, count), and the bytes of its INPUT blocks."""

    memory: Memory
    inputs: list[tuple[int, int, int]]
    outputs: list[tuple[int, int, int]]
    sent: list[np.ndarray]


def side(case: Case, rank: int, program: Program, operator: Operator, rng: np.random.Generator) -> Side:
    """A rank's memory, random but for its INPUT blocks. In place there is no INPUT, or for a scatter no OUTPUT."""
    ins, outs = case.blocks(rank)
    inputs, outputs = [(0, *block) for block in ins], [(1, *block) for block in outs]
    find_aliases = COLLECTIVES[case.collective].aliases
    pairs = find_aliases(rank, case.nranks, case.root, 1) if case.in_place[rank] and find_aliases else []
    if len(pairs) == len(ins):
        for i, o in pairs:
            inputs[i] = outputs[o]
    else:
        for i, o in pairs:
            outputs[o] = inputs[i]
    sizes: list[int | None] = [None, None, program.window * program.scratch_nbytes]
    for buffer in (0, 1):
        ends = [displ + count for where, displ, count in inputs + outputs if where == buffer]
        sizes[buffer] = max(ends) * operator.itemsize if ends else None
    memory = Memory(sizes, rng)
    sent = [elements(operator, count, rng) for _, _, count in inputs]
    for (buffer, displ, _), data in zip(inputs, sent, strict=True):
        memory.buffer(buffer)[displ * operator.itemsize :][: len(data)] = data
    return Side(memory, inputs, outputs, sent)


def programs_of(case: Case, itemsize: int) -> list[Program]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lowering, "MAX_MESSAGE_NBYTES", case.most_nbytes)
        steps = case.schedules()
        return [lower(s, case.segments(s), itemsize, case.window, in_place=case.in_place[s.rank]) for s in steps]


def play(case: Case, operator: Operator | None = None, programs: list[Program] | None = None) -> tuple[World, list[Side]]:
    """Run a call and compare all memory but scratch, guards and gaps included, with what it must be."""
    operator = operator or operator_of(case.row)
    programs = programs or programs_of(case, operator.itemsize)
    rng = np.random.default_rng(case.setting.seed)
    sides = [side(case, rank, programs[rank], operator, rng) for rank in range(case.nranks)]
    expected = [s.memory.arena.copy() for s in sides]
    results = wanted(case, [s.sent for s in sides], operator)
    for s, arena, result in zip(sides, expected, results, strict=True):
        for (buffer, displ, _), data in zip(s.outputs, result, strict=False):
            base = s.memory.spans[buffer][0] + displ * operator.itemsize  # type: ignore[index]
            arena[base : base + len(data)] = data
    world = World(programs, [s.memory for s in sides], operator, case.setting)
    world.run()
    for rank, (s, arena) in enumerate(zip(sides, expected, strict=True)):
        scratch = slice(*s.memory.spans[2])  # type: ignore[misc]
        arena[scratch] = s.memory.arena[scratch]
        if operator.combine is not add_floats:
            wrong = np.flatnonzero(arena != s.memory.arena)
            assert not wrong.size, f"rank {rank}: {wrong.size} wrong bytes, first at {wrong[0]} of {s.memory.spans}"
    return world, sides


def check(case: Case) -> None:
    try:
        play(case)
    except (AssertionError, KeyError) as error:
        raise AssertionError(f"{error}\n{case._replace(row=case.row.key)}") from error  # type: ignore[arg-type]


def in_place_modes(row: Algorithm, nranks: int, rng: random.Random) -> list[tuple[bool, ...]]:
    """Nobody, everybody, some: whether a rank's buffers are one is known to that rank only."""
    collective = COLLECTIVES[row.collective]
    if collective.always_in_place:
        return [(True,) * nranks]
    if collective.aliases is None:
        return [(False,) * nranks]
    return [(False,) * nranks, (True,) * nranks, tuple(rng.random() < 0.5 for _ in range(nranks))]


def random_setting(rng: random.Random) -> Setting:
    return Setting(rng.randrange(1 << 30), rng.choice((0, 0, 24, 1 << 30)))


# --- results


@every_row
def test_results(row: Algorithm) -> None:
    rng = random.Random(zlib.crc32(row.key.encode()))
    for nranks in (1, 2, 3, 4, 5, 6, 7, 8, 9):
        counts = sorted({0, 1, nranks - 1, nranks, nranks + 1, 37}) if row.collective != "barrier" else [1]
        for count, window in itertools.product(counts, (1, 2, 5)):
            for in_place in in_place_modes(row, nranks, rng):
                if rng.random() < (0.85 if nranks > 6 else 0.3):
                    continue
                case = Case(row, nranks, count, in_place, random_setting(rng), window=window)
                case = case._replace(
                    root=rng.randrange(nranks) if COLLECTIVES[row.collective].rooted else 0,
                    segment=rng.choice((1 << 40, max(1, count), nranks + 1, 5, 2)) if count < 37 or rng.random() < 0.7 else 1,
                    most_nbytes=rng.choice((1 << 30, 1 << 30, 16)),
                )
                check(case)


@pytest.mark.parametrize("key", [key for key in CATALOGUE if COLLECTIVES[CATALOGUE[key].collective].rooted])
def test_every_root(key: str) -> None:
    rng = random.Random(key)
    for nranks in range(2, 9):
        for root in range(nranks):
            in_place = rng.choice(in_place_modes(CATALOGUE[key], nranks, rng))
            check(Case(CATALOGUE[key], nranks, 11, in_place, random_setting(rng), root, segment=rng.choice((3, 11))))


@pytest.mark.parametrize("key", [key for key, row in CATALOGUE.items() if COLLECTIVES[row.collective].blocks and not row.uniform])
def test_varying_blocks(key: str) -> None:
    row, rng = CATALOGUE[key], random.Random(key)
    for nranks, _ in itertools.product(range(1, 10), range(6)):
        sizes = tuple(rng.choice((0, 0, 1, 2, 3, 17)) for _ in range(nranks))
        root = rng.randrange(nranks) if COLLECTIVES[row.collective].rooted else 0
        for in_place in in_place_modes(row, nranks, rng):
            case = Case(row, nranks, sum(sizes), in_place, random_setting(rng), root, sizes=sizes)
            check(case._replace(most_nbytes=rng.choice((1 << 30, 16))))


@every_row
def test_more_receives_than_are_posted_ahead(row: Algorithm) -> None:
    rng = random.Random(row.key)
    nranks = lowering._POSTED_AHEAD + 5
    for in_place in in_place_modes(row, nranks, rng)[-2:]:
        check(Case(row, nranks, 1 if row.collective == "barrier" else 43, in_place, random_setting(rng), segment=25))


@pytest.mark.parametrize("key", [key for key in CATALOGUE if key.startswith("allreduce/")])
def test_all_ranks_get_the_same_bits(key: str) -> None:
    rng = random.Random(key)
    for nranks, segment in itertools.product(range(2, 10), (1 << 40, 7)):
        for in_place in in_place_modes(CATALOGUE[key], nranks, rng):
            case = Case(CATALOGUE[key], nranks, 37, in_place, random_setting(rng), segment=segment)
            _, sides = play(case, Operator(8, add_floats))
            results = {s.memory.buffer(1)[: 37 * 8].tobytes() for s in sides}
            assert len(results) == 1


# --- structure


def program(key: str, nranks: int, rank: int, *, root: int = 0, count: int = 0, segment: int = 1 << 40, in_place: bool = False) -> Program:
    """One rank's program for elements of 8 bytes, one element to a chunk unless told."""
    row = CATALOGUE[key]
    case = Case(row, nranks, count or (1 if COLLECTIVES[row.collective].blocks else nranks), (), Setting(0), root, segment)
    steps = case.schedules()[rank]
    return lower(steps, case.segments(steps), 8, case.window, in_place=in_place)


def rows_of(program: Program, *codes: Code) -> list[tuple[int, ...]]:
    return [tuple(row) for row in program.rows.tolist() if row[0] in codes]


def operands(program: Program, row: Sequence[int]) -> list[tuple[int, int]]:
    """Buffer and displacement of a reduction's sources."""
    return [tuple(source) for source in program.sources[row[4] : row[4] + row[5]].tolist()]


def position(program: Program, code: Code, request: int) -> int:
    return next(i for i, row in enumerate(program.rows.tolist()) if row[:2] == [code, request])


def posted_early(program: Program) -> list[bool]:
    """Per receive but the first: whether it is posted before the receive before it is waited for."""
    receives = [row[1] for row in rows_of(program, Code.RECV)]
    pairs = itertools.pairwise(receives)
    return [position(program, Code.RECV, later) < position(program, Code.WAIT, sooner) for sooner, later in pairs]


@pytest.mark.parametrize("key", ["reduce_scatter/ring", "allgather/ring", "allgather/circulant", "alltoall/pairwise", "alltoall/direct"])
def test_the_next_receive_is_posted_before_this_one_is_waited_for(key: str) -> None:
    rounds = 3 if key == "allgather/circulant" else 4
    assert posted_early(program(key, 5, 2)) == [True] * (rounds - 1)
    if COLLECTIVES[CATALOGUE[key].collective].aliases:
        assert posted_early(program(key, 5, 2, in_place=True)) == [True] * (rounds - 1)


def test_a_receive_into_a_chunk_that_was_sent_passes_no_send_on_its_way_ahead() -> None:
    """The allgather of a ring allreduce overwrites partial results that were sent: every receive has a send before it."""
    assert posted_early(program("allreduce/ring", 5, 2)) == [True] * 4 + [False] * 3
    assert posted_early(program("allreduce/ring", 5, 2, in_place=True)) == [True] * 3 + [False] * 4
    assert posted_early(program("allreduce/two_shot", 5, 2)) == [True] * 7
    assert posted_early(program("allreduce/two_shot", 5, 2, in_place=True)) == [True] * 3 + [False] + [True] * 3


@pytest.mark.parametrize("key", ["allreduce/direct", "allreduce/two_shot", "reduce/direct", "reduce_scatter/direct"])
@pytest.mark.parametrize("nranks", [2, 3, 5, 20])
def test_a_direct_reduction_is_one_row_of_all_sources(key: str, nranks: int) -> None:
    direct = program(key, nranks, 1, root=1)
    (row,) = rows_of(direct, Code.REDUCE)
    assert len(set(operands(direct, row))) == row[5] == nranks
    first_wait = min(i for i, r in enumerate(direct.rows.tolist()) if r[0] == Code.WAIT)
    posted = [i for i, r in enumerate(direct.rows.tolist()) if r[0] == Code.RECV and i < first_wait]
    assert len(posted) >= min(nranks - 1, lowering._POSTED_AHEAD)


def test_a_node_of_a_tree_reduces_both_children_at_once_where_order_lets_it() -> None:
    """Children above the node fold left to right; one below comes first in rank order, after the other has been folded."""
    above = program("reduce/binomial", 8, 0)
    assert [row[5] for row in rows_of(above, Code.REDUCE)] == [4]
    around = program("reduce/tree", 8, 4, root=4)
    reductions = rows_of(around, Code.REDUCE)
    assert [row[5] for row in reductions] == [2, 2]
    own, landed = (0, 0), [source for row in reductions for source in operands(around, row) if source[0] == Buffer.SCRATCH]
    assert operands(around, reductions[0]) == [own, landed[0]]
    assert operands(around, reductions[1]) == [landed[1], (1, 0)]


@every_row
def test_nothing_is_copied_onto_itself(row: Algorithm) -> None:
    for nranks, rank in ((1, 0), (2, 1), (5, 2)):
        for in_place in (False, True):
            if not COLLECTIVES[row.collective].always_in_place or in_place:
                copies = rows_of(program(row.key, nranks, rank, root=rank, in_place=in_place), Code.COPY)
                assert all(copy[1:3] != copy[3:5] for copy in copies)


@pytest.mark.parametrize(
    "key", ["allgather/ring", "allgather/direct", "gather/direct", "scatter/direct", "allreduce/ring", "exscan/recursive_doubling"]
)
def test_copies_vanish_in_place(key: str) -> None:
    out_of_place, in_place = (rows_of(program(key, 4, 2, root=2, in_place=flag), Code.COPY) for flag in (False, True))
    assert in_place == []
    assert len(out_of_place) == (CATALOGUE[key].collective in ("allgather", "gather", "scatter"))


@every_row
def test_one_rank_needs_at_most_one_row(row: Algorithm) -> None:
    collective = COLLECTIVES[row.collective]
    alone = program(row.key, 1, 0, count=1, in_place=collective.always_in_place)
    assert alone.rows[:, 0].tolist() == ([] if row.collective in ("bcast", "exscan") else [Code.COPY])
    if collective.aliases:
        assert not len(program(row.key, 1, 0, count=1, in_place=True).rows)


@pytest.mark.parametrize("key", [key for key, row in CATALOGUE.items() if row.pipelined])
def test_segments_share_their_rows(key: str) -> None:
    two, many, rest = (program(key, 6, 1, count=count, segment=12) for count in (24, 12_000, 11_999))
    assert np.array_equal(two.rows[:, :3], many.rows[:, :3])
    assert len(many.lanes) == 500 * len(two.lanes) == len(rest.lanes)
    assert len(rest.rows) <= 2 * len(two.rows), "a shorter last segment has its own rows, once"
    assert (many.nrequests, many.scratch_nbytes) == (two.nrequests, two.scratch_nbytes)
    displs = np.unique(many.lanes[:, 2])
    assert displs.tolist() == [i * 12 * 8 for i in range(1000)]


@every_row
def test_an_empty_message_needs_no_rows(row: Algorithm) -> None:
    for in_place in in_place_modes(row, 5, random.Random(1)):
        empty = programs_of(Case(row, 5, 0, in_place, Setting(0)), 8)
        assert [len(p.rows) for p in empty] == [0] * 5


def test_messages_above_the_limit_are_split_alike_on_both_sides() -> None:
    case = Case(CATALOGUE["bcast/direct"], 2, 10, (True, True), Setting(0), most_nbytes=32)
    root, other = programs_of(case, 8)
    assert [row[4:] for row in rows_of(root, Code.SEND)] == [row[4:] for row in rows_of(other, Code.RECV)] == [(0, 32), (32, 32), (64, 16)]


def test_runs_with_gaps_are_packed_and_runs_without_are_not() -> None:
    row = CATALOGUE["allgather/circulant"]
    steps = schedule(row, 4, 1)
    tight, loose = [(i * 3, 3) for i in range(4)], [(i * 5, 3) for i in range(4)]
    codes = []
    for outputs in (tight, loose):
        packed = lower(steps, [(0, Layout([(0, 3)], outputs, lambda extent: 3))], 1, 1, in_place=False)
        codes.append([row[0] for row in packed.rows.tolist()])
    assert codes[0].count(Code.COPY) < codes[1].count(Code.COPY)
    assert [codes[0].count(c) for c in (Code.SEND, Code.RECV)] == [codes[1].count(c) for c in (Code.SEND, Code.RECV)]


def test_the_window_counts_channels_and_never_exceeds_the_lanes() -> None:
    assert program("allreduce/double_tree", 6, 1, count=24, segment=12).window == 4
    assert program("allreduce/double_tree", 6, 1, count=12_000, segment=12).window == 4
    assert program("allreduce/ring", 6, 1, count=12, segment=12).window == 1


@every_row
def test_a_program_of_many_ranks_is_linear_in_its_schedule(row: Algorithm) -> None:
    nranks = 100
    steps = schedule(row, nranks, 7, 0, 4)
    chunks = sum(sum(part.n for part in (*step.srcs, step.dst) if part) for channel in steps.channels for step in channel)
    rows = program(row.key, nranks, 7, in_place=COLLECTIVES[row.collective].always_in_place).rows
    assert 0 < len(rows) <= 3 * chunks


# --- every wait is needed


@pytest.mark.parametrize("key", [key for key in CATALOGUE if key != "barrier/dissemination"])
def test_waits_come_before_the_memory_is_touched(key: str) -> None:
    """A WAIT put off to the end of its lane is refused just where a later row touches its request's memory."""
    row, nranks = CATALOGUE[key], 5
    case = Case(row, nranks, 15, in_place_modes(row, nranks, random.Random(0))[0], Setting(5), segment=15, window=1)
    programs = programs_of(case, operator_of(row).itemsize)
    play(case, programs=programs)
    for rank, i in [(rank, i) for rank, p in enumerate(programs) for i, at in enumerate(p.rows[:, 0]) if at == Code.WAIT]:
        changed = [*programs[:rank], put_off(programs[rank], i), *programs[rank + 1 :]]
        if is_touched(programs[rank], i, operator_of(row).itemsize):
            with pytest.raises(AssertionError):
                play(case, programs=changed)
        else:
            play(case, programs=changed)


def lane_of(program: Program, row: int) -> tuple[int, int]:
    return next((first, last) for first, last, _ in program.lanes.tolist() if first <= row < last)


def put_off(program: Program, row: int) -> Program:
    """The program with a row moved to the end of its lane."""
    _, last = lane_of(program, row)
    order = [*range(row), *range(row + 1, last), row, *range(last, len(program.rows))]
    return replace(program, rows=program.rows[order])


def is_touched(program: Program, wait: int, itemsize: int) -> bool:
    """Whether a row after a WAIT uses its request's memory: any use of a receive's, a write to a send's."""
    first, last = lane_of(program, wait)
    rows = program.rows.tolist()
    code, _, _, buffer, displ, nbytes = next(r for r in rows[first:last] if r[0] in (Code.SEND, Code.RECV) and r[1] == rows[wait][1])
    for row in rows[wait + 1 : last]:
        for where, at, length, writes in uses(program, row, itemsize):
            if where == buffer and at < displ + nbytes and displ < at + length and (writes or code == Code.RECV):
                return True
    return False


def uses(program: Program, row: list[int], itemsize: int) -> Iterator[tuple[int, int, int, bool]]:
    """Buffer, displacement and bytes that a row touches, and whether it writes."""
    code, a, b, c, d, e = row
    if code in (Code.SEND, Code.RECV):
        yield c, d, e, code == Code.RECV
    elif code == Code.COPY:
        yield from ((a, b, e, True), (c, d, e, False))
    elif code == Code.REDUCE:
        yield a, b, c * itemsize, True
        yield from ((*source, c * itemsize, False) for source in operands(program, row))


# --- the engine itself


S, R, W, C, F = (int(code) for code in (Code.SEND, Code.RECV, Code.WAIT, Code.COPY, Code.REDUCE))
SEND_0, RECV_1 = (S, 0, 1, 0, 0, 8), (R, 0, 0, 1, 0, 8)  # from rank 0's INPUT to rank 1's OUTPUT
WAIT = (W, 0, 0, 0, 0, 0)


def run_rows(first: list[tuple[int, ...]], second: list[tuple[int, ...]], eager_nbytes: int = 0) -> World:
    """Two ranks with 16 bytes in each buffer run these rows as one lane."""
    programs = [
        Program(np.array(rows, np.int64).reshape(-1, 6), np.array([(0, 0), (0, 4)]), np.array([(0, len(rows), 0)]), 1, 2, 16)
        for rows in (first, second)
    ]
    memories = [Memory((16, 16, 16), np.random.default_rng(rank)) for rank in range(2)]
    world = World(programs, memories, Operator(8, add), Setting(1, eager_nbytes))
    world.run()
    return world


def test_the_engine_moves_a_message() -> None:
    world = run_rows([SEND_0, WAIT], [RECV_1, WAIT])
    assert np.array_equal(world.memories[0].buffer(0)[:8], world.memories[1].buffer(1)[:8])
    assert world.messages == 1


WRONG = {
    "deadlock: rank 0 lane 0 row 1; rank 1 lane 0 row 1": ([SEND_0, WAIT], [(S, 0, 0, 0, 0, 8), WAIT]),
    "writes memory of a send": ([SEND_0, (C, 0, 0, 1, 0, 8), WAIT], [RECV_1, WAIT]),
    "touches memory of a receive": ([SEND_0, WAIT], [RECV_1, (C, 2, 0, 1, 4, 8), WAIT]),
    "differ in size": ([SEND_0, WAIT], [(R, 0, 0, 1, 0, 4), WAIT]),
    "leaves buffer 1": ([(C, 1, 9, 0, 0, 8)], []),
    "memcpy of overlapping memory": ([(C, 0, 4, 0, 0, 8)], []),
    "operands overlap partly": ([(F, 1, 0, 1, 0, 2)], []),
    "did not wait for requests": ([SEND_0], [RECV_1, WAIT]),
    "request 0 is in use": ([SEND_0, SEND_0, WAIT], [RECV_1, WAIT]),
    "request 2 is not among": ([(S, 2, 1, 0, 0, 8)], []),
    "an empty message": ([(S, 0, 1, 0, 0, 0)], []),
}


@pytest.mark.parametrize("text", WRONG)
def test_the_engine_refuses(text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        run_rows(*WRONG[text])


def test_the_engine_refuses_an_eager_message_without_a_receive() -> None:
    with pytest.raises(AssertionError, match="messages without a receive"):
        run_rows([SEND_0, WAIT], [], eager_nbytes=8)


def test_eager_messages_end_what_rendezvous_leaves_in_a_deadlock() -> None:
    both = [[(S, 0, peer, 0, 0, 8), WAIT, (R, 1, peer, 1, 0, 8), (W, 1, 0, 0, 0, 0)] for peer in (1, 0)]
    assert run_rows(*both, eager_nbytes=8).messages == 2
    with pytest.raises(AssertionError, match="deadlock"):
        run_rows(*both)
