"""A whole run of the benchmark: every size, every algorithm beside the MPI library's own, answers checked, memory traffic counted."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from hpcoll.base.text import format_nbytes
from hpcoll.cli.bench import cases
from hpcoll.cli.bench.cases import Buffers, Case
from hpcoll.cli.bench.contenders import Contender, Contenders, find_contenders
from hpcoll.cli.bench.measure import Times, measure
from hpcoll.cli.bench.messages import type_name
from hpcoll.cli.bench.modes import (
    NEW,
    OVERLAP,
    Call,
    CallMode,
    cycled,
    hidden_share,
    in_mode,
    overlapped,
    work,
)
from hpcoll.cli.bench.report import AUTO, Measured, ResultRow, bus_factor, summarise
from hpcoll.cli.bench.request import BenchRequest, cases_of, native_problem
from hpcoll.cli.bench.watch import Watch
from hpcoll.comm.context.attach import context_of
from hpcoll.comm.plans.ledger import LedgerRow
from hpcoll.runtime.engine.host_engine import HostEngine
from hpcoll.selection.config import NATIVE

_CALIBRATION = 7  # rounds that tell how much work takes as long as a call
_UNIT = 50  # slices of work that are timed for that
_NEW_SIZES = 500  # that follow each other
_COPIES = 25  # that are timed

Key = tuple[str, str]  # algorithm and side
Sides = dict[Key, Measured]


class BenchFindings(NamedTuple):
    """Rows in order of size, then algorithm, native first; notes for the reader; facts about GPUs for the JSON report."""

    rows: list[ResultRow]
    notes: list[str]
    facts: dict[str, Any]


class _Setting(NamedTuple):
    """A run's request, ranks and contenders, the same for all sizes."""

    request: BenchRequest
    world: MPI.Intracomm
    contenders: Contenders


class _Candidate(NamedTuple):
    """A contender's call on one side; ``timed`` has the call, and in overlap mode also the work, and both."""

    key: Key
    buffers: Buffers
    made: CallMode
    timed: tuple[Call, ...]


def bench(
    request: BenchRequest,
    world: MPI.Intracomm,
    watch: Watch,
    progress: Callable[[str], None],
    so_far: Callable[[BenchFindings], object] = lambda findings: None,
) -> BenchFindings:
    """Measure everything; collective, and the result is equal on all ranks.

    ``progress`` is called with a line of text before each size, and with an empty one at the end; ``so_far`` on all ranks with the
    findings after each size but the last.
    """
    wanted = cases_of(request, world.Get_rank(), world.Get_size())
    problem = native_problem(request, wanted[0], world)
    contenders = find_contenders(request, wanted[-1], world, problem)
    setting, session = (
        _Setting(request, world, contenders),
        BenchFindings([], [*watch.notes, *contenders.notes], contenders.facts),
    )
    before = watch.look()
    if before.disturbed:
        session.notes.append(f"{before} before this began")
    if request.mode == OVERLAP:
        session.notes.append(
            "hidden: (time + work - both at once) / the shorter of time and work; the work calls no MPI"
        )
    for index, case in enumerate(wanted):
        progress(
            f"{request.collective} {format_nbytes(case.nbytes)}, size {index + 1} of {len(wanted)}, {len(contenders.rows)} algorithms"
        )
        rows = _run_case(case, setting)
        beside = watch.look()
        session.rows.extend(replace(row, beside=beside) for row in rows)
        if index < len(wanted) - 1:
            so_far(session)
    progress("")
    contenders.free()
    return session


