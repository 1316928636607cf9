"""Ranks on several hosts that no launcher of MPI starts: they meet at an address of rank 0's host, and share memory on each host."""

import subprocess
import sys
from pathlib import Path

import pytest
from hosts_run import HOSTS, LIMIT_S

from hpcoll.launch.ranks import library

pytestmark = [
    pytest.mark.usefixtures("hosts"),
    pytest.mark.skipif(library()[0] != "MPICH", reason="needs MPICH, whose ranks can be started so"),
]
PROGRAM = """
import os, sys
import numpy as np
import hpcoll
rank, nranks = map(int, sys.argv[1:3])
{begin}
from mpi4py import MPI
comm = hpcoll.Communicator(MPI.COMM_WORLD)
x = np.full(100_000, comm.rank + 1.0)
comm.Allreduce(MPI.IN_PLACE, x)
node = comm.Split_type(MPI.COMM_TYPE_SHARED)
said = "rank", comm.rank, "on", os.uname().nodename, "is", node.rank, "of", node.size, "and has", int(x[-1])
os.write(1, (" ".join(map(str, said)) + "\\n").encode())  # whole, beside the others' lines
"""
BY_START = "hpcoll.start(rank, nranks, 'host0:29500', timeout=20)"
SCRIPT = """
rank=0
for host in {hosts}; do
    "$HOSTS_SSH" "$host" "{variables} {python} {program} $rank {nranks}" &
    rank=$((rank + 1))
done
wait
"""
BY_VARIABLES = "RANK=$rank WORLD_SIZE=4 MASTER_ADDR=host0 MASTER_PORT=29500"


@pytest.mark.parametrize(
    ("begin", "variables"),
    [(BY_START, ""), ("", BY_VARIABLES), (BY_START.replace("timeout", "key='ours', timeout"), "")],
    ids=["start", "variables", "key"],
)
def test_ranks_meet(begin: str, variables: str, tmp_path: Path) -> None:
    """Three ranks on one host and one on the other, dealt in turn at first."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(begin=begin))
    script = SCRIPT.format(
        hosts="host0 host1 host0 host0", variables=variables, python=sys.executable, program=program, nranks=4
    )
    done = subprocess.run(
        [str(HOSTS), "--library", "none", "--", "bash", "-c", script],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    places = ["host0 is 0 of 3", "host1 is 0 of 1", "host0 is 1 of 3", "host0 is 2 of 3"]
    said = [line for line in done.stdout.splitlines() if line.startswith("rank")]  # others are UCX's
    assert sorted(said) == [f"rank {n} on {place} and has 10" for n, place in enumerate(places)], done
