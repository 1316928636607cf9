"""Soaks as jobs of their own: a few seconds in the short run, minutes in the long one."""

import re
from pathlib import Path
from typing import Any

import pytest
from launching import MESSAGES, STARTS_JOBS, finished, launch
from mpi4py import MPI
from reference import SOON_S
from slowness import slowed

pytestmark = STARTS_JOBS

KILLED_S, LONG_S = 60, 100  # of the second for each of six soaks in the long run
NOTED_MS = 1000  # until a rank knows, as a rule: other programs may use the cores


@pytest.mark.parametrize(
    ("nranks", "seconds", "way"),
    [
        (3, 6, {}),
        *(pytest.param(n, LONG_S, way, marks=pytest.mark.full) for n in (2, 4, 5) for way in ({}, MESSAGES)),
    ],
)
@pytest.mark.timeout(3 * LONG_S)
@pytest.mark.idle
def test_soak(nranks: int, seconds: int, way: dict[str, str]) -> None:
    """All answers are right, every fault is noticed by every rank, soon, and communicators go on after it."""
    done = job("soak.py", nranks, [seconds, seconds + nranks], way, seconds + 60)
    counts = r"'calls': (\d+), 'faults': (\d+), 'lost': (\d+), 'timed out': \d+, 'median ms': (\d+), 'slowest ms': \d+"
    found = re.search(rf"soak: \{{{counts}, 'wrong': 0, 'late': 0\}}", done.stdout)
    assert found, done.stdout + done.stderr[-3000:]
    ncalls, nfaults, nlost, median_ms = map(int, found.groups())
    assert ncalls >= 20
    assert nfaults > nlost
    assert nlost >= 1 or way
    assert median_ms < NOTED_MS


@pytest.mark.skipif(
    MPI.ERR_PROC_FAILED == MPI.ERR_REVOKED, reason="the MPI library knows no failures of ranks"
)
@pytest.mark.parametrize(
    ("nranks", "seed", "way"),
    [
        (3, 1, {}),
        *(pytest.param(n, 10 + n, way, marks=pytest.mark.full) for n in (2, 4, 5) for way in ({}, MESSAGES)),
    ],
)
def test_killed(nranks: int, seed: int, way: dict[str, str]) -> None:
    """Under ULFM all others raise, soon, name the rank, and go on without it, until one is left."""
    done = job("soak_killed.py", nranks, [seed], way, slowed(KILLED_S), "--with-ft", "ulfm")
    found = re.search(rf"killed: {nranks - 1}, calls: \d+, slowest: (\d+\.\d+) s", done.stdout)
    assert found, done.stdout + done.stderr[-3000:]
    assert float(found[1]) < SOON_S


@pytest.mark.parametrize(
    ("seed", "way"),
    [
        (2, MESSAGES),
        pytest.param(1, {}, marks=pytest.mark.full),
    ],
)
def test_killed_for_good(seed: int, way: dict[str, str]) -> None:
    """Without ULFM the job ends by itself, with an error, and no answer was wrong."""
    done = job("soak_killed.py", 3, [seed], way, slowed(KILLED_S))
    assert done.returncode != 0
    assert "AssertionError" not in done.stderr, done.stderr[-3000:]
    assert "Timeout (" not in done.stderr, done.stderr[-3000:]
    assert "killed: " not in done.stdout


def job(
    program: str, nranks: int, arguments: list[int], way: dict[str, str], limit_s: float, *options: str
) -> Any:
    """Run a program of this folder to its end, with the tests' own modules."""
    here = Path(__file__)
    words = [str(here.with_name(program)), *map(str, arguments)]
    return finished(launch(nranks, words, options), {**way, "PYTHONPATH": str(here.parents[1])}, limit_s)
