"""Reader of MSCCL++ execution plans, JSON files; `hpcoll.formats.mscclpp.operations` says what their operations mean."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcoll.base.budget import CELLS, NAMED, STEPS, Budget
from hpcoll.base.errors import ArgumentError, ScheduleError
from hpcoll.base.json_fields import integer, member, refused
from hpcoll.base.text import LINE, MAX_BUILT, MAX_CHUNKS, printable
from hpcoll.formats.conditions import Conditions, Named, standard
from hpcoll.formats.mscclpp.channels import Action, MemoryRun
from hpcoll.formats.mscclpp.gpus import PlanGpu, entries
from hpcoll.formats.mscclpp.one_sided import Translation
from hpcoll.formats.mscclpp.operations import PlanBlock, factor_of
from hpcoll.formats.private_input import with_private_input
from hpcoll.formats.program import FilePlace, FileProgram
from hpcoll.schedules.ir import Buffer, Chunk, Schedule

_STEPS = 2  # of an action, at least
_ANY = 2**64 - 1  # the largest message of a file for any


def program_of_plan(content: Any, path: Path, conditions: Conditions) -> FileProgram:
    """Return the program of an MSCCL++ execution plan.

    Args:
        content: The content of the file.
        path: Its name.
        conditions: What the file does not say, or says otherwise.

    Raises:
        ArgumentError: It is not understood.
        ScheduleError: It is understood, and wrong: an index is outside its buffer, or a signal misses its wait.
    """
    plan = _Plan(printable(str(path), LINE), content, conditions)
    try:
        return plan.program()
    except ScheduleError:
        raise
    except ArgumentError as error:
        place = f", {plan.place}" if plan.place else ""
        raise (
            error if str(error).startswith(plan.path) else ArgumentError(f"{plan.path}{place}: {error}")
        ) from None


class _Plan:
    """The content of a file; ``place``: what is being read."""

    def __init__(self, path: str, content: Any, conditions: Conditions) -> None:
        self.path, self.content, self.conditions, self.place = path, content, conditions, ""
        self.budget = Budget()

    def program(self) -> FileProgram:
        """Return the program."""
        content = self.content
        name, gpus = printable(member(content, "name", str, "")), entries(content, "gpus")
        in_place = self._in_place()
        if not 2 <= len(gpus) <= MAX_BUILT:
            raise ArgumentError(f"expected 2 to {MAX_BUILT} gpus, got {len(gpus)}")
        self.gpus = [gpu for rank, found in enumerate(gpus) for gpu in self._gpu(found, rank, len(gpus))]
        self.factor = self._factor()
        self.sizes = [tuple(n * self.factor for n in gpu.sizes) for gpu in self.gpus]
        self.budget.spend(sum(map(sum, self.sizes)), CELLS)
        nchunks = max(1, *(n for sizes in self.sizes for n in sizes[:2]))
        named = self._named(nchunks)
        shifts = named.shifts if in_place else None
        blocks = [[self._actions(gpu, content, shifts) for content in gpu.blocks] for gpu in self.gpus]
        self.place = ""
        results = [list(_results(named, rank, len(gpus))) for rank in range(len(gpus))]
        translation = Translation(self.path, blocks, [size[2] for size in self.sizes], results, self.budget)
        schedules, places = [], []
        for rank in range(len(gpus)):
            channels, its, links = translation.written(rank)
            scratch = (0,) * translation.cells[rank]
            schedule = Schedule(
                named.collective, name, len(gpus), rank, named.root, nchunks, channels, scratch, links=links
            )
            if in_place and named.meaning.aliases:
                aliases = named.meaning.aliases(rank, len(gpus), named.root, nchunks)
                schedule, its = with_private_input(schedule, its, named.sizes[rank][0], aliases)
            schedules.append(schedule)
            places.append(its)
        least, most = (
            integer(content, key, "", 0, _ANY) if key in content else 0
            for key in ("min_message_size", "max_message_size")
        )
        return FileProgram(
            self.path,
            name,
            named.collective,
            named.meaning,
            len(gpus),
            named.root,
            tuple(schedules),
            tuple(places),
            in_place,
            not in_place,
            min_bytes=least,
            max_bytes=most if most < _ANY else 0,
        )

    def _in_place(self) -> bool:
        value = self.content.get("inplace")
        if not isinstance(value, bool):
            raise refused("inplace", "true or false", value)
        return value if self.conditions.in_place is None else self.conditions.in_place

    def _gpu(self, content: Any, rank: int, nranks: int) -> Iterator[PlanGpu]:
        self.place = f"gpu {rank}"
        yield PlanGpu(content, rank, nranks, self.budget)
        self.place = ""

    def _factor(self) -> int:
        """Return the number of chunks into which a chunk of the file is divided, for groups of thread blocks and for pipelines."""
        factor = 1
        for gpu in self.gpus:
            for content in gpu.blocks:
                for op in self._ops(gpu, content):
                    factor = math.lcm(factor, factor_of(op))
                    if factor > MAX_CHUNKS:
                        raise ArgumentError(
                            f"expected groups of thread blocks that divide chunks into at most {MAX_CHUNKS}, got more"
                        )
        self.place = ""
        return factor

    def _ops(self, gpu: PlanGpu, content: Any) -> Iterator[Any]:
        """Return the operations of a thread block, and keep their place."""
        self.place = f"gpu {gpu.rank}"
        number = integer(content, "id", "", 0, MAX_CHUNKS)
        self.place = str(FilePlace(-1, gpu.rank, number))
        for step, op in enumerate(entries(content, "ops")):
            self.step = FilePlace(-1, gpu.rank, number, step)
            self.place = str(self.step)
            yield op

    def _named(self, nchunks: int) -> Named:
        """Return what the program must do."""
        # so in files of 2024
        key = (
            "colletive" if "colletive" in self.content and "collective" not in self.content else "collective"
        )
        coll = member(self.content, key, str, "") if key in self.content else ""
        sizes = [(mine[0], mine[1]) for mine in self.sizes]
        conditions = (
            _ring(sizes) if coll == "sendrecv" and not self.conditions.collective else self.conditions
        )
        named = standard(self.path, conditions, coll, len(self.gpus), nchunks, 0)
        for rank, (have, want) in enumerate(zip(sizes, named.sizes)):
            if any(n and n != wanted for n, wanted in zip(have, want)):
                got = f"{have[0]} and {have[1]}"
                raise ArgumentError(
                    f"expected {want[0]} chunks of input and {want[1]} of output on gpu {rank}, got {got}"
                )
        self.sizes = [(*want, have[2]) for want, have in zip(named.sizes, self.sizes)]
        return named

    def _actions(self, gpu: PlanGpu, content: Any, shifts: list[int] | None) -> list[Action]:
        """Return the actions of a thread block; in place, chunks of INPUT that are chunks of OUTPUT are those."""
        block, actions = PlanBlock(gpu, content, self.factor, self.budget), []
        for op in self._ops(gpu, content):
            for action in block.actions(op, self.step):
                srcs, dsts = (
                    tuple(self._run(run, shifts) for run in runs) for runs in (action.srcs, action.dsts)
                )
                actions.append(action._replace(srcs=srcs, dsts=dsts))
                self.budget.spend(_STEPS, STEPS)
                self.budget.spend(sum(run.chunk.n for run in srcs + dsts), NAMED)
        return actions

    def _run(self, run: MemoryRun, shifts: list[int] | None) -> MemoryRun:
        chunk, sizes = run.chunk, self.sizes[run.gpu]
        if chunk.index + chunk.n > sizes[chunk.buffer]:
            divided = f", of which each of the file's is {self.factor}" if self.factor > 1 else ""
            raise ScheduleError(
                f"{self.path}, {self.place}: {chunk} of gpu {run.gpu} is outside its buffer of {sizes[chunk.buffer]} chunks{divided}"
            )
        if chunk.buffer is Buffer.INPUT and shifts:
            first = chunk.index + shifts[run.gpu]
            if first >= 0 and first + chunk.n <= sizes[Buffer.OUTPUT]:
                return run._replace(chunk=chunk._replace(buffer=Buffer.OUTPUT, index=first))
        return run


def _results(named: Named, rank: int, nranks: int) -> Iterator[Chunk]:
    """Return the chunks of OUTPUT that a gpu must have in the end, in runs."""
    first = 0
    for index in range(named.sizes[rank][1] + 1):
        if index == named.sizes[rank][1] or not named.meaning.wanted(rank, index, nranks, named.root):
            if index > first:
                yield Chunk(Buffer.OUTPUT, first, index - first)
            first = index + 1


def _ring(sizes: list[tuple[int, int]]) -> Conditions:
    """Return the conditions of ``sendrecv``: each gpu has in the end the input of the one before it in the ring."""
    inputs = tuple(tuple(f"{rank}.{index}" for index in range(n)) for rank, (n, _) in enumerate(sizes))
    outputs = tuple(
        tuple((name, 1 << (rank - 1) % len(inputs)) for name in inputs[rank - 1])
        for rank in range(len(inputs))
    )
    return Conditions("custom", False, 0, inputs, outputs, (0,) * len(inputs))
