"""Ctrl-C to the launcher: the first rank prints the part of the summary that it has, wherever the ranks wait.

Each test starts a job of its own, so they run once: where this one has a single rank.
"""

import signal
import subprocess
import time
from pathlib import Path

import pytest
from launching import LIMIT_S, STARTS_JOBS, command, environment

pytestmark = [*STARTS_JOBS, pytest.mark.once]

JOB = """
x, y = np.ones(8), np.zeros(8)
for _ in range(5000):
    comm.Allreduce(x, y)
say("ready")
END
"""
ENDS = {
    "in the MPI library": "world.Recv(x, 1 - comm.rank)",
    "in a collective": "time.sleep(1000) if comm.rank else comm.Allreduce(x, y)",
}


TRIES = 3  # a launcher kills ranks some tenths of a second after it has signalled them, and a busy machine may give them no turn in these


@pytest.mark.parametrize("end", ENDS)
def test_what_one_rank_has_is_printed(end: str, tmp_path: Path) -> None:
    for number in range(TRIES):
        errors = interrupted(JOB.replace("END", ENDS[end]), tmp_path / str(number))
        if errors:
            break
    assert "hpcoll: MPI_COMM_WORLD, 2 ranks: interrupted; rank 0 alone says what it has" in errors
    assert "in 4096 calls that were compared it waited" in errors
    assert "hpcoll: allreduce" in errors


def interrupted(script: str, said: Path) -> str:
    """Return what a job of two ranks complains about that is interrupted when both have said that they are ready."""
    said.touch()
    variables = environment({"HPCOLL_SUMMARY": "1", "SAID": str(said), "OMPI_MCA_mpi_yield_when_idle": "0"})
    job = subprocess.Popen(command(2, script), env=variables, text=True, stdout=-1, stderr=-1)
    limit = time.monotonic() + LIMIT_S
    while said.read_text().count("ready") < 2 and time.monotonic() < limit:
        time.sleep(0.1)
    time.sleep(0.2)  # until the launcher's own handlers are there, and ranks have come to their end
    for _ in range(30):  # MPICH's launcher passes the first on, and ends the job at a later one
        job.send_signal(signal.SIGINT)
        try:
            output, errors = job.communicate(timeout=1)
            break
        except subprocess.TimeoutExpired:
            continue
    else:
        job.kill()
        output, errors = job.communicate()
    print(output, errors)
    return errors
