"""Runs the steps of the check, each in a process of its own with a limit, and reports after each: see jobs/gpu_check.sh.

``python jobs/gpu_check [STEP...]`` runs all steps or those named by number; ``--step N FOLDER SECONDS`` is what it starts for one of them.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple

import contained
import report
from contained import NO_TIME, Outcome
from knobs import HERE, ROOT, Knobs, run_variables


class Step(NamedTuple):
    """A step.

    Attributes:
        number: Number by which it is asked for.
        name: Name that is shown.
        module: Module with a function `run`, which takes the `Parts`.
        limit_s: Seconds that it may take.
        least_s: Seconds that earlier steps leave it.
    """

    number: int
    name: str
    module: str
    limit_s: float
    least_s: float


STEPS = (
    Step(1, "facts", "facts", 30, 5),
    Step(2, "install", "install", 120, 15),
    Step(3, "probes", "probing", 100, 25),
    Step(4, "small bench", "small_bench", 90, 25),
    Step(5, "tests", "testing", 260, 60),
    Step(6, "benches", "benches", 170, 40),
    Step(7, "failures", "failures", 90, 20),
)


def limits(steps: list[Step], given: dict[int, float], total_s: float, used_s: float) -> float:
    """Return the seconds of the first of some steps: its own limit, or what the others leave of the total.

    >>> limits([Step(1, "a", "a", 30, 5), Step(2, "b", "b", 120, 15)], {}, 40, 0)
    25.0
    """
    first, *others = steps
    return float(
        min(given.get(first.number, first.limit_s), total_s - used_s - sum(one.least_s for one in others))
    )


def folder_of(knobs: Knobs, step: Step) -> Path:
    """Return the folder of a step's findings."""
    return knobs.work / f"{step.number}-{step.name.replace(' ', '-')}"


def run_step(knobs: Knobs, step: Step, limit_s: float) -> Outcome:
    """Run a step in a process of its own."""
    folder = folder_of(knobs, step)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    outcome, began = Outcome(NO_TIME, 0.0), time.strftime("%H:%M:%S")
    _write(folder, step, outcome._replace(status="running"), began)
    if limit_s >= 1:
        command = [sys.executable, str(HERE), "--step", str(step.number), str(folder), str(limit_s)]
        outcome = contained.run(command, folder / "log.txt", limit_s)
    _write(folder, step, outcome, began)
    return outcome


def _write(folder: Path, step: Step, outcome: Outcome, began: str) -> None:
    found = {"number": step.number, "name": step.name, "began": began, **outcome._asdict()}
    (folder / "step.json").write_text(json.dumps(found))


def chosen(words: list[str]) -> list[Step]:
    """Return steps by number, or all where none is named."""
    unknown = set(words) - {str(step.number) for step in STEPS}
    if unknown:
        sys.exit(
            f"gpu_check: no step {', '.join(sorted(unknown))}; there are {', '.join(f'{one.number} {one.name}' for one in STEPS)}"
        )
    return [step for step in STEPS if not words or str(step.number) in words]


def main(words: list[str]) -> int:
    """Run steps; the exit status says whether all went well."""
    knobs, steps, start = Knobs(), chosen(words), time.monotonic()
    if len(steps) == len(STEPS):
        shutil.rmtree(knobs.work, ignore_errors=True)
    for folder in (knobs.work, knobs.out):
        folder.mkdir(parents=True, exist_ok=True)
    (knobs.work / "knobs.json").write_text(knobs.as_json())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    contained.adopt_orphans()
    try:
        while steps:
            step = steps[0]
            print(f"{step.number} {step.name}", flush=True)
            outcome = run_step(
                knobs, step, limits(steps, knobs.limits, knobs.limit_s, time.monotonic() - start)
            )
            steps = steps[1:]
            print(f"{step.number} {step.name}: {outcome.status}, {outcome.seconds:.0f} s", flush=True)
            report.try_to_write(knobs.work, knobs.out)
    finally:
        written = report.try_to_write(knobs.work, knobs.out)
    print(*report.summary(knobs.work), f"written: {written}", sep="\n", flush=True)
    return 0 if report.is_good(knobs.work) else 1


def step_process(number: int, folder: Path, limit_s: float) -> None:
    """Run a step in this process."""
    from parts import Parts

    contained.adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    knobs = Knobs()
    os.environ.update(run_variables(knobs))
    (step,) = (one for one in STEPS if one.number == number)
    importlib.import_module(step.module).run(Parts(knobs, folder, time.monotonic() + limit_s))


if __name__ == "__main__":
    os.chdir(ROOT)
    if sys.argv[1:2] == ["--step"]:
        step_process(int(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4]))
    else:
        sys.exit(main(sys.argv[1:] or os.environ.get("STEPS", "").split()))
