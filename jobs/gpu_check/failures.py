"""Step 7: the first test that failed of each part of step 5, alone: with full logging, then under compute-sanitizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import testing
from contained import NO_TIME, OK
from parts import Parts
from report import lines_of

_SANITIZER = "compute-sanitizer"
_LOGGING = {"HPCOLL_DEBUG": "trace", "CUDA_LOG_FILE": "stderr"}
_SANITIZED = ("--target-processes=all", "--print-limit=20")
_ALONE = ["-vv", "--maxfail=1", "--timeout=50", "-s"]


def run(parts: Parts) -> None:
    """Repeat some of the failures, each once, and benchmarks of steps 4 and 6 that failed, with full logging."""
    found = [failure for failure in failures(parts.folder.parent) if failure["case"]]
    if not found:
        parts.text("none", "no test failed in step 5")
    if found and not parts.knobs.has(_SANITIZER):
        parts.text("sanitizer", f"{_SANITIZER} was not found")
    for index, failure in enumerate(found[: parts.knobs.failures]):
        again(parts, failure, f"logged-{index + 1}", [])
        if parts.knobs.has(_SANITIZER):
            again(parts, failure, f"sanitized-{index + 1}", [parts.knobs.program(_SANITIZER), *_SANITIZED])
    for path in sorted(parts.folder.parent.glob("[46]-*/parts.jsonl")):
        for part in lines_of(path):
            if part["name"].startswith("bench-") and part["status"] not in (OK, NO_TIME):
                parts(
                    f"logged-{part['name']}", part["command"], parts.knobs.bench_limit_s, environment=_LOGGING
                )


def again(parts: Parts, failure: dict[str, Any], name: str, around: list[str]) -> None:
    """Run a test alone, with full logging."""
    prefix = [*failure["prefix"], *around]
    testing.cases(
        parts, name, max(1, failure["nranks"]), [failure["case"]], failure["way"], prefix, _LOGGING, _ALONE
    )


def failures(work: Path) -> list[dict[str, Any]]:
    """Return the first failing test of every part of step 5, each test and way once."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for path in work.glob("5-tests/parts.jsonl"):
        for part in lines_of(path):
            if "cases" in part and part["status"] not in (OK, NO_TIME):
                case, way = first_failing(path.parent / part["name"]), part.get("way", testing.PICKED)
                found.setdefault(
                    (case, way),
                    {"case": case, "way": way, "nranks": part["nranks"], "prefix": part.get("prefix", [])},
                )
    return list(found.values())


def first_failing(folder: Path) -> str:
    """Return the first test that failed on some rank, or in which it ended; the empty string where there is none."""
    for path in sorted(folder.glob("cases-*")):
        running = ""
        for line in path.read_text(errors="replace").splitlines():
            try:
                name, outcome, *_ = json.loads(line)
            except ValueError:
                continue
            running = name if outcome == "begin" else ""
            if outcome == "failed":
                return str(name)
        if running:
            return running
    return ""