def _run_case(case: Case, setting: _Setting) -> list[ResultRow]:
    """Measure all algorithms at one size."""
    request, world = setting.request, setting.world
    candidates, ran = _candidates(case, setting)
    if request.mode == OVERLAP:
        candidates = _with_work(case, candidates, setting)
    wrong = np.zeros(len(candidates), np.int64)
    if request.check:
        wrong[:] = _check(case, candidates)
    for candidate in candidates:
        cases.fill(case, candidate.buffers)
        cases.calm(candidate.buffers)
    times = measure(
        world, [call for candidate in candidates for call in candidate.timed], case.nbytes, request.pace
    )
    if request.check:
        np.maximum(wrong, _check(case, candidates), out=wrong)
        world.Allreduce(MPI.IN_PLACE, wrong, op=MPI.SUM)
    sides = _sides(case, candidates, times, wrong if request.check else None)
    if request.traffic:
        calls = {candidate.key: candidate.made.call for candidate in candidates}
        sides = with_traffic(request, world, case.nbytes, setting.contenders.rows, sides, calls)
    for candidate in candidates:
        candidate.made.free()
    what = (
        type_name(case.dtype),
        case.op.name if case.op else "none",
        case.root if case.meaning.rooted else -1,
    )
    return [
        ResultRow(
            name,
            ran[name],
            case.nbytes,
            case.count,
            *what,
            sides.get((name, cases.OUT_OF_PLACE)),
            sides.get((name, cases.IN_PLACE)),
        )
        for name in [contender.name for contender in setting.contenders.rows]
    ]


def _candidates(case: Case, setting: _Setting) -> tuple[list[_Candidate], dict[str, str]]:
    """Return the candidates at one size, each called once, which also plans; and the algorithm that ran by contender's name."""
    memories = dict.fromkeys(contender.memory for contender in setting.contenders.rows)
    gpu, arrays = setting.contenders.gpu, setting.contenders.arrays
    make = partial(cases.make_device_buffers, gpu=gpu) if gpu else cases.make_buffers
    buffers = {
        (memory, side): make(case, side, memory=arrays.get((memory, side), ()))
        for memory in memories
        for side in case.sides
    }
    candidates: list[_Candidate] = []
    ran: dict[str, str] = {}
    for contender in setting.contenders.rows:
        for side in case.sides:
            if contender.serves(case, side):
                mine, before = buffers[contender.memory, side], _ledger(contender)
                made = in_mode(contender.bind(case, mine), setting.request.mode)
                cases.fill(case, mine)
                made.call()
                picked = next((row.algorithm for row in _ledger(contender) if row not in before), AUTO)
                ran.setdefault(
                    contender.name, picked if contender.name.partition("@")[0] == AUTO else contender.name
                )
                timed = made.call
                if setting.request.sizes_of_calls == NEW:
                    timed = cycled(
                        [contender.bind(*smaller) for smaller in cases.smaller(case, mine, _NEW_SIZES)]
                        or [timed]
                    )
                candidates.append(_Candidate((contender.name, side), mine, made, (timed,)))
    return candidates, ran


def _with_work(case: Case, candidates: list[_Candidate], setting: _Setting) -> list[_Candidate]:
    """Return the candidates with work beside them that takes about as long as each of them."""
    world, pace = setting.world, replace(setting.request.pace, rounds=_CALIBRATION)
    alone = np.median(
        measure(world, [candidate.made.call for candidate in candidates], case.nbytes, pace).seconds, axis=1
    )
    unit = np.median(measure(world, [work(_UNIT)], case.nbytes, pace).seconds) / _UNIT
    works = [work(max(1, round(seconds / unit))) for seconds in alone]
    return [
        candidate._replace(timed=(candidate.made.call, beside, overlapped(candidate.made.start, beside)))
        for candidate, beside in zip(candidates, works)
    ]


def _ledger(contender: Contender) -> list[LedgerRow]:
    """Return the rows of a communicator's ledger, without times and bytes: a call changes the row of its algorithm."""
    return (
        [row._replace(seconds=0.0, nbytes=0) for row in contender.comm.ledger.rows()]
        if contender.comm
        else []
    )


