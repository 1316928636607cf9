"""Programs whose environment is wrong: where none of them catches the error, one rank of the node prints it, in a line.

Each test starts a job of its own, so they run once: where this one has a single rank.
"""

import os
from pathlib import Path

import pytest
from launching import STARTS_JOBS, command, finished, spoken

pytestmark = [*STARTS_JOBS, pytest.mark.once]

NRANKS = 3
HEAD = """
import sys
from mpi4py import MPI
import hpcoll
def say(*words):
    sys.stdout.write(" ".join(map(str, ("rank", MPI.COMM_WORLD.rank, *words))) + "\\n")
    sys.stdout.flush()
def use():
    hpcoll.Communicator(MPI.COMM_WORLD).Barrier()
"""
TEXT = "environment variable HPCOLL_TIMEOUT: time must be a number of seconds such as 60s, 10m or 500ms, got 'abc'"


@pytest.mark.parametrize("use", ["use()", "hpcoll.Communicator(MPI.COMM_SELF).Barrier()"])
def test_wrong_value_ends_with_a_line(use: str) -> None:
    """Once per node, on a communicator of all ranks and on one of each rank alone, and no rank shows a stack."""
    done = finished(command(NRANKS, use, head=HEAD), {"HPCOLL_TIMEOUT": "abc"})
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if "HPCOLL_TIMEOUT" in line]
    assert [line for line in said if line == f"hpcoll: error: rank 0: {TEXT}"] == said != []
    assert len(said) == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("taken", ["name", "folder"])
def test_a_stranger_cannot_silence_it(taken: str, tmp_path: Path) -> None:
    """Who knows the launcher could take an abstract name of a socket; who is first in /tmp can take a name there."""
    script = """
import os, socket
from hpcoll.runtime.telemetry.status_page import launcher
stranger = socket.socket(socket.AF_UNIX)
try:
    stranger.bind(f"\\0hpcoll-settings-{os.getuid()}-{launcher()}")
except OSError:
    pass
MPI.COMM_WORLD.Barrier()
use()
"""
    if taken == "folder":
        os.mkfifo(tmp_path / f"hpcoll-{os.geteuid()}")
    done = finished(command(NRANKS, script, head=HEAD), {"HPCOLL_TIMEOUT": "abc", "TMPDIR": str(tmp_path)})
    assert f"hpcoll: error: rank 0: {TEXT}" in done.stderr.splitlines()
    assert "Traceback" not in done.stderr


def test_programs_that_see_to_it_themselves() -> None:
    """The error that a program catches, or that its own hook is given, is one on every rank; other errors keep their stacks."""
    script = """
try:
    use()
except hpcoll.ArgumentError as error:
    say(isinstance(error, ValueError), error)
kept, sys.excepthook = sys.excepthook, lambda kind, error, trace: say("hook", kind.__name__)
try:
    use()
except hpcoll.HpcollError:
    assert sys.excepthook.__name__ == "<lambda>"
sys.excepthook = kept
raise KeyError("another")
"""
    done = finished(command(NRANKS, script, head=HEAD), {"HPCOLL_TIMEOUT": "abc"})
    assert spoken(NRANKS, done.stdout) == {rank: [f"True rank 0: {TEXT}"] for rank in range(NRANKS)}
    assert done.stderr.count("KeyError: 'another'") == NRANKS
