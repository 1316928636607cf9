"""A run of tests that a signal stops: nothing that it started is left, whatever had started it and whatever it ignores.

Each test starts a job of its own, so they run once: where this one has a single rank.
"""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from launching import LIMIT_S, STARTS_JOBS, environment
from stages import sweep

pytestmark = [*STARTS_JOBS, pytest.mark.once]

TESTS = Path(__file__).resolve().parents[1]
RUN = """
import sys
from pathlib import Path
import stages
python, tests, file, logs = sys.argv[1:]
alone = stages.Stage("alone", (python, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", file), nranks=1, cores=0)
ranks = stages.Stage("ranks", (python, tests + "/mpi_run.py", "2", file), nranks=2, cores=0)
stages.run([alone, ranks], Path(logs))
"""
CASES = """
import os, signal, subprocess, sys, time, uuid
import pytest
STUBBORN = "import signal, time; [signal.signal(one, signal.SIG_IGN) for one in (1, 2, 15)]; open(sys.argv[1], 'w'); time.sleep(300)"
@pytest.mark.parametrize("number", [1, 2])
def test_goes_on(number):
    subprocess.Popen([sys.executable, "-c", "import sys; " + STUBBORN, f"{FOLDER}/{uuid.uuid4()}"], start_new_session=True)
    time.sleep(300)
"""


def left(token: str) -> list[str]:
    """Return the command lines of all processes that have a token in their environment, zombies not counted."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if token.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text())
        except OSError:  # it has ended, or is another user's
            continue
    return found


@pytest.mark.parametrize(
    "name", ["SIGTERM", *(pytest.param(one, marks=pytest.mark.full) for one in ("SIGINT", "SIGHUP"))]
)
def test_nothing_is_left(name: str, tmp_path: Path) -> None:
    """Workers of pytest-xdist, ranks, and processes of theirs in sessions of their own, which ignore signals."""
    token, began, file = str(uuid.uuid4()), tmp_path / "began", tmp_path / "test_goes_on.py"
    began.mkdir()
    file.write_text(CASES.replace("{FOLDER}", str(began)))
    command = [sys.executable, "-c", RUN, sys.executable, str(TESTS), str(file), str(tmp_path / "logs")]
    run = subprocess.Popen(
        ["env", "--default-signal=HUP,INT,TERM", *command],
        env=environment({"TOKEN": token, "PYTHONPATH": str(TESTS)}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        end = time.monotonic() + LIMIT_S
        while len(os.listdir(began)) < 4 and time.monotonic() < end:
            time.sleep(0.05)
        assert len(os.listdir(began)) == 4, "two cases of pytest-xdist, and one on each of two ranks"
        assert len(left(token)) >= 10
        run.send_signal(getattr(signal, name))
        run.communicate(timeout=LIMIT_S)
        assert run.returncode == 128 + getattr(signal, name)
        assert left(token) == []
    finally:
        run.kill()


def test_what_killed_launchers_left(tmp_path: Path) -> None:
    """Folders of launchers that are gone are removed, those of others and what has another name stay."""
    kept = {f"ompi.{os.getpid()}", "ompi.host.0", "other.1"}
    for name in {*kept, f"ompi.{1 << 30}"}:
        (tmp_path / name / "0").mkdir(parents=True)
    sweep(tmp_path)
    assert {folder.name for folder in tmp_path.iterdir()} == kept
