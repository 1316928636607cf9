"""The search of ``hpcoll tune``: measures every algorithm that could serve a call, at every size, for the entries of a tuning table.

A **cell** is one collective with one class of element types at one size; the cells of all sizes are a **column**. Every cell gets
a share of the time that is left. Each candidate is called, its answers are checked, and it takes a few turns with the MPI library;
candidates clearly behind are dropped, and the rest of the share goes to turns of all others. When time is short, the candidates
that the cost model likes least are left out. All ranks follow rank 0's clock.

Of many candidates the one that looks best was lucky, too, and all of them pay for their keywords. So what a column has picked is measured
once more, by ``hpcoll bench`` itself and as programs call: with the column as their table. These are the times that are told.

What others disturb is measured again, after a wait until they have gone; where they stay, the search ends.
"""

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import NamedTuple, TypeVar

import numpy as np
from mpi4py import MPI

from hpcoll.base.busy import LEAST_S, CoreUse
from hpcoll.base.dtypes import type_class
from hpcoll.base.ops import SUM
from hpcoll.base.text import format_nbytes
from hpcoll.cli.bench.cases import Buffers, Case, bind, calm, fill, make_buffers, wrong_elements
from hpcoll.cli.bench.measure import BATCH_S, SMALL_NBYTES, Call, Pace, measure
from hpcoll.cli.bench.report import AUTO, ResultRow, total_wrong, uses_of
from hpcoll.cli.bench.request import BenchRequest as Calls
from hpcoll.cli.bench.request import cases_of
from hpcoll.cli.bench.session import bench
from hpcoll.cli.bench.watch import Watch
from hpcoll.cli.tune.exchange import Fit, fit_levels
from hpcoll.comm.communicator import Communicator
from hpcoll.comm.context.attach import context_of
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.selection.choose import Need, candidates, not_chosen
from hpcoll.selection.config import NATIVE, TUNING, Entry
from hpcoll.selection.measured import site
from hpcoll.selection.tuning import FORMAT, Document, Section, write

BEHIND = 2.5  # times the best: such candidates are dropped early
# short calls are timed both nearly alone and back to back, where the ranks get out of step
BATCHES_S = (
    BATCH_S,
    1e-3,
)
WORTH = 1.03  # times the library's speed, from which on hpcoll's algorithms count as faster
SCOUTING = 0.5  # of a cell's share: candidates whose turn has not come by then are left out
OVERTIME = 0.1  # of the whole time: for cells that get none because others took longer than their share
MODELLING = 0.1  # share of the whole time for the model's constants, unless nothing else is wanted
LARGE_NBYTES = 1 << 20  # a cell of this size gets twice the time of a small one
AGAIN = 0.15  # of a column's time: to measure what was picked once more
# measurements of what others disturb; of the whole time: for waits until they have gone
TRIES, PATIENCE = (
    3,
    0.1,
)

T = TypeVar("T")


class Effort(NamedTuple):
    """The most that is measured, however much time there is."""

    scout_rounds: int = 3  # turns that a candidate has at first
    max_rounds: int = 300
    again_s: float = 1.0  # seconds for each size to measure what was picked once more
    model_s: float = 5.0  # seconds for the model's constants


EFFORT = Effort()


@dataclass(frozen=True)
class TuneRequest:
    """The request of a run; equal on all ranks."""

    collectives: tuple[str, ...]  # names; none: only the model's constants
    sizes: tuple[int, ...]  # bytes of the messages, ascending; a size is cut to whole elements and blocks
    # element types of reductions, one per class. Moved data is measured once, as bytes
    dtypes: tuple[np.dtype, ...]
    seconds: float  # time for everything, planning and compiling included
    busy: bool = False  # what others disturb counts


class TuneStep(NamedTuple):
    """A step of a run: the cell that begins, cells done and in all, and seconds that are left."""

    cell: str
    done: int
    total: int
    left_s: float


