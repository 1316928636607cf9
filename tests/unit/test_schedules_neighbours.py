"""Neighbourhood collectives: the ends of edges, and proofs of their rows on grids and on random graphs."""

import random
from collections.abc import Iterator

import pytest

from hpcoll.analysis.prove import prove, prove_schedules
from hpcoll.base.errors import ScheduleError
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.graph import NO_RANK, Graph, grid, matched, ring
from hpcoll.schedules.row import Algorithm, schedule

ROWS = [row for row in CATALOGUE.values() if COLLECTIVES[row.collective].neighbours]
GRIDS = (((1,), (True,)), ((2, 2), (True, True)), ((2, 2, 2), (True,) * 3), ((3, 1, 4), (False, True, False)), ((5, 3), (True, False)))

every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)


def random_graphs(n: int) -> Iterator[Graph]:
    """Graphs of 1 to 7 ranks: no, few and many edges, several from a rank to another, self-loops, `NO_RANK`, each side shuffled."""
    for seed in range(n):
        rng = random.Random(seed)
        nranks = rng.randint(1, 7)
        edges = [(rng.randrange(nranks), rng.randrange(nranks)) for _ in range(rng.choice((0, nranks, 4 * nranks, 12 * nranks)))]
        sides = [[[NO_RANK] * rng.randrange(2) + [edge[1 - end] for edge in edges if edge[end] == rank] for rank in range(nranks)]
                 for end in (0, 1)]  # fmt: skip
        for peers in (*sides[0], *sides[1]):
            rng.shuffle(peers)
        graph = matched(*sides)
        assert graph is not None
        yield graph


@every_row
def test_grids_and_random_graphs_are_proven(row: Algorithm) -> None:
    """Blocks of all edges have sizes of their own. No rank waits for a slot for ever, however many edges are between two of them."""
    for graph in (*(grid(*one) for one in GRIDS), *random_graphs(200)):
        proof = prove(row._replace(graph=graph), len(graph.targets))
        assert proof.chunks_sent <= max(map(len, graph.targets), default=0)


def test_a_block_on_the_wrong_edge_is_refused() -> None:
    """With two ranks in a ring both blocks go to the same rank: only the order tells them apart."""
    row = CATALOGUE["neighbor_alltoall/direct"]
    uncrossed = matched([[1, 1], [0, 0]], [[1, 1], [0, 0]])
    schedules = [schedule(row._replace(graph=uncrossed), 2, rank) for rank in range(2)]
    with pytest.raises(ScheduleError):
        prove_schedules(row, [one._replace(graph=ring(2)) for one in schedules])


def test_grids_cross_their_blocks_and_end_at_open_edges() -> None:
    """Rank 1 of an open line of three has two neighbours, its ends have one; a ring of one rank sends to itself, up to down."""
    assert grid([3], [False]).targets == ((None, (1, 0)), ((0, 1), (2, 0)), ((1, 1), None))
    assert grid([1], [True]).sources == (((0, 1), (0, 0)),)
    for dims, periods in GRIDS:
        graph = grid(dims, periods)
        for rank, ends in enumerate(graph.targets):
            for index, end in enumerate(ends):
                assert end is None or graph.sources[end[0]][end[1]] == (rank, index)


def test_edges_without_another_end() -> None:
    """Such graphs, which an MPI library takes too, have no schedule."""
    assert matched([[1], []], [[], []]) is None
    assert matched([[], []], [[], [0]]) is None
    assert matched([[NO_RANK], []], [[], [NO_RANK, NO_RANK]]) is not None
