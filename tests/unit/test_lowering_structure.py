"""The structure of lowered programs: what is posted when, fused, dropped, packed, split and shared."""

import ast
import itertools
import random
from collections import Counter
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from lowering_cases import Case, every_row, in_place_modes, pairs
from lowering_play import programs_of
from reference_calls import Setting, operands_of

from hpcoll.runtime.program import call_fields, fields, lowering, progress_fields
from hpcoll.runtime.program.chunks import ChunkLayout
from hpcoll.runtime.program.fields import (
    CODE,
    DISPL,
    NBYTES,
    NSOURCES,
    REQUEST,
)
from hpcoll.runtime.program.lowering import lower
from hpcoll.runtime.program.opcodes import Code, Program
from hpcoll.runtime.transports.host_routes import host_routes
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.ir import Buffer
from hpcoll.schedules.row import Algorithm, schedule


@pytest.mark.parametrize("module", [fields, call_fields, progress_fields], ids=lambda module: module.__name__)
def test_names_of_words_are_given_once(module: ModuleType) -> None:
    """A name that is given twice would write another table's word."""
    assigned = [
        node
        for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text()))
        if isinstance(node, ast.Assign)
    ]
    names = [
        name.id
        for one in assigned
        for name in ast.walk(one)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
    ]
    assert [name for name, n in Counter(names).items() if n > 1 and name != "_"] == []


def program(
    key: str,
    nranks: int,
    rank: int,
    *,
    root: int = 0,
    count: int = 0,
    segment: int = 1 << 40,
    in_place: bool = False,
) -> Program:
    """Return one rank's program for elements of 8 bytes, one element to a chunk unless told."""
    row = CATALOGUE[key]
    count = count or (1 if COLLECTIVES[row.collective].blocks else nranks)
    case = Case(row, nranks, count, (), Setting(0), root, segment, nodes=pairs(row, nranks))
    steps = case.schedules()[rank]
    return lower(steps, case.segments(steps), 8, case.window, in_place=in_place, routes=host_routes({}))


def rows_of(program: Program, *codes: Code) -> list[tuple[int, ...]]:
    return [tuple(row) for row in program.rows.tolist() if row[CODE] in codes]


def position(program: Program, code: Code, request: int) -> int:
    return next(i for i, row in enumerate(program.rows.tolist()) if row[: REQUEST + 1] == [code, request])


def posted_early(program: Program) -> list[bool]:
    """Per receive but the first: whether it is posted before the receive before it is waited for."""
    receives = [row[REQUEST] for row in rows_of(program, Code.RECV)]
    pairs = itertools.pairwise(receives)
    return [
        position(program, Code.RECV, later) < position(program, Code.WAIT, sooner) for sooner, later in pairs
    ]


@pytest.mark.parametrize(
    "key",
    ["reduce_scatter/ring", "allgather/ring", "allgather/circulant", "alltoall/pairwise", "alltoall/direct"],
)
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
    assert (
        posted_early(program("allreduce/two_shot", 5, 2, in_place=True)) == [True] * 3 + [False] + [True] * 3
    )


@pytest.mark.parametrize(
    "key", ["allreduce/direct", "allreduce/two_shot", "reduce/direct", "reduce_scatter/direct"]
)
@pytest.mark.parametrize("nranks", [2, 3, 5, 20])
def test_a_direct_reduction_is_one_row_of_all_sources(key: str, nranks: int) -> None:
    direct = program(key, nranks, 1, root=1)
    (row,) = rows_of(direct, Code.REDUCE)
    assert len(set(operands_of(direct, row)[1])) == row[NSOURCES] == nranks
    first_wait = min(i for i, r in enumerate(direct.rows.tolist()) if r[CODE] == Code.WAIT)
    posted = [i for i, r in enumerate(direct.rows.tolist()) if r[CODE] == Code.RECV and i < first_wait]
    assert len(posted) >= min(nranks - 1, lowering._POSTED_AHEAD)