class TuneFindings(NamedTuple):
    """New sections of the table; columns left out; algorithms left out because their answers were wrong; the model's constants.

    ``ended``: why the search has ended early, because others disturbed it; ``uses``: the use of the cores while each part was measured.
    """

    sections: tuple[Section, ...]
    notes: list[str]
    wrong: list[str]
    fits: tuple[Fit, ...]
    ended: str
    uses: list[CoreUse]


class Column(NamedTuple):
    """All cells of one collective and class of element types."""

    calls: Calls
    type_class: str
    cases: list[Case]

    @property
    def collective(self) -> str:
        """The collective."""
        return self.calls.collective


class Candidate(NamedTuple):
    """An algorithm that may serve a cell, with its bytes per segment and one call for each side (out of place, in place)."""

    algorithm: str
    segment: int
    calls: list[Call]


class Winner(NamedTuple):
    """The result of a candidate; times are those of calls out of place and nearly alone, where there are such."""

    candidate: Candidate
    us: float
    native_us: float  # of the MPI library
    ratio: float  # of the library's time to the candidate's, where that does worst among sides and batches
    cost_s: float  # seconds that it took to find out


class _Clock:
    """Rank 0's clock, which all ranks follow; every look at it is collective."""

    def __init__(self, world: MPI.Intracomm, seconds: float) -> None:
        self._world, self._end = world, perf_counter() + seconds

    def left(self) -> float:
        """Return the seconds until the end."""
        return float(self._world.bcast(self._end - perf_counter()))


class Quiet:
    """Measures until others do not disturb that, within limits; every use is collective.

    Attributes:
        uses: The use of the cores during all that counts.
        why: What others did; empty where the limits sufficed.
    """

    def __init__(self, watch: Watch, request: TuneRequest, pause_s: float = LEAST_S) -> None:
        self._watch, self._busy, self._pause_s = watch, request.busy, pause_s
        self._patience = PATIENCE * request.seconds
        self.uses, self.why = list[CoreUse](), ""

    def comes(self, what: str) -> bool:
        """Wait until others leave the cores alone; say whether they do."""
        while not self._busy:
            time.sleep(self._pause_s)
            use = self._watch.look()
            if not use.disturbed:
                break
            self._patience -= self._pause_s
            if self._patience <= 0:
                self.why = f"{use} {what}"
                return False
        return True

    def measured(
        self, what: str, measure: Callable[[], T], uses: Callable[[T], list[CoreUse]] | None = None
    ) -> T | None:
        """Return what was measured while others left the cores alone; None where they did not.

        Args:
            what: In words, for the error.
            measure: The measurement, which may be made several times.
            uses: Returns the use of the cores meanwhile; None: it is looked at afterwards.
        """
        for attempt in range(TRIES):
            result = measure()
            self.uses += (beside := uses(result) if uses else [self._watch.look()])
            disturbed = [use for use in beside if use.disturbed]
            if self._busy or not disturbed:
                self.why = ""
                return result
            del self.uses[-len(beside) :]
            self.why = f"{disturbed[0]} while {what} was measured"
            if attempt < TRIES - 1 and not self.comes(f"while {what} was to be measured again"):
                break
        return None


class _Stage(NamedTuple):
    world: MPI.Intracomm
    comm: Communicator
    clock: _Clock


