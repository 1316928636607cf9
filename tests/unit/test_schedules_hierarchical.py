"""Schedules that look at nodes: proven for placements of all kinds; what leaves a node is what their docstrings say."""

from collections import Counter
from collections.abc import Iterator
from functools import cache

import pytest
from placed_schedules import (
    crossings,
    is_even,
    placements_of,
    schedules,
    some_roots,
    traffic,
)

from hpcoll.analysis.prove import prove
from hpcoll.analysis.verify import Proof
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.placement import Nodes, members, parse_nodes
from hpcoll.schedules.row import Algorithm

ROWS = [row for row in CATALOGUE.values() if row.hierarchical]
NRANKS = (*range(2, 11), 12, 16)
# Rows whose `rounds` is an upper bound even where all nodes are equal: recursive doubling's is one but for powers of two. Where they
# differ it is one for every row: the longest chain need not pass through the largest node. Nothing is collected where a single rank of a
# node has neighbours elsewhere.
UPPER_BOUND = {"allreduce/leaders"}
# who sends most in the tree need not be who sends most on the node
SENT_LESS = {
    "bcast/hierarchical",
    "reduce/hierarchical",
}

every_row = pytest.mark.parametrize("row", ROWS, ids=[row.key for row in ROWS])


@cache
def proofs(key: str) -> list[tuple[Nodes, int, Proof]]:
    """Every placement and some roots, each proven out of place and in place."""
    row = CATALOGUE[key]
    return [
        (nodes, root, prove(row, nranks, root, nodes=nodes))
        for nranks in NRANKS
        for nodes in placements_of(nranks)
        for root in some_roots(row, nranks)
    ]


def settings(row: Algorithm) -> Iterator[tuple[Nodes, int]]:
    for nranks in NRANKS:
        for nodes in placements_of(nranks):
            for root in some_roots(row, nranks):
                yield nodes, root


# --- what rows claim


@every_row
def test_every_placement_is_proven(row: Algorithm) -> None:
    found = proofs(row.key)
    assert len({nodes for nodes, _, _ in found}) >= 100
    assert all(proof.reproducible for _, _, proof in found)


@every_row
def test_order_is_claimed_nowhere_and_kept_not_everywhere(row: Algorithm) -> None:
    assert (row.ordered, row.uniform) == (
        False,
        row.collective == "alltoall" or COLLECTIVES[row.collective].neighbours,
    )
    if COLLECTIVES[row.collective].reduces:
        assert not all(proof.ordered for _, _, proof in proofs(row.key))


@every_row
def test_rounds_are_as_the_row_says(row: Algorithm) -> None:
    exact = 0
    for nodes, root, proof in proofs(row.key):
        rounds = row.cost("rounds", len(nodes), nodes=nodes)
        assert proof.rounds <= rounds, (nodes, root)
        nnodes = len(members(nodes))
        in_turn = not COLLECTIVES[row.collective].neighbours or nodes == tuple(
            rank % nnodes for rank in range(len(nodes))
        )
        if (
            is_even(nodes)
            and nnodes > 1
            and in_turn
            and (row.key not in UPPER_BOUND or nnodes & (nnodes - 1) == 0)
        ):
            assert proof.rounds == rounds, (nodes, root)
            exact += 1
    assert exact > 10


@every_row
def test_the_busiest_rank_sends_at_most_what_the_row_says_and_just_that_where_nodes_are_even(
    row: Algorithm,
) -> None:
    equal = 0
    for nodes, root, proof in proofs(row.key):
        if len(members(nodes)) > 1:
            sent = proof.chunks_sent / schedules(row.key, nodes, root)[0].nchunks
            assert sent <= row.cost("sent", len(nodes), nodes=nodes) + 1e-9, (nodes, root)
            exact = is_even(nodes) and row.key not in SENT_LESS
            assert not exact or sent == pytest.approx(row.cost("sent", len(nodes), nodes=nodes))
            equal += sent == pytest.approx(row.cost("sent", len(nodes), nodes=nodes))
    assert equal > 5


@every_row
def test_with_a_node_for_each_rank_messages_are_those_of_the_flat_algorithm(row: Algorithm) -> None:
    for nranks in NRANKS:
        for root in some_roots(row, nranks):
            alone = tuple(range(nranks))
            ours, theirs = (Counter(crossings(key, alone, root)) for key in (row.key, row.outer))
            assert ours == theirs or (nranks == 2 and COLLECTIVES[row.collective].neighbours), (
                "two edges are one message"
            )
        assert row.cost("rounds", nranks) == CATALOGUE[row.outer].cost("rounds", nranks)


