"""The parts of a step: commands with limits of their own, whose outcomes are on disk as soon as they are known."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import contained
import report
from contained import NO_TIME, OK, Outcome
from knobs import Knobs

_LEAST_S = 2.0  # a part that has less is not begun
_RESERVE_S = 1.0  # between the end of the last part and that of the step: the report is written


class Parts:
    """The parts of one step.

    Args:
        knobs: Knobs of the check.
        folder: Folder of the step: a file for the output of each part, and ``parts.jsonl``.
        until: Time by which the step must have ended, on the clock `time.monotonic`.
    """

    def __init__(self, knobs: Knobs, folder: Path, until: float) -> None:
        self.knobs, self.folder, self._until = knobs, folder, until

    def remaining_s(self) -> float:
        """Return the seconds that the step has left."""
        return self._until - time.monotonic() - _RESERVE_S

    def __call__(
        self,
        name: str,
        command: Sequence[str | Path],
        limit_s: float,
        *,
        environment: Mapping[str, str] | None = None,
        **facts: Any,
    ) -> Outcome:
        """Run a part.

        Args:
            name: Name of the part, and of the file with its output.
            command: Program and arguments.
            limit_s: Seconds, of which there may be fewer left.
            environment: Variables beside this process's.
            facts: Kept beside the outcome.
        """
        limit, log = min(limit_s, self.remaining_s()), self.folder / f"{name}.txt"
        outcome = Outcome(NO_TIME, 0.0)
        if limit >= min(_LEAST_S, limit_s):
            words = " ".join(f"{key}={value}" for key, value in (environment or {}).items())
            log.write_text(f"$ {words} {' '.join(map(str, command))}\n".replace("$  ", "$ "))
            outcome = contained.run(command, log, limit, environment)
        facts |= {"command": [str(word) for word in command], "environment": dict(environment or {})}
        return self.add(name, outcome, **facts)

    def add(self, name: str, outcome: Outcome, **facts: Any) -> Outcome:
        """Record the outcome of a part."""
        with (self.folder / "parts.jsonl").open("a") as out:
            out.write(json.dumps({"name": name, **outcome._asdict(), **facts}) + "\n")
        print(f"  {name}: {outcome.status}, {outcome.seconds:.1f} s", file=sys.stderr, flush=True)
        report.try_to_write(self.knobs.work, self.knobs.out)
        return outcome

    def text(self, name: str, text: str, status: str = OK) -> None:
        """Record a part that this process did itself, and its findings."""
        (self.folder / f"{name}.txt").write_text(text.rstrip() + "\n")
        self.add(name, Outcome(status, 0.0))