def tune(
    request: TuneRequest,
    world: MPI.Intracomm,
    watch: Watch,
    progress: Callable[[TuneStep], None],
    keep: Callable[[TuneFindings], object] = lambda findings: None,
) -> TuneFindings:
    """Measure everything; collective, and the result is equal on all ranks.

    ``progress`` is called before each cell, ``keep`` after each column with the findings so far: a run may be stopped from outside.
    """
    quiet, clock = Quiet(watch, request), _Clock(world, request.seconds)
    here = site(world.allgather(MPI.Get_processor_name()))
    wanted = columns(request, world.Get_rank(), world.Get_size())
    place = _place(world)
    work = sum(_work(_need(place, case, column.type_class)) for column in wanted for case in column.cases)
    done, total = 0, sum(len(column.cases) for column in wanted)
    model_s = min(EFFORT.model_s, MODELLING * request.seconds) if wanted else request.seconds
    fits = (
        quiet.measured("the model", lambda: fit_levels(world, model_s))
        if quiet.comes("before this began")
        else None
    )
    findings = TuneFindings((), [], [], fits or (), "" if fits is not None else quiet.why, quiet.uses)
    sections: dict[str, dict[str, tuple[Entry, ...]]] = {}
    for column in wanted:
        if findings.ended:
            break
        stage = _Stage(world, Communicator(world.Dup()), clock)  # its plans go with it
        entries: list[Entry] = []
        again_s = (
            AGAIN
            * max(0.0, clock.left())
            * sum(_work(_need(place, case, column.type_class)) for case in column.cases)
            / work
        )
        for case in column.cases:
            left = clock.left()
            # half a column would speak for sizes that it does not know
            if left <= -OVERTIME * request.seconds:
                findings.notes.append(f"{column.collective} {column.type_class}")
                break
            title = f"{column.collective} {column.type_class} {format_nbytes(case.nbytes)}"
            progress(TuneStep(title, done, total, max(0.0, left)))
            need = _need(place, case, column.type_class)
            effort = _work(need)
            cell = quiet.measured(
                title, partial(_measure_cell, stage, case, need, (1 - AGAIN) * max(0.0, left) * effort / work)
            )
            if cell is None:
                findings = findings._replace(ended=quiet.why)
                break
            ranked, wrong = cell
            entries += [
                entry._replace(disturbed=quiet.uses[-1].disturbed) for entry in _entries(need, ranked)
            ]
            findings.wrong.extend(f"{title}: {name}" for name in wrong)
            work, done = work - effort, done + 1
        else:
            picked = Section(here, column.type_class, {column.collective: tuple(entries)})
            pace = Pace(budget_s=min(EFFORT.again_s, again_s / len(column.cases)))
            rows = quiet.measured(
                f"{column.collective} {column.type_class}",
                partial(_again, stage, watch, column, picked, pace),
                uses_of,
            )
            if rows is None:
                findings = findings._replace(ended=quiet.why)
            else:
                wrong = [row.ran for row in rows if total_wrong([row])]
                findings.wrong.extend(
                    f"{column.collective} {column.type_class} with this table: {name}" for name in wrong
                )
                sections.setdefault(column.type_class, {})[column.collective] = tuple(told(entries, rows))
                findings = findings._replace(
                    sections=tuple(Section(here, name, parts) for name, parts in sections.items())
                )
                keep(findings)
        stage.comm.Free()
    return findings


def _again(stage: _Stage, watch: Watch, column: Column, table: Section, pace: Pace) -> list[ResultRow]:
    """Return the rows of a benchmark of calls that pick from a table."""
    comm = stage.world.Dup()
    with _in_use(stage.world, table):
        rows = bench(
            replace(column.calls, algorithms=(AUTO,), pace=pace), comm, watch, lambda text: None
        ).rows
    comm.Free()
    return rows


@contextmanager
def _in_use(world: MPI.Intracomm, table: Section) -> Iterator[None]:
    """Let communicators that are made meanwhile pick from a table; collective."""
    with tempfile.TemporaryDirectory() as folder:  # rank 0 reads the file
        path = world.bcast(Path(folder, "table.json"))
        if world.rank == 0:
            write(path, Document(FORMAT, "", (table,)))
        os.environ[TUNING] = str(path)
        try:
            yield
        finally:
            del os.environ[TUNING]


