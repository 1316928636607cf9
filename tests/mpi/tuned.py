"""``hpcoll tune`` on all ranks of a test, on a machine that may be busy with other things, or is made so."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mpi4py import MPI

from hpcoll.cli import main
from hpcoll.cli.tune import search

WORLD = MPI.COMM_WORLD
QUICK = "-b 8 -e 40K -f 4096 --types float32".split()
AMPLE = ["--seconds", "1000"]  # with `brief`: everything is reached, however slowly
PATIENCE_S = (2, 8, 30, 60)  # for what is measured until its time is over


def table_in(folder: Path) -> Path:
    """Return one path for all ranks, in rank 0's folder."""
    return Path(WORLD.bcast(folder / "table.json"))


def tune(*arguments: Any) -> int:
    """Exit code; equal on all ranks, or the test fails on all. Other programs may use the cores."""
    codes = WORLD.allgather(main(["tune", "--busy", *map(str, arguments)]))
    assert codes == codes[:1] * WORLD.size
    return codes[0]


def brief(patch: pytest.MonkeyPatch, *, scouts: int = 1, rounds: int = 1) -> None:
    """Let candidates have few turns, so that a run ends long before its time is over."""
    patch.setattr(search, "EFFORT", search.Effort(scouts, rounds, again_s=0.0, model_s=0.1))


def patiently(attempt: Callable[[int], bool]) -> None:
    """Try with more and more seconds: a busy machine needs longer for the same measurement."""
    assert any(attempt(seconds) for seconds in PATIENCE_S)


@contextmanager
def others() -> Iterator[None]:
    """Let a process of nobody's spin on each core that rank 0 may use; collective."""
    code = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
    cores = sorted(os.sched_getaffinity(0)) if WORLD.rank == 0 else []
    spinning = [subprocess.Popen([sys.executable, "-c", code, str(core)]) for core in cores]
    try:
        WORLD.Barrier()
        yield
    finally:
        for one in spinning:
            one.kill()
            one.wait()
