"""Ctrl-C that reaches every rank of a job.

Each test starts a job of its own, so they run once: where this one has a single rank.
"""

from __future__ import annotations

import re

import pytest
from launching import MESSAGES, command, finished, spoken
from mpi4py import MPI
from reference import SOON_S

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.smoke,
    pytest.mark.skipif(MPI.COMM_WORLD.size > 1, reason="starts jobs of its own: enough in the run on one rank"),
]

NRANKS = 3


@pytest.mark.parametrize(
    ("form", "way"), [("in flight", MESSAGES), *(pytest.param(form, {}, marks=pytest.mark.full) for form in ("blocking", "in flight"))]
)
def test_all_are_interrupted(form: str, way: dict[str, str]) -> None:
    """As some launchers hand it to all, in a call or before it: all end soon, and so does the job, with an error."""
    call = {"blocking": "comm.Allreduce(x, y)", "in flight": "comm.Iallreduce(x, y).Wait()"}[form]
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
    done = finished(command(NRANKS, script), way)
    said = spoken(NRANKS, done.stdout)
    for rank in range(NRANKS):
        found = re.fullmatch(r"(\d+\.\d+) (KeyboardInterrupt|PeerFailed)", "".join(said[rank]))  # the second: of another rank's
        assert found, said
        assert float(found[1]) < SOON_S
    assert done.returncode != 0
