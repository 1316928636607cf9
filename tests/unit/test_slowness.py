"""Limits on a machine that other programs use, which are longer, and what is skipped there; the reason of a failure."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from outcomes import TOKENS, merge
from slowness import IDLE, VARIABLE, slowed

TESTS = Path(__file__).resolve().parents[1]
BUSY = """
import os, subprocess, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
burning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
try:
    import slowness
    print(slowness.slowness())
finally:
    for one in burning:
        one.kill()
"""
CASES = """
import time
import pytest
@pytest.mark.timeout(1)
def test_takes_two_seconds():
    time.sleep(2)
@pytest.mark.idle
def test_compares_times():
    pass
"""


def run(words: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    outside = {name: value for name, value in os.environ.items() if name not in (VARIABLE, TOKENS)}
    environment = outside | {"PYTHONPATH": str(TESTS)} | variables
    return subprocess.run(
        [sys.executable, *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=slowed(60),
        check=False,
    )


def test_other_programs_are_noticed() -> None:
    assert float(run(["-c", BUSY]).stdout) > 2 > IDLE, "three others have the core"


@pytest.mark.parametrize(("factor", "said"), [("1.0", "Timeout"), ("4.0", "1 passed, 1 skipped")])
def test_limits_follow(factor: str, said: str, tmp_path: Path) -> None:
    """The case that takes twice its limit passes where the machine is four times slower."""
    (tmp_path / "test_cases.py").write_text(CASES)
    done = run(
        ["-m", "pytest", "-rs", "-p", "conftest", "-c", str(TESTS.parent / "setup.cfg"), str(tmp_path)],
        **{VARIABLE: factor},
    )
    assert said in done.stdout + done.stderr, done.stdout + done.stderr
    assert ("test_compares_times needs an idle machine" in done.stdout) == (factor != "1.0")


def test_why_a_case_failed_is_kept_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "test_cases.py").write_text("def test_fails():\n    assert 1 == 2, 'far\\noff'\n")
    words = ["-m", "pytest", "-p", "conftest", "-c", str(TESTS.parent / "setup.cfg"), str(tmp_path)]
    run(words, **{VARIABLE: "1.0", TOKENS: str(tmp_path)})
    assert [case.note for case in merge(tmp_path, 1).values()] == ["AssertionError: far off assert 1 == 2"]
