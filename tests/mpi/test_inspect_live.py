"""``hpcoll inspect --live`` on a job that runs: from a process beside it, which the ranks know nothing of.

Each test starts a job of its own, so they run once: where this one has a single rank.
"""

from __future__ import annotations

import re
import sys

import pytest
from mpi4py import MPI
from test_shm_jobs import job

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.smoke,
    pytest.mark.skipif(MPI.COMM_WORLD.size > 1, reason="starts jobs of its own: enough in the run on one rank"),
]

# Rank 1 does not come for some seconds; a child of rank 0 looks meanwhile, while its parent waits. Nothing is set up for it.
LOOKED_AT = f"""
import signal, subprocess
COMMAND = [{sys.executable!r}, "-m", "hpcoll", "inspect", "--live", "--once"]
pids = world.allgather(os.getpid())
x, y = np.ones(8), np.zeros(8)
for _ in range(3):
    comm.Allreduce(x, y)
child = None
if comm.rank == 0:
    clean = {{name: text for name, text in os.environ.items() if not name.startswith(("OMPI_", "PMIX_", "PMI_"))}}
    program = f"import subprocess, time; time.sleep(1.5); subprocess.run({{COMMAND!r}}); time.sleep(0.1)"
    child = subprocess.Popen([sys.executable, "-c", program], env=clean, stdout=subprocess.PIPE, text=True)
if comm.rank == 1:
    VICTIM
comm.Allreduce(x, y)
assert (y == comm.size).all()
if child:
    shown = " ".join(child.communicate()[0].split())
    say("pids", *pids)
    say("shown", shown)
"""
SLEEPS = "time.sleep(4)"
STOPS = "os.system(f'(sleep 4; kill -CONT {os.getpid()}) &'); os.kill(os.getpid(), signal.SIGSTOP)"


def shown(victim: str) -> str:
    """What was shown while rank 1 did something else, with a job that then ended well."""
    said, _ = job(3, LOOKED_AT.replace("VICTIM", victim))
    pids, text = re.fullmatch(r"pids (.*)\nshown (.*)\n", said[0]).groups()  # type: ignore[union-attr]
    assert ": 3 ranks on " in text, text
    for rank, pid in enumerate(pids.split()):
        assert re.search(rf" {rank} {pid} (running \d+ %|stopped)", text), text
    for rank in (0, 2):
        assert re.search(rf" {rank} \d+ running \d+ % Allreduce\(float64\[8\], op=SUM\) <string>:\d+ \d\S* m?s rank", text), text
    assert re.search(r"\) at <string>:\d+ on MPI_COMM_WORLD waits for \d\S* m?s: rank 0 waits for rank", text), text
    return text


def test_a_rank_that_computes() -> None:
    """Since when, and after which call; the end of the sentence."""
    text = shown(SLEEPS)
    assert re.search(r" 1 \d+ running \d+ % in no collective since \d\d:\d\d:\d\d, after call 3 on MPI_COMM_WORLD", text), text
    assert re.search(r"rank 1 is in no collective since \d\d:\d\d:\d\d, after call 3 on MPI_COMM_WORLD$", text), text


def test_a_rank_that_is_stopped() -> None:
    """It writes nothing any more, and is shown."""
    assert shown(STOPS).endswith("rank 1 is stopped")


def test_one_descriptor() -> None:
    """However many communicators there are; and those that a process starts do not get it."""
    script = """
import subprocess
comm.Dup().Barrier()
links = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")]
listed = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True, close_fds=False).stdout
say(sum("hpcoll-live" in link for link in links), "hpcoll-live" in listed)
"""
    said, _ = job(2, script)
    assert said == dict.fromkeys(range(2), "1 False\n")
