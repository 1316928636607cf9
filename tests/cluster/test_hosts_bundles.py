"""Exchanges with neighbours on emulated hosts: what the link carries is what the catalogue counts, by each algorithm."""

from itertools import product

import pytest
from hosts_run import LIMIT_S, run, said
from test_hosts_collectives import JOB_LIMIT_S, compiled

from hpcoll.schedules.graph import grid, matched
from hpcoll.schedules.patterns.bundles import graph_traffic
from hpcoll.schedules.placement import parse_nodes

pytestmark = [pytest.mark.usefixtures("hosts"), pytest.mark.timeout(1.2 * (LIMIT_S + JOB_LIMIT_S))]

LONG, TIMES = 1 << 16, 100  # bytes of a long block; exchanges of short ones
NODES = parse_nodes("4:cyclic", 8)
OTHERS = [[peer for peer in range(8) if peer != rank] for rank in range(8)]
GRAPHS = {"ring": grid([8], [True]), "cube": grid([2, 2, 2], [False] * 3), "all": matched(OTHERS, OTHERS)}
# For each graph, collective and algorithm: thousands of bytes of an exchange of long blocks, and packets of short ones per exchange, that
# left this rank's host.
EXCHANGES = """
import hpcoll
from pathlib import Path
comm = hpcoll.Communicator(world)
def sent():
    comm.Barrier()
    words = Path("/proc/net/dev").read_text().partition("eth0:")[2].split()
    comm.Barrier()
    return np.array([int(words[8]), int(words[9])])
ring, cube = comm.Create_cart([8], True), comm.Create_cart([2, 2, 2], False)
every = [rank for rank in range(8) if rank != comm.rank]
for name, graph in (("ring", ring), ("cube", cube), ("all", comm.Create_dist_graph_adjacent(every, every))):
    peers = every if name == "all" else [end for axis in range(graph.ndim) for end in graph.Shift(axis, 1)]
    for collective in ("alltoall", "allgather"):
        for algorithm in ("direct", "hierarchical"):
            found = []
            for count, times in ((LONG, 1), (1, TIMES)):
                send = np.full((len(peers) if collective == "alltoall" else 1, count), comm.rank, "u1")
                recv = np.full((len(peers), count), 99, "u1")
                call = getattr(graph, "Neighbor_" + collective)
                call(send, recv, algorithm=algorithm)
                assert (recv == np.reshape([99 if peer < 0 else peer for peer in peers], (-1, 1))).all(), (name, algorithm, recv)
                before = sent()
                for _ in range(times):
                    call(send, recv, algorithm=algorithm)
                found.append((sent() - before) / times)
            say("-".join((name, collective, algorithm)), int(found[0][0] // 1000), round(found[1][1], 1))
"""


def test_bytes_and_messages_between_hosts_are_as_the_formulas_say() -> None:
    """8 ranks, dealt to two hosts in turn. An allgather in bundles sends a block once, however many ranks of the other host want it."""
    compiled()
    done = run(
        "-n 2 --ranks-per-host 4 --map cyclic", f"LONG, TIMES = {LONG}, {TIMES}\n{EXCHANGES}", JOB_LIMIT_S
    )
    for name, collective, algorithm in product(GRAPHS, ("alltoall", "allgather"), ("direct", "hierarchical")):
        once, bundled = collective == "allgather", algorithm == "hierarchical"
        graph = GRAPHS[name]
        assert graph is not None
        blocks = graph_traffic(graph, NODES, once, bundled).x
        for line in said(8, done, f"{name}-{collective}-{algorithm}"):
            thousands, packets = map(float, line.split())
            assert blocks * LONG / 1000 <= thousands + 1 < 1.1 * blocks * LONG / 1000 + 100, (
                name,
                collective,
                algorithm,
                line,
            )
            messages = 1 if bundled else blocks
            assert 0.9 * messages <= packets <= 3 * messages + 1, (name, collective, algorithm, line)
