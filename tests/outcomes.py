"""The outcome of every test case: written down by each process as it goes, and put together over the ranks of a run."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

FAILED, SKIPPED, PASSED = "failed", "skipped", "passed"  # the worst first
BEGIN = "begin"
TOKENS, RANK = "TEST_TOKENS", "TEST_RANK"  # environment variables: where to write, and which rank this is
NOTE = 300  # characters of a failed case's reason, at most
NO_RESULT = "this rank left no result"


class Case(NamedTuple):
    """The outcome of a case, its seconds, and why it failed or was skipped."""

    outcome: str
    seconds: float
    note: str = ""


class Record(NamedTuple):
    """The record of one rank: its cases, the one that it was in when it ended, and whether it ended as it should."""

    cases: dict[str, Case]
    running: str
    ended: bool


class Recorder:
    """Pytest plugin that writes a line when a case begins and one when it is over: a process that dies leaves where it was."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._file, self._token = path(folder, rank).open("w", buffering=1), token(folder, rank)
        self._cases: list[Case] = []
        self._phases: dict[str, list[Any]] = {}

    def _end(self, name: str, case: Case) -> None:
        self._cases.append(case)
        self._file.write(json.dumps([name, *case]) + "\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._file.write(json.dumps([nodeid, BEGIN]) + "\n")

    def pytest_runtest_logreport(self, report: Any) -> None:
        phases = self._phases.setdefault(report.nodeid, [])
        phases.append(report)
        if report.when in ("setup", "call"):
            return
        outcomes = [one.outcome for one in phases]
        outcome = next(one for one in (FAILED, SKIPPED, PASSED) if one in outcomes)
        reasons = [_reason(one) for one in phases if one.outcome == outcome != PASSED]
        self._end(report.nodeid, Case(outcome, round(sum(one.duration for one in phases), 4), *reasons[:1]))
        del self._phases[report.nodeid]

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._end(report.nodeid, Case(FAILED, 0.0, "cannot be collected"))

    def pytest_sessionfinish(self) -> None:
        self._token.write_text(tally(self._cases) + "\n")


def _reason(report: Any) -> str:
    """Return why a phase failed or was skipped, as far as a line holds it."""
    if report.skipped:
        return report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
    crash = getattr(report.longrepr, "reprcrash", None)
    return " ".join((crash.message if crash else str(report.longrepr)).split())[:NOTE]


def path(folder: Path, rank: int) -> Path:
    """Return where a rank writes what became of its cases."""
    return folder / f"cases-{rank}"


def token(folder: Path, rank: int) -> Path:
    """Return what a rank leaves when it has come to the end of its tests: one line."""
    return folder / f"rank-{rank}"


def read(folder: Path, rank: int) -> Record:
    """Return what a rank has written so far; nothing where it never began."""
    file, running = path(folder, rank), ""
    cases: dict[str, Case] = {}
    for line in file.read_text().splitlines(keepends=True) if file.exists() else ():
        if not line.endswith("\n"):  # it is being written
            break
        name, outcome, *rest = json.loads(line)
        running = name if outcome == BEGIN else ""
        if outcome != BEGIN:
            cases[name] = Case(outcome, *rest)
    return Record(
        cases, running, token(folder, rank).exists() and NO_RESULT not in token(folder, rank).read_text()
    )


def clear(folder: Path) -> None:
    """Forget an earlier run."""
    for old in [*folder.glob("rank-*"), *folder.glob("cases-*"), *folder.glob("output-*")]:
        old.unlink()


def merge(folder: Path, nranks: int) -> dict[str, Case]:
    """Every case once: it passed where all ranks ran it and none failed; a rank that left no result is a failure too."""
    records = [read(folder, rank) for rank in range(nranks)]
    names = dict.fromkeys(name for record in records for name in (*record.cases, record.running) if name)
    merged = {name: _over_ranks(name, records) for name in names}
    for rank, record in enumerate(records):
        if not record.ended and not record.running:
            merged[f"rank {rank}"] = Case(
                FAILED, 0.0, f"left no result after {next(reversed(record.cases), 'its start')}"
            )
    return merged


def _over_ranks(name: str, records: list[Record]) -> Case:
    found = [record.cases.get(name) for record in records]
    ran = [one for one in found if one]
    seconds = max((one.seconds for one in ran), default=0.0)
    notes = {
        "failed": [rank for rank, one in enumerate(found) if one and one.outcome == FAILED],
        "ended in it": [rank for rank, record in enumerate(records) if record.running == name],
        "did not run": [
            rank for rank, one in enumerate(found) if one is None and records[rank].running != name
        ],
    }
    wrong = [
        f"{what} on {'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"
        for what, ranks in notes.items()
        if ranks
    ]
    if wrong:
        why = next((one.note for one in ran if one.outcome == FAILED), "")
        return Case(
            FAILED,
            seconds,
            "; ".join([*(wrong if len(records) > 1 else []), *([why] if why else [])]) or "it ended the run",
        )
    if any(one.outcome == PASSED for one in ran):
        return Case(PASSED, seconds)
    return Case(SKIPPED, seconds, ran[0].note)


def tally(cases: Iterable[Case]) -> str:
    """``N passed, M failed``, and how many were skipped where some were."""
    counts = Counter(case.outcome for case in cases)
    text = f"{counts[PASSED]} passed, {counts[FAILED]} failed"
    return text + (f", {counts[SKIPPED]} skipped" if counts[SKIPPED] else "")
