"""Runs stages of tests beside each other as far as there are cores, shows how far they are, and sums up what became of the cases."""

import math
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import IO, NamedTuple

import outcomes
from descendants import NAP_S, leaving_none, reap
from environments import ROOT
from mpi_run import SEGMENTS
from outcomes import FAILED, PASSED, SKIPPED, Case
from slowness import slowed, slowness

TICK_S = 30.0  # between lines that say how far it is
LINES = 400  # of a failed stage's output, at most
SLOWEST = 10
FILE_S = 3.0  # from which on a file's seconds are shown
STARTED = time.monotonic()


class Stage(NamedTuple):
    """A command. With ``nranks`` its processes write down what becomes of their cases; without it is one case itself.

    Attributes:
        cores: That it needs for itself; none where it is short or mostly waits, so that it runs beside whatever else does.
        told: Whether its output is shown where nothing failed, too.
        after: The title of a stage without which this one cannot run.
        budget: Seconds that it should take on two idle cores; the sum says where it took more. 0: any time.
    """

    title: str
    command: tuple[str, ...]
    nranks: int = 0
    cores: int = 1
    told: bool = False
    after: str = ""
    budget: float = 0


class Running(NamedTuple):
    """A stage that runs, or has run: where its output and its cases are, and its jobs' shared memory of Open MPI."""

    stage: Stage
    process: subprocess.Popen[bytes]
    folder: Path
    log: IO[bytes]
    since: float
    segments: Path


class Ended(NamedTuple):
    """A stage that has ended: its seconds and cases."""

    stage: Stage
    seconds: float
    cases: dict[str, Case]

    @property
    def good(self) -> bool:
        return all(case.outcome != FAILED for case in self.cases.values())


def elapsed() -> str:
    seconds = int(time.monotonic() - STARTED)
    return f"{seconds // 60:2d}:{seconds % 60:02d}"


def prepare(title: str, action: Callable[[], str]) -> str:
    """Do something that all stages need; what went wrong."""
    print(f"{elapsed()}  {title}: begins", flush=True)
    with leaving_none():
        problem = action()
    print(f"{elapsed()}  {title}: {'FAILED' if problem else 'ready'}", flush=True)
    return problem


def run(
    stages: list[Stage], logs: Path, limit_s: float = math.inf, before_sum: Callable[[], None] = lambda: None
) -> int:
    """Run all; 0 when nothing failed. No process is left, nor where a signal stops the run.

    Args:
        limit_s: Seconds since the start after which what runs is ended, and nothing begins any more.
        before_sum: Called when all have ended, before they are summed up.
    """
    running, ended = list[Running](), list[Ended]()
    if slowness() > 1:
        print(
            f"{elapsed()}  other programs use the cores: limits are {slowness():.1f} times as long",
            flush=True,
        )
    try:
        with leaving_none():
            _run_all(stages, logs, running, ended, limit_s)
    finally:
        for one in running:
            shutil.rmtree(one.segments, ignore_errors=True)
    before_sum()
    return _sum_up(ended)


def sweep(temporary: Path) -> None:
    """Remove what killed launchers of Open MPI have left: the next one with the same process number would not start."""
    for folder in temporary.glob("ompi.*"):
        number = folder.name.removeprefix("ompi.")
        if number.isdecimal() and not Path("/proc", number).exists():
            shutil.rmtree(folder, ignore_errors=True)


def _run_all(
    stages: list[Stage], logs: Path, running: list[Running], ended: list[Ended], limit_s: float
) -> None:
    """Start the first waiting stage for which there are cores and all that it needs, and again until all have ended."""
    waiting = list(stages)
    ncores, tick, temporary = os.cpu_count() or 1, time.monotonic() + TICK_S, Path(tempfile.gettempdir())
    sweep(temporary)
    while waiting or running:
        if time.monotonic() - STARTED > limit_s:
            ended += [_without(stage, "there was no time for it") for stage in waiting]
            waiting.clear()
            for one in running:
                one.process.terminate()
        free = ncores - sum(min(one.stage.cores, ncores) for one in running)
        done = {"": True} | {one.stage.title: one.good for one in ended}
        for stage in [one for one in waiting if not done.get(one.after, True)]:
            waiting.remove(stage)
            ended.append(_without(stage, f"cannot run without: {stage.after}"))
        for stage in [one for one in waiting if min(one.cores, ncores) <= free and one.after in done][:1]:
            waiting.remove(stage)
            running.append(_start(stage, logs))
        for one in [one for one in running if one.process.poll() is not None]:
            running.remove(one)
            ended.append(_end(one))
            _say(ended[-1], len(ended), len(stages), one.folder)
        if time.monotonic() > tick:
            tick += TICK_S
            sweep(temporary)
            print(f"{elapsed()}    {'; '.join(map(_progress, running))}", flush=True)
        reap({one.process.pid for one in running})
        time.sleep(NAP_S)


