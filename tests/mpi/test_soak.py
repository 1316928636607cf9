"""The soak as a job of its own: a few seconds in the short run, a minute in the long one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from mpi4py import MPI
from test_shm_jobs import MESSAGES, command, environment

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.smoke,
    pytest.mark.skipif(MPI.COMM_WORLD.size > 1, reason="starts jobs of its own: enough in the run on one rank"),
]


@pytest.mark.parametrize(
    ("nranks", "seconds", "way"),
    [(3, 5, {}), (3, 4, MESSAGES), *(pytest.param(n, 30, way, marks=pytest.mark.full) for n in (2, 4, 5) for way in ({}, MESSAGES))],
)
def test_soak(nranks: int, seconds: int, way: dict[str, str]) -> None:
    """All answers are right, every fault is noticed by every rank, soon, and communicators go on after it."""
    starter = command(nranks, "")[:3]
    program = [sys.executable, str(Path(__file__).with_name("soak.py")), str(seconds), str(seconds + nranks)]
    done = subprocess.run(
        [*starter, *program], env=environment(way), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds + 60,
        check=False,
    )  # fmt: skip
    counts = r"'calls': (\d+), 'faults': (\d+), 'lost': (\d+), 'timed out': \d+, 'slowest ms': (\d+), 'wrong': 0, 'late': 0"
    found = re.search(rf"soak: \{{{counts}\}}", done.stdout)
    assert found, done.stdout + done.stderr[-3000:]
    ncalls, nfaults, nlost, _ = map(int, found.groups())
    assert ncalls >= 20
    assert nfaults > nlost
    assert nlost >= 1 or way
