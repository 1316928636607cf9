"""Cases that pass without hpcoll must pass with it, on every rank; those of the table and those that fail anyway are skipped by name."""

import json
from pathlib import Path

import outcomes
import pytest
from clients import compare
from clients.table import CLIENTS, Client
from outcomes import FAILED, PASSED, SKIPPED, Case

CLIENT = Client(
    "name", "tests", {2: ("test_*.py",)}, most=2.0, differs={"test_a.py::Type::*": "its own type"}
)


def judged(name: str, plain: str | None, ours: str | None) -> str:
    found = [{name: Case(outcome, 1.0)} if outcome else {} for outcome in (plain, ours)]
    return compare.judged(CLIENT, *found)[name].outcome


@pytest.mark.parametrize(
    ("plain", "ours", "verdict"),
    [
        (PASSED, PASSED, PASSED),
        (PASSED, FAILED, FAILED),
        (PASSED, SKIPPED, FAILED),
        (PASSED, None, FAILED),
        (SKIPPED, SKIPPED, SKIPPED),
        (SKIPPED, FAILED, FAILED),
        (FAILED, FAILED, SKIPPED),
        (FAILED, PASSED, SKIPPED),
        (None, PASSED, FAILED),
    ],
)
def test_verdicts(plain: str | None, ours: str | None, verdict: str) -> None:
    assert judged("test_a.py::Case::test", plain, ours) == verdict


def test_allowed_differences() -> None:
    assert judged("test_a.py::Type::test", PASSED, FAILED) == SKIPPED
    assert judged("test_a.py::Type::test", PASSED, None) == FAILED


@pytest.mark.parametrize("which", [(FAILED, None), (None, FAILED), (FAILED, FAILED)])
def test_a_rank_that_left_no_result_has_failed(which: tuple[str | None, str | None]) -> None:
    assert judged("rank 1", *which) == FAILED


def test_time_is_that_of_the_slowest_rank(tmp_path: Path) -> None:
    for rank in range(2):
        lines = [json.dumps([f"test_a.py::{case}", PASSED, 1.0 + rank * case]) for case in range(3)]
        outcomes.path(tmp_path, rank).write_text("\n".join(lines) + "\n")
    assert compare.seconds(tmp_path, 2) == {"test_a.py": 6.0}


def test_bars() -> None:
    assert not compare.too_long(CLIENT, {"a": 10.0, "b": 20.0}, {"a": 40.0, "b": 25.0})
    assert compare.too_long(CLIENT, {"a": 10.0, "b": 20.0}, {"a": 40.0, "b": 25.1})
    assert "a                                   10.00    40.00  over 2.0 times" in compare.table(
        CLIENT, {"a": 10.0}, {"a": 40.0}
    )


def test_every_exception_has_a_reason() -> None:
    assert all(
        reason
        for client in CLIENTS.values()
        for reason in (*client.left_out.values(), *client.differs.values())
    )