def told(entries: Sequence[Entry], rows: Sequence[ResultRow]) -> list[Entry]:
    """Return entries of which the first of each size has the times with which it was measured again, if that ran."""
    native = {row.size: row.sides[0].p50_us for row in rows if row.algorithm == NATIVE}
    again = {(row.size, row.ran): row for row in rows if row.algorithm == AUTO}
    kept, sizes = [], set[int]()
    for entry in entries:
        row = None if entry.nbytes in sizes else again.get((entry.nbytes, entry.algorithm))
        sizes.add(entry.nbytes)
        if row is not None:
            us, native_us = round(row.sides[0].p50_us, 3), round(native.get(row.size, entry.native_us), 3)
            entry = entry._replace(us=us, native_us=native_us, disturbed=entry.disturbed or row.disturbed)
        kept.append(entry)
    return kept


def columns(request: TuneRequest, rank: int, nranks: int) -> list[Column]:
    """Return the columns to measure, in order."""
    wanted = []
    for collective in request.collectives:
        meaning = COLLECTIVES[collective]
        op = SUM if meaning.reduces and not meaning.idempotent else None
        for dtype in request.dtypes if op else (np.dtype(np.uint8),):
            calls = Calls(collective, request.sizes, dtype, op, 0, (), None, True, Pace())
            wanted.append(Column(calls, type_class(dtype if op else None), cases_of(calls, rank, nranks)))
    return wanted


def _place(world: MPI.Intracomm) -> Need:
    """Return what all calls on these ranks have in common; collective."""
    comm = Communicator(world.Dup())
    context = context_of(comm).resources
    ordered, found = context.config.order is not None, context.config.registered
    place = Need(
        "",
        context.nranks,
        0,
        nodes=context.topology.parts,
        levels=context.levels,
        canonical=ordered,
        registered=found,
    )
    comm.Free()
    return place


def _need(place: Need, case: Case, type_class: str) -> Need:
    ordered = place.canonical and case.op is not None
    return place._replace(
        collective=case.collective, nbytes=case.nbytes, type_class=type_class, canonical=ordered
    )


def _work(need: Need) -> float:
    """Return the time that a cell deserves, in any unit."""
    assert need.nbytes is not None
    return (2 + len(candidates(need))) * (1 + need.nbytes / LARGE_NBYTES)


def _measure_cell(stage: _Stage, case: Case, need: Need, share: float) -> tuple[list[Winner], list[str]]:
    """Return the results of a cell, best first, and the candidates with wrong answers; takes about ``share`` seconds."""
    end = stage.clock.left() - share
    memory = [make_buffers(case, side) for side in case.sides]
    library = Candidate("", 1, [bind(case, buffers, stage.world, MPI.SUM) for buffers in memory])
    winners: list[Winner] = []
    wrong: list[str] = []
    native = [] if need.canonical else [(NATIVE, max(1, case.nbytes))]
    for algorithm, segment in [*native, *candidates(need)]:
        calls = [
            bind(case, buffers, stage.comm, MPI.SUM, algorithm=algorithm, segment=segment)
            for buffers in memory
        ]
        one = Candidate(algorithm, segment, calls)
        count = _count_wrong(stage, case, memory, one)
        if count:
            wrong.append(f"{algorithm}, segment {segment}: {count} wrong elements")
        else:
            start = stage.clock.left()
            seconds = _take_turns(stage, case, (library, one), Pace(rounds=EFFORT.scout_rounds, warmup=2))
            winners += _judge([one], seconds, start - stage.clock.left())
        if len(winners) > 1 and stage.clock.left() < end + (1 - SCOUTING) * share:
            break
    best = max((winner.ratio for winner in winners), default=0.0)
    running = [
        winner for winner in winners if winner.candidate.algorithm == NATIVE or BEHIND * winner.ratio >= best
    ]
    return rank_results(_run_off(stage, case, library, running, end)), wrong


