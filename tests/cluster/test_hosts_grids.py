"""Grids on emulated hosts: `reorder=True` puts neighbours on one host, and the link carries that much less."""

import re

import pytest
from hosts_run import run, said

pytestmark = pytest.mark.usefixtures("hosts")

NBYTES, TIMES = 1 << 16, 8  # of a face, exchanges
# For each grid, by hpcoll's order and by that of the ranks: its hosts, and thousands of bytes that left this rank's host in the exchanges.
GRIDS = """
import hpcoll
from pathlib import Path
comm = hpcoll.Communicator(world)
sent = lambda: int(Path("/proc/net/dev").read_text().partition("eth0:")[2].split()[8])
for dims in ([8], [4, 2], [2, 2, 2], [3]):
    found = []
    for reorder in (True, False):
        grid = comm.Create_cart(dims, True, reorder)
        if grid == MPI.COMM_NULL:
            comm.Barrier(), comm.Barrier()
            continue
        send = np.full((2 * len(dims), NBYTES), grid.rank, "u1")
        recv = np.zeros_like(send)
        grid.Neighbor_alltoall(send, recv)
        comm.Barrier()
        before = sent()
        for _ in range(TIMES):
            grid.Neighbor_alltoall(send, recv)
        comm.Barrier()
        nbytes = sent() - before
        around = [end for axis in range(len(dims)) for end in grid.Shift(axis, 1)]
        assert (recv == np.reshape(around, (-1, 1))).all()
        found += ["".join(name[-1] for name in grid.allgather(MPI.Get_processor_name())), nbytes // 1000]
        grid.Free()
    say("grid" + "x".join(map(str, dims)), *found or ["null"])
"""


def test_fewer_faces_between_hosts() -> None:
    """8 ranks, dealt to two hosts in turn; in a cube they are well placed already. Ranks beyond a grid get no communicator."""
    done = run(
        "-n 2 --ranks-per-host 4 --map cyclic",
        f"NBYTES, TIMES = {NBYTES}, {TIMES}\n{GRIDS}",
        HPCOLL_DEBUG="info",
    )
    grids = {"8": ("00001111", 2, 8), "4x2": ("00001111", 4, 8), "2x2x2": ("01" * 4, 8, 8)}
    for name, (order, *crossing) in grids.items():
        lines = [line.split() for line in said(8, done, f"grid{name}")]
        assert {tuple(line[::2]) for line in lines} == {(order, "01" * 4)}
        for column, faces in zip((1, 3), crossing, strict=True):
            formula = faces * NBYTES * TIMES / 1000  # a face is two messages, one of them from this host
            assert formula <= max(float(line[column]) for line in lines) < 1.1 * formula + 100, (name, faces)
    assert [line.split()[::2] for line in said(8, done, "grid3")] == [["010", "010"]] * 3 + [["null"]] * 5
    assert re.findall(r"INFO (grid .*)", done.stderr) == [
        "grid [8]: 2 faces between nodes, 8 in the order of ranks",
        "grid [4, 2]: 4 faces between nodes, 8 in the order of ranks",
        "grid [2, 2, 2]: 8 faces between nodes, 8 in the order of ranks",
        "grid [3]: 2 faces between nodes, 2 in the order of ranks",
    ]