def _check(case: Case, candidates: list[_Candidate]) -> list[int]:
    """Count wrong elements on this rank, per candidate; in overlap mode after the call with work beside it."""
    wrong = []
    for candidate in candidates:
        cases.fill(case, candidate.buffers)
        (candidate.timed[-1] if len(candidate.timed) > 1 else candidate.made.call)()
        wrong.append(cases.wrong_elements(case, candidate.buffers))
    return wrong


def _sides(
    case: Case, candidates: list[_Candidate], times: Times, wrong: np.ndarray | None
) -> dict[Key, Measured]:
    """Return results by algorithm and side."""
    width = len(candidates[0].timed)
    native = {
        candidate.key[1]: times.seconds[i * width]
        for i, candidate in enumerate(candidates)
        if candidate.key[0] == NATIVE
    }
    factor = bus_factor(case.collective, case.nranks)
    sides = {}
    for i, candidate in enumerate(candidates):
        mine = times.seconds[i * width : (i + 1) * width]
        nwrong = None if wrong is None else int(wrong[i])
        side = summarise(
            mine[0],
            case.nbytes,
            factor,
            nwrong=nwrong,
            native=native.get(candidate.key[1]),
            batch=times.batch,
        )
        if times.by_rank is not None:
            rounds_us = [np.round(1e6 * of, 3).tolist() for of in (mine[0], times.by_rank[:, i * width])]
            side = replace(side, times_us=rounds_us[0], rank_times_us=rounds_us[1])
        if width > 1:
            work_us, both_us = (float(value) for value in np.median(mine[1:], axis=1) * 1e6)
            side = replace(side, work_us=work_us, both_us=both_us, hidden=hidden_share(*mine))
        sides[candidate.key] = side
    return sides


def with_traffic(
    request: BenchRequest,
    world: MPI.Intracomm,
    nbytes: int,
    contenders: Iterable[Contender],
    sides: Sides,
    calls: Mapping[tuple[str, str], Callable[[], object]],
) -> Sides:
    """Return the results of calls of ``nbytes`` with the bytes that they move; makes each call twice more; collective."""
    rows, moved = {contender.name: contender for contender in contenders}, np.full(len(calls), -1, np.int64)
    for i, ((name, _), call) in enumerate(calls.items()):
        for _ in range(2):  # the second one is found by the call cache, which tells what ran
            call()
        moved[i] = _moved(rows[name], request)
    known = moved >= 0
    world.Allreduce(MPI.IN_PLACE, moved, MPI.MAX)
    world.Allreduce(MPI.IN_PLACE, known, MPI.LAND)
    counted = {
        key: nbytes
        for key, nbytes, is_known in zip(calls, moved.tolist(), known.tolist(), strict=True)
        if is_known
    }
    rate = _copy_rate(request, world, nbytes) if nbytes else 0.0
    share = {
        key: nbytes / (sides[key].p50_us * 1e-6) / rate for key, nbytes in counted.items() if nbytes and rate
    }
    return {
        key: replace(side, moved=counted.get(key), copy_share=share.get(key)) for key, side in sides.items()
    }


def _moved(contender: Contender, request: BenchRequest) -> int:
    """Return the bytes that the contender's latest call moved on this rank; -1 where that is not known."""
    if contender.comm is None:
        return -1
    algorithm = None if contender.name == AUTO else contender.name
    for (method, _, name, segment, _), table in context_of(contender.comm).tables.tables.items():
        latest = (
            table.latest.by
            if (method, name, segment) == (request.method, algorithm, request.segment) and table.calls
            else None
        )
        if isinstance(latest, HostEngine):
            return latest.traffic().moved
    return -1


def _copy_rate(request: BenchRequest, world: MPI.Intracomm, nbytes: int) -> float:
    """Return the bytes that each rank reads and writes in a second while all of them copy arrays of so many bytes; collective."""
    source, target = np.ones(nbytes, np.uint8), np.empty(nbytes, np.uint8)
    seconds = measure(
        world, [partial(np.copyto, target, source)], nbytes, replace(request.pace, rounds=_COPIES)
    ).seconds
    return 2 * nbytes / float(np.median(seconds))