def test_a_node_of_a_tree_reduces_two_children_at_once_where_order_lets_it() -> None:
    """Children above the node fold left to right; one below comes first in rank order, after the other has been folded."""
    above = program("reduce/binomial", 8, 0)
    assert [row[NSOURCES] for row in rows_of(above, Code.REDUCE)] == [3, 2], (
        "a reduction of four would fold them in pairs"
    )
    around = program("reduce/tree", 8, 4, root=4)
    reductions = rows_of(around, Code.REDUCE)
    assert [row[NSOURCES] for row in reductions] == [2, 2]
    own, landed = (
        (0, 0),
        [
            source
            for row in reductions
            for source in operands_of(around, row)[1]
            if source[0] == Buffer.SCRATCH
        ],
    )
    assert operands_of(around, reductions[0])[1] == [own, landed[0]]
    assert operands_of(around, reductions[1])[1] == [landed[1], (1, 0)]


@pytest.mark.parametrize(
    "key",
    [
        "allgather/ring",
        "allgather/direct",
        "gather/direct",
        "scatter/direct",
        "allreduce/ring",
        "exscan/recursive_doubling",
    ],
)
def test_copies_vanish_in_place(key: str) -> None:
    out_of_place, in_place = (
        rows_of(program(key, 4, 2, root=2, in_place=flag), Code.COPY) for flag in (False, True)
    )
    assert in_place == []
    assert len(out_of_place) == (CATALOGUE[key].collective in ("allgather", "gather", "scatter"))


@pytest.mark.parametrize("key", [key for key, row in CATALOGUE.items() if row.pipelined])
def test_segments_share_their_rows(key: str) -> None:
    def form(one: Program) -> list[list[int]]:
        """All but where blocks lie, which their size says."""
        return [row[: 2 if row[CODE] == Code.COPY else 3] for row in one.rows.tolist()]

    two, many, rest = (program(key, 6, 1, count=count, segment=12) for count in (24, 12_000, 11_999))
    assert form(two) == form(many)
    assert len(many.lanes) == 500 * len(two.lanes) == len(rest.lanes)
    assert len(rest.rows) <= 2 * len(two.rows), "a shorter last segment has its own rows, once"
    assert (many.nrequests, many.scratch_nbytes) == (two.nrequests, two.scratch_nbytes)
    displs = np.unique(many.lanes[:, 2])
    assert displs.tolist() == [i * 12 * 8 for i in range(1000)]


@every_row
def test_an_empty_message_needs_no_rows(row: Algorithm) -> None:
    for in_place in in_place_modes(row, 5, random.Random(1)):
        empty = programs_of(Case(row, 5, 0, in_place, Setting(0), nodes=pairs(row, 5)), 8)
        assert [len(p.rows) for p in empty] == [0] * 5


def test_messages_above_the_limit_are_split_alike_on_both_sides() -> None:
    case = Case(CATALOGUE["bcast/direct"], 2, 10, (True, True), Setting(0), most_nbytes=32)
    root, other = programs_of(case, 8)
    sent, received = (
        [row[DISPL : NBYTES + 1] for row in rows_of(p, code)]
        for p, code in ((root, Code.SEND), (other, Code.RECV))
    )
    assert sent == received == [(0, 32), (32, 32), (64, 16)]


def test_runs_with_gaps_are_packed_and_runs_without_are_not() -> None:
    row = CATALOGUE["allgather/circulant"]
    steps = schedule(row, 4, 1)
    tight, loose = [(i * 3, 3) for i in range(4)], [(i * 5, 3) for i in range(4)]
    codes = []
    for outputs in (tight, loose):
        packed = lower(
            steps,
            [(0, ChunkLayout([(0, 3)], outputs, lambda extent: 3))],
            1,
            1,
            in_place=False,
            routes=host_routes({}),
        )
        codes.append([row[CODE] for row in packed.rows.tolist()])
    assert codes[0].count(Code.COPY) < codes[1].count(Code.COPY)
    assert [codes[0].count(c) for c in (Code.SEND, Code.RECV)] == [
        codes[1].count(c) for c in (Code.SEND, Code.RECV)
    ]
