"""Neighbourhood collectives: the ends of edges, and proofs of their rows on grids and on random graphs."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from placed_schedules import placements_of

from hpcoll.analysis.cost import HOSTS
from hpcoll.analysis.prove import prove, prove_schedules, random_graph
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.graph import Graph, grid, ring
from hpcoll.schedules.ir import Op, Schedule
from hpcoll.schedules.patterns.bundles import GraphTraffic, graph_traffic
from hpcoll.schedules.placement import Nodes, parse_nodes
from hpcoll.schedules.row import Algorithm, schedule
from hpcoll.selection.choice import Need
from hpcoll.selection.choose import choose
from hpcoll.selection.config import Config

ROWS = [row for row in CATALOGUE.values() if COLLECTIVES[row.collective].neighbours]
GRIDS = (
    ((1,), (True,)),
    ((2,), (False,)),
    ((2, 2), (True, True)),
    ((5, 3), (True, False)),
    ((2, 2, 2), (True,) * 3),
    ((3, 1, 4), (False, True, False)),
)

every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)


def random_graphs(n: int) -> Iterator[Graph]:
    """Graphs of 1 to 9 ranks: no, few and many edges."""
    for seed in range(n):
        rng = random.Random(seed)
        nranks = rng.randint(1, 9)
        yield random_graph(nranks, rng.choice((0, 1, 4, 12)) * nranks, rng)


@every_row
def test_grids_and_random_graphs_are_proven(row: Algorithm) -> None:
    """Blocks of all edges have sizes of their own. No rank waits for a slot for ever, however many edges are between two of them."""
    for graph in (*(grid(*one) for one in GRIDS), *random_graphs(200)):
        proof = prove(row._replace(graph=graph), len(graph.targets))
        assert proof.chunks_sent <= max(map(len, graph.targets), default=0)


def sent(schedules: Sequence[Schedule]) -> list[tuple[int, int, int]]:
    """Sender, receiver and blocks of all messages."""
    return [
        (one.rank, step.peer, step.srcs[0].n)
        for one in schedules
        for steps in one.channels
        for step in steps
        if step.op == Op.SEND
    ]


def most(
    messages: Sequence[tuple[int, int, int]], blocks: bool, of: Sequence[int], ends: Sequence[int] = (0, 1)
) -> int:
    """Messages, or blocks in them, of whoever sends most or receives most."""
    found = [
        Counter(of[one[end]] for one in messages for _ in range(one[2] if blocks else 1)) for end in ends
    ]
    return max((n for one in found for n in one.values()), default=0)


@every_row
def test_graphs_on_nodes_are_proven_and_counted(row: Algorithm) -> None:
    """Formulas of costs hang on what is counted. One message at most goes from a node to another, a block of an allgather once."""
    once = row.collective == "neighbor_allgather"
    for graph in (*(grid(*one) for one in GRIDS), *random_graphs(40)):
        nranks = len(graph.targets)
        for nodes in placements_of(nranks):
            schedules = [
                schedule(row._replace(graph=graph), nranks, rank, nodes=nodes) for rank in range(nranks)
            ]
            prove_schedules(row, schedules)
            found = sent(schedules)
            near, far = (
                [one for one in found if (nodes[one[0]] == nodes[one[1]]) is same] for same in (True, False)
            )
            counted = graph_traffic(graph, nodes, once, row.hierarchical)
            alone = range(nranks)
            assert counted == GraphTraffic(
                graph.degree,
                most(far, False, alone),
                most(near, False, alone),
                most(near, True, alone),
                max((one[2] for one in far), default=0),
                most(far, True, nodes),
                most(found, True, alone, [0]),
                most(found, True, alone, [1]),
            )
            if row.hierarchical:
                between = Counter((nodes[source], nodes[target]) for source, target, _ in far)
                edges = {
                    (rank, 0 if once else i, nodes[end[0]])
                    for rank in alone
                    for i, end in enumerate(graph.targets[rank])
                    if end
                }
                assert set(between.values()) <= {1}
                assert sum(one[2] for one in far) == sum(nodes[rank] != node for rank, _, node in edges)


def test_bundles_are_chosen_where_they_spare_messages() -> None:
    """Short blocks of ranks dealt to the nodes in turn; not long ones, and not where a single rank has neighbours on another node."""

    def chosen(graph: Graph, nodes: Nodes, nbytes: int) -> str:
        nranks = len(nodes)
        need = Need(
            "neighbor_alltoall",
            nranks,
            nbytes * graph.degree,
            nodes=nodes,
            levels=HOSTS,
            graph=graph,
            native=False,
        )
        return choose(need, Config()).algorithm

    for graph in (ring(8), grid([2, 2, 2], [True] * 3)):
        assert [chosen(graph, parse_nodes("4:cyclic", 8), nbytes) for nbytes in (8, 1 << 20)] == [
            "hierarchical",
            "direct",
        ]
    assert [chosen(ring(8), parse_nodes("4", 8), nbytes) for nbytes in (8, 1 << 20)] == ["direct", "direct"]


def test_grids_cross_their_blocks_and_end_at_open_edges() -> None:
    """Rank 1 of an open line of three has two neighbours, its ends have one; a ring of one rank sends to itself, up to down."""
    assert grid([3], [False]).targets == ((None, (1, 0)), ((0, 1), (2, 0)), ((1, 1), None))
    assert grid([1], [True]).sources == (((0, 1), (0, 0)),)
    for dims, periods in GRIDS:
        graph = grid(dims, periods)
        for rank, ends in enumerate(graph.targets):
            for index, end in enumerate(ends):
                assert end is None or graph.sources[end[0]][end[1]] == (rank, index)
