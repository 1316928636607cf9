"""Ranks that leave, all of them, or the last one: of that the others hear without shared memory, too, on communicators of some ranks.

Each test starts a job of its own, so they run once: where this one has a single rank.
"""

import re
import time

import pytest
from launching import LIMIT_S, MESSAGES, STARTS_JOBS, command, finished, spoken
from mpi4py import MPI
from reference import SOON_S

pytestmark = STARTS_JOBS

NRANKS = 4  # of which the last one leaves
JOB = """
import sys, time
import mpi4py
mpi4py.rc.thread_level = LEVEL
import numpy as np
from mpi4py import MPI
import hpcoll
world = MPI.COMM_WORLD
def say(*words):
    sys.stdout.write(" ".join(map(str, ("rank", world.rank, *words))) + "\\n")
    sys.stdout.flush()
found = [world.Split(color, key) for color, key in COMMS(world.rank)]
comms = [hpcoll.Communicator(one) for one in found if one != MPI.COMM_NULL]
x, y = np.ones(8), np.zeros(8)
for comm in comms:
    for _ in range(3):
        comm.Allreduce(x, y)
        assert (y == comm.size).all()
if world.rank == world.size - 1:
    END
time.sleep(LATE)
for comm in comms:
    begun = time.monotonic()
    try:
        comm.Allreduce(x, y)
        say("went on")
    except hpcoll.HpcollError as error:
        say(f"{time.monotonic() - begun:.2f}", type(error).__name__, error)
"""
COMMS = {  # what each rank splits the world by, once and again
    "reversed": "lambda rank: [(0, -rank)]",
    "all but the first": "lambda rank: [(0 if rank else MPI.UNDEFINED, rank), (0 if rank != 1 else MPI.UNDEFINED, rank)]",
}


def job(
    comms: str, end: str, late_s: float = 0, level: str = "multiple"
) -> tuple[dict[int, list[str]], str, int, float]:
    """Return what each rank said, what was complained of, the exit status, and seconds until the job's end."""
    script = f"COMMS, LATE, LEVEL = {COMMS[comms]}, {late_s}, {level!r}\n" + JOB.replace("END", end)
    begun = time.monotonic()
    done = finished(command(NRANKS, script, head=""), MESSAGES)
    return spoken(NRANKS, done.stdout), done.stderr, done.returncode, time.monotonic() - begun


@pytest.mark.once
@pytest.mark.parametrize(
    ("comms", "end", "late_s", "level"),
    [
        ("all but the first", "raise ValueError('mine')", 0, "multiple"),
        ("all but the first", "sys.exit(0)", 1.5, "funneled"),
        pytest.param("reversed", "raise ValueError('mine')", 1.5, "multiple", marks=pytest.mark.full),
    ],
)
def test_the_others_are_told(comms: str, end: str, late_s: float, level: str) -> None:
    """Soon, those that wait when it ends, and those that wait for it only later, in each communicator that it belongs to."""
    said, errors, _, _ = job(comms, end, late_s, level)
    how = r"was ended by ValueError: mine" if "raise" in end else "has ended its program"
    for rank in range(NRANKS - 1):
        assert len(said[rank]) == (2 if rank == 2 and comms != "reversed" else 1), (said, errors)
        for text in said[rank]:
            found = re.fullmatch(rf"(\d+\.\d\d) PeerFailed .*: rank \d \(process \d+ on \S+\) {how}", text)
            assert found, (said, errors)
            assert float(found[1]) < SOON_S, said
    assert said[NRANKS - 1] == []


def test_all_leave() -> None:
    """At once, or nearly: nobody is held up, and nobody is told."""
    said, errors, status, seconds = job("all but the first", "pass")
    assert (status, {text for texts in said.values() for text in texts}) == (0, {"went on"}), (said, errors)
    assert seconds < LIMIT_S / 2


@pytest.mark.skipif(
    "MPICH" not in MPI.Get_library_version(),
    reason="mpirun of Open MPI ends with 1 where a rank leaves by os._exit",
)
def test_all_leave_by_os_exit() -> None:
    """One after the other, without an error: none is lost, and none ends the job."""
    done = finished(
        command(NRANKS, "comm.Barrier()\ntime.sleep(0.2 * comm.rank)\nsay('leaves')\nos._exit(0)"), {}
    )
    assert spoken(NRANKS, done.stdout) == {rank: ["leaves"] for rank in range(NRANKS)}
    assert "MPI_Abort" not in done.stderr


def test_all_are_interrupted() -> None:
    """As some launchers hand it to all, in a call or before it: all end soon, and so does the job, with an error."""
    call = "comm.Iallreduce(x, y).Wait()"
    script = f"""
import signal
x, y = np.ones(8), np.zeros(8)
{call}
world.Barrier()
begun, pid = time.monotonic(), os.getpid()
threading.Timer(0.5, os.kill, (pid, signal.SIGINT)).start()
try:
    comm.rank == 1 and time.sleep({SOON_S})
    {call}
except (KeyboardInterrupt, hpcoll.PeerFailed) as error:
    say(f"{{time.monotonic() - begun:.2f}}", type(error).__name__)
    raise
"""
    done = finished(command(NRANKS, script), MESSAGES)
    said = spoken(NRANKS, done.stdout)
    for rank in range(NRANKS):
        # the second: of another rank's
        found = re.fullmatch(r"(\d+\.\d+) (KeyboardInterrupt|PeerFailed)", "".join(said[rank]))
        assert found, said
        assert float(found[1]) < SOON_S
    assert done.returncode != 0