def _without(stage: Stage, why: str) -> Ended:
    """Return the end of a stage that did not begin."""
    return Ended(stage, 0.0, {stage.title: Case(FAILED, 0.0, why)})


def _start(stage: Stage, logs: Path) -> Running:
    folder = logs / re.sub(r"\W+", "-", stage.title)
    folder.mkdir(parents=True, exist_ok=True)
    outcomes.clear(folder)
    log = (folder / "log").open("wb")
    segments = Path(
        tempfile.mkdtemp(prefix="sm_segments-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    )
    environment = {**os.environ, SEGMENTS: str(segments)} | (
        {outcomes.TOKENS: str(folder)} if stage.nranks else {}
    )
    print(f"{elapsed()}    {stage.title}: begins", flush=True)
    process = subprocess.Popen(
        stage.command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    return Running(stage, process, folder, log, time.monotonic(), segments)


def _end(one: Running) -> Ended:
    one.log.close()
    shutil.rmtree(one.segments, ignore_errors=True)
    title, status = one.stage.title, one.process.returncode
    cases = outcomes.merge(one.folder, one.stage.nranks)
    if not one.stage.nranks:
        cases[title] = Case(FAILED, 0.0, f"it ended with status {status}") if status else Case(PASSED, 0.0)
    elif status and all(case.outcome != FAILED for case in cases.values()):
        cases[title] = Case(
            FAILED, 0.0, f"no test of it ran, or none failed, but it ended with status {status}"
        )
    return Ended(one.stage, time.monotonic() - one.since, cases)


def _progress(one: Running) -> str:
    done = len(outcomes.read(one.folder, 0).cases) if one.stage.nranks else 0
    return f"{one.stage.title}: {done} cases done" if done else one.stage.title


def _say(ended: Ended, number: int, total: int, folder: Path) -> None:
    verdict = "ok" if ended.good else "FAILED"
    print(f"{elapsed()}  [{number}/{total}] {verdict}: {_result(ended)}", flush=True)
    if not ended.good or ended.stage.told:
        lines = (folder / "log").read_text(errors="replace").splitlines()
        print("\n".join([f"    | {line}" for line in lines[-LINES:]]))
        print(f"    all of it: {folder / 'log'}", flush=True)


def _result(ended: Ended) -> str:
    counted = f": {outcomes.tally(ended.cases.values())}" if ended.stage.nranks else ""
    return f"{ended.seconds:4.0f} s  {ended.stage.title}{counted}"


def _budgeted(ended: Ended) -> str:
    """Return the stage's budget and whether it took more: on a slow machine that is no fault of the tests, so nothing fails."""
    if not (budget := ended.stage.budget):
        return ""
    over = f": {ended.seconds / budget:.1f} times that" if ended.seconds > slowed(budget) else ""
    return f" (budget {budget:.0f} s{over})"


def _sum_up(ended: list[Ended]) -> int:
    """Time per stage and file, slowest cases, why cases were skipped, which failed; a case counts once, however many stages ran it."""
    every = [(name, case, one.stage.title) for one in ended for name, case in one.cases.items()]
    print(f"\n==== {elapsed().strip()} min in all; seconds of the stages")
    for one in ended:
        print(_result(one) + _budgeted(one))
        seconds = Counter[str]()
        for name, case in one.cases.items():
            seconds[name.partition("::")[0]] += case.seconds
        print(
            "".join(f"{spent:16.0f} s  {file}\n" for file, spent in seconds.most_common() if spent >= FILE_S),
            end="",
        )
    print(f"\n==== the {SLOWEST} slowest")
    for name, case, title in sorted(every, key=lambda one: -one[1].seconds)[:SLOWEST]:
        print(f"{case.seconds:6.1f} s  {name}  ({title})")
    merged: dict[str, Case] = {}
    for name, case, _ in every:
        merged[name] = min(
            case, merged.get(name, case), key=lambda one: (FAILED, PASSED, SKIPPED).index(one.outcome)
        )
    reasons = Counter(case.note for case in merged.values() if case.outcome == SKIPPED)
    if reasons:
        print("\n==== skipped wherever they ran")
        print("\n".join(f"{number:5d}  {reason}" for reason, number in reasons.most_common()))
    wrong = [f"{name} ({title}): {case.note}" for name, case, title in every if case.outcome == FAILED]
    if wrong:
        print("\n==== failed")
        print("\n".join(wrong))
    print(f"\n{outcomes.tally(merged.values())}", flush=True)
    return 1 if wrong else 0
