"""Programs lowered from symbolic sizes: for any counts that pass their conditions they are what lowering from these counts gives."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcoll.base.sizes import ROOM, Number, Size, Sizes, int_value, largest, least
from hpcoll.comm.arguments.call import Call
from hpcoll.comm.plans.engine_builder import symbolic
from hpcoll.comm.plans.segmentation import lane_nbytes, segmented
from hpcoll.runtime.engine.entry import call_compiled
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program.lowering import lower
from hpcoll.runtime.program.opcodes import Program
from hpcoll.runtime.transports.host_routes import host_routes
from hpcoll.runtime.transports.rings import CAPACITY_NBYTES
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.row import Algorithm

F8, BYTE = np.dtype("f8"), np.dtype("u1")
COUNTS = (0, 1, 2, 3, 7, 8, 9, 15, 64, 100, 513, 1000, 2047, 5000, 20_000, 32_768)
OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "//7": lambda a, b: a // 7,
    "%64": lambda a, b: a % 64,
    "*3": lambda a, b: 3 * a - b,
    "least": least,
    "largest": largest,
    "aligned": lambda a, b: -(-a // 64) * 64,
}


class Sized:
    """The data that compiled code needs to fit a program to counts; stores and rooms are at addresses."""

    def __init__(
        self, sizes: Sizes, stores: list[tuple[Size, int]], rooms: list[tuple[Number, int]] | None = None
    ) -> None:
        self.state, self.counts = (
            np.zeros(f.OPERANDS, np.int64),
            np.array([*sizes.values, *[0] * 8], np.int64),
        )
        start = self.state.ctypes.data
        at_start = [[(size, at - start) for size, at in pairs] for pairs in (rooms or [], stores)]
        self.code = np.array(sizes.code(*at_start), np.int64)
        self.state[f.COUNTS], self.state[f.NCOUNTS] = self.counts.ctypes.data, len(sizes.given)
        self.state[f.RECORDS] = self.code.ctypes.data
        self.state[f.RECORDS_END] = self.code.ctypes.data + self.code.nbytes

    def resize(self, *counts: int) -> int:
        given = np.array(counts, np.int64)
        return call_compiled(f.RESIZE, self.state.ctypes.data, given.ctypes.data, 0, 0)


@given(st.lists(st.sampled_from(sorted(OPERATIONS)), min_size=1, max_size=6), *[st.integers(0, 10_000)] * 4)
def test_arithmetic_is_that_of_integers(names: list[str], a: int, b: int, other_a: int, other_b: int) -> None:
    sizes = Sizes([a, b])
    found = np.zeros(1, np.int64)

    def computed(x: Any, y: Any) -> Any:
        for name in names:
            x, y = OPERATIONS[name](x, y), x
        return x

    result = computed(*sizes.given)
    assert int_value(result) == computed(a, b)
    if isinstance(result, Size):
        sized = Sized(sizes, [(result, found.ctypes.data)])
        sized.counts[1] = -1
        assert sized.resize(other_a, other_b) == f.DONE
        assert found[0] == computed(other_a, other_b)


def decided(x: Any, y: Any, how: str) -> Any:
    return {
        "<": lambda: x < y,
        "<=": lambda: x <= y,
        ">": lambda: x > y,
        ">=": lambda: x >= y,
        "==": lambda: x == y,
        "!=": lambda: x != y,
        "bool": lambda: bool(x),
        "index": lambda: operator.index(x),
        "max": lambda: int_value(max(x, y)),
    }[how]()


@pytest.mark.parametrize("how", ["<", "<=", ">", ">=", "==", "!=", "bool", "index", "max"])
def test_whatever_is_decided_is_a_condition(how: str) -> None:
    """Other counts pass exactly when the decision comes out the same."""
    values = (0, 1, 5, 6, 7)
    for a in values:
        for b in values:
            sizes = Sizes([a, b])
            outcome = decided(*sizes.given, how)
            for other_a in values:
                for other_b in values:
                    same = (
                        (other_a > other_b) == (a > b)
                        if how == "max"
                        else decided(other_a, other_b, how) == outcome
                    )
                    sized = Sized(sizes, [])
                    sized.counts[1] = -1
                    passed = sized.resize(other_a, other_b) == f.DONE
                    if how == "max" and (other_a == other_b or a == b):
                        continue  # whichever of two equal ones
                    assert passed == same, (a, b, other_a, other_b)


def test_a_size_is_no_key() -> None:
    (size,) = Sizes([3]).given
    with pytest.raises(TypeError, match="a Size is no key"):
        hash(size)


def test_room() -> None:
    sizes, room = Sizes([3]), np.array([100], np.int64)
    sized = Sized(sizes, [], [(sizes.given[0] * 10, room.ctypes.data)])
    assert [sized.resize(count) for count in (10, 11, 10)] == [f.DONE, f.NO_ROOM, f.DONE]
    sized.resize(12)
    assert (sized.state[f.NEEDED], ROOM in sized.code) == (120, True)


# --- programs


def build(row: Algorithm, nranks: int, rank: int, call: Call, local: bool) -> Program:
    nodes = (0,) * nranks
    steps, segments = segmented(row, call, 1 << 15, lane_nbytes(row, CAPACITY_NBYTES, nodes), rank, nodes, ())
    routes = host_routes({peer: peer for peer in range(nranks) if peer != rank} if local else {})
    return lower(steps, segments, call.dtype.itemsize, 8, in_place=False, routes=routes)


def numbers(program: Program) -> list[Any]:
    needs = [int_value(size) for size in (program.scratch_nbytes, program.staging_nbytes)]
    return [
        program.rows.tolist(),
        program.sources.tolist(),
        program.lanes.tolist(),
        needs,
        program.nrequests,
        program.nmessages,
    ]


class Template:
    """A program for one call, which may hold for others."""

    def __init__(self, row: Algorithm, nranks: int, rank: int, call: Call, local: bool) -> None:
        call, shape = symbolic(call, nranks)
        self.program = build(row, nranks, rank, call, local)
        self.needs = np.zeros(2, np.int64)
        self.all = self.program.numbers
        stores = [(size, self.all.ctypes.data + 8 * at) for size, at in self.program.symbols]
        for i, size in enumerate((self.program.scratch_nbytes, self.program.staging_nbytes)):
            self.needs[i] = int_value(size)
            stores += [(size, self.needs.ctypes.data + 8 * i)] if isinstance(size, Size) else []
        self.sized = Sized(shape.sizes, stores)

    def numbers(self) -> list[Any]:
        tables = self.program.rows, self.program.sources, self.program.lanes
        parts = np.split(self.all, np.cumsum([table.size for table in tables])[:-1])
        found = [part.reshape(table.shape).tolist() for part, table in zip(parts, tables, strict=True)]
        return [*found, self.needs.tolist(), *numbers(self.program)[4:]]


def templates_for(row: Algorithm, nranks: int, rank: int, calls: list[Call], local: bool) -> int:
    """Return how many programs serve all calls; each is compared with the one lowered for that call."""
    templates: list[Template] = []
    for call in calls:
        fitting = [one for one in templates if one.sized.resize(*call.counts) == f.DONE]
        if not fitting:
            fitting = [Template(row, nranks, rank, call, local)]
            templates += fitting
        for one in fitting:
            assert one.numbers() == numbers(build(row, nranks, rank, call, local)), (
                row.key,
                nranks,
                rank,
                call.counts,
                local,
            )
    return len(templates)


@pytest.mark.parametrize("key", [key for key, row in CATALOGUE.items() if not row.hierarchical])
def test_equal_blocks(key: str) -> None:
    row = CATALOGUE[key]
    for nranks, rank in ((2, 0), (3, 2), (8, 5), (20, 7)):
        for local in (True, False):
            templates_for(
                row, nranks, rank, [Call(row.collective, 0, 0, count, F8) for count in COUNTS], local
            )


@pytest.mark.parametrize(
    "key", [key for key, row in CATALOGUE.items() if not row.uniform and COLLECTIVES[row.collective].blocks]
)
def test_varying_blocks(key: str) -> None:
    """New counts need no new program, as long as no block is longer than a lane, packed in order, and hardly any where some are 0."""
    row, rng = CATALOGUE[key], np.random.default_rng(1)
    for nranks, rank in ((2, 1), (5, 2)):
        for local in (True, False):
            sizes = [
                rng.integers(0, 3, (nranks, nranks)) * rng.integers(0, 900, (nranks, nranks))
                for _ in range(12)
            ]
            calls = [varying(row, nranks, rank, one) for one in sizes]
            assert templates_for(row, nranks, rank, calls, local) <= 4, row.key


def varying(row: Algorithm, nranks: int, rank: int, sizes: Any) -> Call:
    def placed(counts: Any) -> tuple[tuple[int, int], ...]:
        return tuple((int(sum(counts[:i])), int(count)) for i, count in enumerate(counts))

    every, own = placed(sizes[0]), ((0, int(sizes[0][rank])),)
    blocks = {
        "allgather": (own, every, tuple(n for _, n in every)),
        "reduce_scatter": (every, own, tuple(n for _, n in every)),
        "alltoall": (placed(sizes[rank]), placed(sizes[:, rank]), ()),
        "gather": (own, every if rank == 0 else (), ()),
        "scatter": (every if rank == 0 else (), own, ()),
        "neighbor_allgather": (own, placed(sizes[0][[rank - 1, (rank + 1) % nranks]]), ()),
        "neighbor_alltoall": (placed(sizes[rank][:2]), placed(sizes[:2, rank]), ()),
    }[row.collective]
    if row.collective in ("gather", "scatter"):
        blocks = (*blocks[:2], tuple(n for _, n in every))
    return Call(row.collective, 0, 0, 1, BYTE, blocks=blocks)
