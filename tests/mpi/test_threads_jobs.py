"""Threads of several ranks that make their first communicators at once: what a process knows by then is not alike on all ranks.

Each test starts a job of its own, in which nothing is known yet.
"""

import pytest
from launching import STARTS_JOBS, command, finished

pytestmark = STARTS_JOBS

FIRST = """
import threading
import numpy as np
from mpi4py import MPI
import hpcoll
world, wrong = MPI.COMM_WORLD, []
raws = [world.Dup() for _ in range(4)]
def work(raw):
    for turn in range(4):
        comm, total = hpcoll.Communicator(raw.Dup()), np.zeros(3)
        comm.Allreduce(np.ones(3), total)
        wrong.extend([] if (total == comm.size).all() else [turn])
        comm.Allreduce_init(np.ones(3), total).Free()
        comm.Free()
threads = [threading.Thread(target=work, args=(raw,)) for raw in raws]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("rank", world.rank, "wrong", wrong, flush=True)
"""


@pytest.mark.parametrize("ranks_of_node", [pytest.param(4, marks=pytest.mark.full), 2])
def test_first_communicators(ranks_of_node: int) -> None:
    """On a node, and on two: all are made, and the job ends."""
    done = finished(command(4, FIRST, head=""), {"HPCOLL_SHM_RANKS": str(ranks_of_node)})
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} wrong []" for rank in range(4)], done.stdout + done.stderr[-2000:]
    assert done.returncode == 0
