"""The reference engine plays cases of `lowering_cases`, and compares all memory with what it must be."""

from typing import NamedTuple

import numpy as np
from lowering_cases import Case, add_floats, elements, operator_of, wanted
from reference_calls import SCRATCH, Call, Operator
from reference_engine import World
from reference_memory import Memory
from reference_streams import PINNED_AT, GpuWorld

from hpcoll.runtime.program.lowering import lower
from hpcoll.runtime.program.opcodes import Program
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.placement import numbered


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
    sizes: list[int | None] = [
        None,
        None,
        program.window * program.scratch_nbytes,
        program.window * program.pinned_nbytes,
    ]
    for buffer in (0, 1):
        ends = [displ + count for where, displ, count in inputs + outputs if where == buffer]
        sizes[buffer] = max(ends) * operator.itemsize if ends else None
    memory = Memory(sizes, rng, case.shared[rank] if case.shared else (False, False))
    sent = [elements(operator, count, rng) for _, _, count in inputs]
    for (buffer, displ, _), data in zip(inputs, sent, strict=True):
        memory.buffer(buffer)[displ * operator.itemsize :][: len(data)] = data
    return Side(memory, inputs, outputs, sent)


def programs_of(case: Case, itemsize: int) -> list[Program]:
    return [
        lower(
            s,
            case.segments(s),
            itemsize,
            case.window,
            in_place=case.in_place[s.rank],
            routes=case.routes(s.rank),
            on_gpu=bool(case.reach),
            most_nbytes=case.most_nbytes,
        )
        for s in case.schedules()
    ]


def play(
    case: Case, operator: Operator | None = None, programs: list[Program] | None = None
) -> tuple[World, list[Side]]:
    """Run a call and compare all memory but scratch, guards and gaps included, with what it must be."""
    operator = operator or operator_of(case.row)
    prepared = _Prepared(case, operator, programs or programs_of(case, operator.itemsize))
    world = GpuWorld([prepared.call], case.setting)
    world.run()
    prepared.compare()
    return world, prepared.sides


def play_all(cases: list[Case]) -> None:
    """Run calls one after another, in the setting of the first; ranks do not wait for each other in between."""
    prepared = [
        _Prepared(case, operator_of(case.row), programs_of(case, operator_of(case.row).itemsize))
        for case in cases
    ]
    GpuWorld([one.call for one in prepared], cases[0].setting).run()
    for one in prepared:
        one.compare()


class _Prepared:
    """A call with its data, and the memory that it must leave behind."""

    def __init__(self, case: Case, operator: Operator, programs: list[Program]) -> None:
        rng = np.random.default_rng(case.setting.seed)
        self.sides = [side(case, rank, programs[rank], operator, rng) for rank in range(case.nranks)]
        self.canonical = case.row.is_canonical(case.nranks, numbered(case.nodes or case.setting.nodes))
        self.call = Call(programs, [s.memory for s in self.sides], operator, case.reach)
        self.expected = [s.memory.arena.copy() for s in self.sides]
        results = wanted(case, [s.sent for s in self.sides], operator)
        for s, arena, result in zip(self.sides, self.expected, results, strict=True):
            for (buffer, displ, _), data in zip(s.outputs, result, strict=False):
                base = s.memory.area(buffer).lo + displ * operator.itemsize
                arena[base : base + len(data)] = data

    def compare(self) -> None:
        """Return what each rank found when its call returned, and what it must be."""
        for rank, (s, arena) in enumerate(zip(self.sides, self.expected, strict=True)):
            found = s.memory.returned
            assert found is not None
            for own in (s.memory.area(SCRATCH).span, s.memory.area(PINNED_AT).span):
                arena[own] = found[own]
            if self.call.operator.combine is not add_floats or self.canonical:
                wrong = np.flatnonzero(arena != found)
                assert not wrong.size, (
                    f"rank {rank}: {wrong.size} wrong bytes, first at {wrong[0]} of {s.memory.spans}"
                )


def check(*cases: Case) -> None:
    try:
        play_all(list(cases))
    except (AssertionError, KeyError) as error:
        calls = "\n".join(str(case._replace(row=case.row.key)) for case in cases)  # type: ignore[arg-type]
        raise AssertionError(f"{error}\n{calls}") from error