@every_row
def test_only_stripes_reach_other_nodes(row: Algorithm) -> None:
    """As many ranks of each node as the row says."""
    for nodes, root in settings(row):
        stripes = int(row.cost("stripes", len(nodes), nodes=nodes))
        found = list(crossings(row.key, nodes, root))
        for ranks in members(nodes):
            for ends in (
                {one.source for one in found} & set(ranks),
                {one.target for one in found} & set(ranks),
            ):
                assert len(ends) <= stripes
        if not row.uniform:
            for rank in range(len(nodes)):
                partners = {one.target for one in found if one.source == rank} | {
                    one.source for one in found if one.target == rank
                }
                assert len({nodes[partner] for partner in partners}) == len(partners), (
                    "of a stripe, one rank of each node"
                )


# --- what leaves a node


@pytest.mark.parametrize(("collective", "once", "more"), [("bcast", 1, 0), ("reduce", 0, 1)])
def test_a_message_enters_each_node_once_and_leaves_it_at_most_once(
    collective: str, once: int, more: int
) -> None:
    """A broadcast; of a reduction it is the other way round. The root's node has it, or keeps it."""
    row = CATALOGUE[f"{collective}/hierarchical"]
    for nodes, root in settings(row):
        nchunks = schedules(row.key, nodes, root)[0].nchunks
        found = traffic(row.key, nodes, root)
        every = range(len(members(nodes)))
        assert [found[once][node] for node in every] == [nchunks * (node != nodes[root]) for node in every]
        assert max([0, *found[more].values()]) <= nchunks


# --- against flat rows


def total(key: str, nodes: Nodes, root: int = 0) -> float:
    """Return what crosses between nodes: blocks, or sizes of the whole message."""
    blocks = COLLECTIVES[CATALOGUE[key].collective].blocks
    return sum(one.nchunks for one in crossings(key, nodes, root)) / (
        1 if blocks else schedules(key, nodes, root)[0].nchunks
    )


LEAST_VOLUME = [
    f"{collective}/hierarchical"
    for collective in ("allreduce", "bcast", "reduce", "allgather", "reduce_scatter")
]


@pytest.mark.parametrize("key", LEAST_VOLUME)
def test_no_flat_algorithm_moves_less_between_nodes(key: str) -> None:
    collective = CATALOGUE[key].collective
    flat = [row.key for row in CATALOGUE.values() if row.collective == collective and not row.hierarchical]
    less = dict.fromkeys(flat, 0)
    for nranks in (2, 3, 4, 6, 8, 9, 12, 16):
        for nodes in placements_of(nranks):
            ours = total(key, nodes)
            for other in flat:
                assert ours <= total(other, nodes) + 1e-9, (other, nodes)
                less[other] += ours < total(other, nodes) - 1e-9
    assert min(less.values()) > 0, "and each moves more somewhere"


# --- 64 ranks of one node on several caches


@pytest.mark.ci
@pytest.mark.parametrize("key", [row.key for row in ROWS])
@pytest.mark.parametrize("text", ["8", "8:cyclic", "40+24", "32"])
def test_64_ranks_on_cache_domains_are_proven(key: str, text: str) -> None:
    nodes = parse_nodes(text, 64)
    assert prove(CATALOGUE[key], 64, 0, nodes=nodes).reproducible
    assert prove(CATALOGUE[key], 8, 0, nodes=parse_nodes("5+3", 8)).reproducible


@pytest.mark.parametrize(
    ("collective", "across"),
    [
        ("allreduce", 2 * 7 / 8),
        ("bcast", 1),
        ("reduce", 1),
        ("allgather", 56 / 64),
        ("reduce_scatter", 56 / 64),
    ],
)
def test_few_bytes_cross_between_domains(collective: str, across: float) -> None:
    """Into or out of each of 8 domains of 8 ranks; no flat algorithm has fewer, and one has several times as many."""
    blocks, cyclic = (parse_nodes(text, 64) for text in ("8", "8:cyclic"))
    rows = [row for row in CATALOGUE.values() if row.collective == collective]
    flat = [row.key for row in rows if not row.hierarchical]
    for nodes in (blocks, cyclic):
        nchunks = schedules(f"{collective}/hierarchical", nodes)[0].nchunks
        busiest = max(max(found.values()) for found in traffic(f"{collective}/hierarchical", nodes)) / nchunks
        assert busiest == pytest.approx(across)
        others = [
            max(max(found.values()) for found in traffic(key, nodes)) / schedules(key, nodes)[0].nchunks
            for key in flat
        ]
        assert busiest <= min(others)
        assert 4 * busiest <= max(others)
    assert {one.source for one in crossings("allreduce/leaders", blocks)} == set(range(0, 64, 8)), (
        "one rank per domain reads across"
    )
