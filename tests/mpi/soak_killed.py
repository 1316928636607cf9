"""A soak in which ranks are killed: random calls in all forms, SIGKILL at a random moment, and the others go on without that rank.

Under ``mpirun --with-ft ulfm`` all others raise `PeerFailed`, which names the rank, and shrink, until one is left, which prints the counts.
Else the job ends. Started as ``python tests/mpi/soak_killed.py SEED``.
"""

import faulthandler
import os
import random
import re
import subprocess
import sys
import time
from typing import Any

from mpi4py import MPI
from soak_case import Call

import hpcoll
from hpcoll import PeerFailed

LONGEST_S = 0.3  # until the next rank is killed
LIMIT_S = 45 * float(os.environ.get("TEST_SLOWNESS", "1"))


def until_killed(comms: list[Any], chance: random.Random) -> tuple[int, float]:
    """Calls until a rank is killed: how many, and seconds until this rank knew; raises where an answer or what it was told is wrong."""
    comm, ncalls, told = comms[0], 0, ""
    for one in comms:
        one.Barrier()  # Open MPI 5.0.11 crashes where a rank fails while others make a communicator, which a first call does
    victim, wait = chance.randrange(comm.size), chance.uniform(0, LONGEST_S)
    pid, at = comm.bcast((os.getpid(), time.monotonic() + wait), root=victim)
    if comm.rank == victim:
        subprocess.Popen(["sh", "-c", f"sleep {wait:.4f}; kill -KILL {pid}"])
    while not told:
        case = Call(chance.choice(comms), chance)
        try:
            assert case.run(), vars(case)
            ncalls += 1
        except PeerFailed as error:
            told = str(error)
    took, rank = time.monotonic() - at, victim if case.comm is comm else comm.size - 1 - victim
    assert re.search(rf"rank {rank} (\(process {pid} on \S+\) )?has (ended: it was killed|failed)", told), (
        told,
        rank,
        pid,
    )
    return ncalls, took


def main(seed: int) -> None:
    """Until one rank is left, which says what happened."""
    comm, ncalls, slowest, nkilled = hpcoll.Communicator(MPI.COMM_WORLD), 0, 0.0, 0
    while comm.size > 1:
        chance = random.Random(seed + comm.size)
        more, took = until_killed([comm, comm.Split(0, -comm.rank)], chance)
        comm = comm.shrink()
        ncalls, slowest, nkilled = ncalls + more, max(slowest, *comm.allgather(took)), nkilled + 1
    print(f"killed: {nkilled}, calls: {ncalls}, slowest: {slowest:.2f} s", flush=True)


if __name__ == "__main__":
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    main(int(sys.argv[1]))