def _run_off(
    stage: _Stage, case: Case, library: Candidate, running: list[Winner], end: float
) -> list[Winner]:
    """Return better times of candidates, from turns until the clock shows ``end``; the same times when that is too soon."""
    collected: list[np.ndarray] = []
    # each took its turns with the library
    round_s = sum(winner.cost_s for winner in running) / 2 / (1 + EFFORT.scout_rounds)
    while running and sum(seconds.shape[-1] for seconds in collected) < EFFORT.max_rounds:
        start = stage.clock.left()
        rounds = int(min(EFFORT.max_rounds, (start - end) / 2 / round_s))  # half, and see how long it takes
        if rounds <= EFFORT.scout_rounds:
            break
        collected.append(
            _take_turns(
                stage,
                case,
                (library, *(winner.candidate for winner in running)),
                Pace(rounds=rounds, warmup=1),
            )
        )
        round_s = (start - stage.clock.left()) / rounds
    return (
        _judge([winner.candidate for winner in running], np.concatenate(collected, axis=2), 0.0)
        if collected
        else running
    )


def rank_results(results: Sequence[Winner]) -> list[Winner]:
    """Sort results: algorithms that are clearly faster than ``native`` or the library alone, then ``native``, then the others.

    Where a call's way through Python shows, ``native`` is slower than the library alone: to be faster than that is worth something.
    """
    alone = min((1.0, *(result.ratio for result in results if result.candidate.algorithm == NATIVE)))

    def worth(winner: Winner) -> tuple[bool, bool, float]:
        native = winner.candidate.algorithm == NATIVE
        return not native and winner.ratio >= WORTH * alone, native, winner.ratio

    return sorted(results, key=worth, reverse=True)


def _take_turns(stage: _Stage, case: Case, running: Sequence[Candidate], pace: Pace) -> np.ndarray:
    """Return seconds per call, ``[candidate, side and batch, round]``, of candidates that take turns."""
    calls = [call for winner in running for call in winner.calls]
    batches_s = BATCHES_S if case.nbytes < SMALL_NBYTES else BATCHES_S[:1]
    times = [
        measure(stage.world, calls, case.nbytes, replace(pace, batch_s=batch_s)).seconds
        for batch_s in batches_s
    ]
    return np.concatenate([seconds.reshape(len(running), len(case.sides), -1) for seconds in times], axis=1)


def _judge(running: Sequence[Candidate], seconds: np.ndarray, cost_s: float) -> list[Winner]:
    """Return results from times of the library and, after it, of candidates."""
    us = 1e6 * np.median(seconds, axis=2)
    worst = (us[0] / us).argmin(axis=1)[1:]
    alone = us[:, 0].tolist()
    return [
        Winner(candidate, alone[i], alone[0], float(us[0, side] / us[i, side]), cost_s)
        for i, (candidate, side) in enumerate(zip(running, worst), 1)
    ]


def _count_wrong(stage: _Stage, case: Case, memory: Sequence[Buffers], candidate: Candidate) -> int:
    """Count wrong elements on all ranks; makes the first call, which also plans, and leaves buffers fit for timing."""
    wrong = 0
    for buffers, call in zip(memory, candidate.calls):
        fill(case, buffers)
        call()
        wrong += wrong_elements(case, buffers)
        calm(buffers)
    return int(stage.world.allreduce(wrong))


def _entries(need: Need, ranked: Sequence[Winner]) -> list[Entry]:
    """Return the best, then the best for calls that those before cannot serve: strict, ordered, of varying blocks, canonical."""
    assert need.nbytes is not None
    meaning = COLLECTIVES[need.collective]
    flags = [
        (False, True) if may else (False,)
        for may in (meaning.reduces, meaning.reduces, meaning.blocks, meaning.reduces)
    ]
    demands = [
        need._replace(strict=s, ordered=o, varying=v, canonical=c) for s, o, v, c in itertools.product(*flags)
    ]
    entries = []
    for result in ranked:
        name, segment = result.candidate[:2]
        remaining = [demand for demand in demands if not_chosen(demand, name)]
        if len(remaining) < len(demands):
            entries.append(Entry(need.nbytes, name, segment, round(result.us, 3), round(result.native_us, 3)))
        demands = remaining
    return entries
