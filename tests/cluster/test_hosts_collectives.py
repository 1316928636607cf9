"""hpcoll on emulated hosts: every algorithm gives the right result whatever the placement, and memory is shared within a host only."""

import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest
from hosts_run import LIMIT_S, run, said

from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.placement import describe, members, parse_nodes

JOB_LIMIT_S = 2 * LIMIT_S  # eight ranks beside other tests
pytestmark = [pytest.mark.usefixtures("hosts"), pytest.mark.timeout(1.2 * (LIMIT_S + JOB_LIMIT_S))]

LAYOUTS = {
    "-n 4 --ranks-per-host 2": parse_nodes("2", 8),
    "-n 4 --ranks-per-host 2 --map cyclic": parse_nodes("2:cyclic", 8),
    "--slots 3,1,2": parse_nodes("3+1+2", 6),
    "--slots 3,1,2 --map cyclic": parse_nodes("3+1+2:cyclic", 6),
}
SHORT = ("--slots 3,1,2 --map cyclic",)  # in the short run
layouts = pytest.mark.parametrize(
    "options", [pytest.param(one, marks=() if one in SHORT else pytest.mark.full) for one in LAYOUTS]
)

# Which ranks share memory by MPI, by hpcoll, and by the files in their shared memory; what came along.
WHO = """
import hpcoll, note
from reference import ALGORITHMS, agreed, communicator
comm = communicator()
mine = world.Split_type(MPI.COMM_TYPE_SHARED, world.rank).allgather(world.rank)
near = sorted({world.rank, *comm._context.resources.node.local_peers})
open(f"/dev/shm/rank-{world.rank}", "w").close()
world.Barrier()
seen = sorted(int(name.removeprefix("rank-")) for name in os.listdir("/dev/shm") if name.startswith("rank-"))
say("who", MPI.Get_processor_name(), os.uname().nodename, mine, near, seen, note.TEXT, os.environ["NOTE"], os.getcwd())
"""

# Short messages, many segments, whole large messages; then all that is not a blocking collective with data.
EVERYTHING = """
from forms import Case, issue, prepare
from test_collectives import run, test_barrier
from test_neighbours import blocking, differing, grid, in_flight
cases = [(collective, count, root, dict(algorithm=algorithm, segment=segment)) for collective, algorithm in ALGORITHMS
         for count, root, segment in ((7, comm.size - 1, None), (1009, 1, 640), (20_001, 0, None))]
wrong = [case for case in cases if not run(comm, *case[:3], **case[3])]
ran = {f"{collective}/{more['algorithm']}" for collective, _, _, more in cases}
for algorithm in (*hpcoll.algorithms("barrier"), "native"):
    test_barrier(algorithm)
    ran.add(f"barrier/{algorithm}")
for algorithm in hpcoll.algorithms("allreduce"):
    case = Case(world, "Allreduce", 3001)
    again = prepare(comm, case, algorithm=algorithm)
    for turn in range(4):
        case.fill(turn)
        request = again if turn else issue(comm, case, algorithm=algorithm)
        if turn:
            request.Start()
        request.Wait()
        wrong += [] if case.good() else [("turn", turn, algorithm)]
    again.Free()
dims = [2, comm.size // 2]
around = comm.Create_cart(dims, [True, False])
wrong += differing(around, grid(dims, [True, False]), blocking, in_flight)
ran.update(f"{row.operation}/{row.algorithm}" for row in around.ledger.rows())
say("wrong", agreed(wrong))
say("ran", *sorted(ran))
"""


@cache
def compiled() -> None:
    """Once, and not by all ranks at the same time."""
    subprocess.run([sys.executable, "-c", "import hpcoll.comm.communicator"], check=True, timeout=LIMIT_S)


@cache
def job(options: str) -> subprocess.CompletedProcess[str]:
    """Return one job for all tests of a layout."""
    compiled()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "note.py").write_text("TEXT = 'by PYTHONPATH'\n")
        path = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
        done = run(
            options, WHO + EVERYTHING, JOB_LIMIT_S, PYTHONPATH=path, NOTE="by name", HPCOLL_DEBUG="info"
        )
    if "MPICH cannot" in done.stderr:
        pytest.skip(done.stderr)
    return done


@layouts
def test_hosts_share_nothing_but_the_network(options: str) -> None:
    nodes, done = LAYOUTS[options], job(options)
    for rank, text in enumerate(said(len(nodes), done, "who")):
        name, ranks = f"host{nodes[rank]}", list(members(nodes)[nodes[rank]])
        assert text == f"{name} {name} {ranks} {ranks} {ranks} by PYTHONPATH by name {os.getcwd()}"
    assert describe(nodes) in done.stderr


@layouts
def test_every_algorithm(options: str) -> None:
    nranks, done = len(LAYOUTS[options]), job(options)
    assert said(nranks, done, "wrong") == ["[]"] * nranks
    ran = set(said(nranks, done, "ran")[0].split())
    # by placement; test_hosts_bundles has all
    chosen = {row.key for row in CATALOGUE.values() if COLLECTIVES[row.collective].neighbours}
    assert (ran | chosen) - {f"{collective}/native" for collective in COLLECTIVES} == set(CATALOGUE)
