"""Closed-form times where ranks share nodes: links that ranks share, parts on a node and between nodes."""

import pytest
from placed_schedules import is_even, traffic

from hpcoll.analysis.cost import STREAMS, Levels, Network, seconds, seconds_on_nodes
from hpcoll.analysis.prove import placements
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.placement import Nodes, parse_nodes
from hpcoll.schedules.row import Algorithm

WHOLE = 1 << 60
NODE = Network(0.5e-6, 0.1e-9, 0.05e-9, 0.2e-6, eager=1 << 62, handshake=0.0, cache=1 << 62, spill=1.0)
SLOW = Network(20e-6, 1e-9, 0.05e-9, 2e-6, eager=1 << 16, handshake=30e-6, cache=1 << 62, spill=1.0)
FREE = Network(0, 0, 0, 0, eager=1 << 62, handshake=0.0, cache=1 << 62, spill=1.0)
LEVELS = Levels(NODE, SLOW)
BYTES_ONLY = Levels(FREE, FREE._replace(beta=1e-9))
SIZES = (0, 8, 4096, 1 << 16, 1 << 20, 1 << 26)
FLAT, HIERARCHICAL = (
    [row for row in CATALOGUE.values() if row.hierarchical is wanted] for wanted in (False, True)
)


def ids(row: Algorithm) -> str:
    return row.key


def time(key: str, nodes: Nodes, nbytes: float, segment: float = WHOLE, levels: Levels = LEVELS) -> float:
    return seconds_on_nodes(CATALOGUE[key], nodes, nbytes, segment, levels)


# --- flat rows


@pytest.mark.parametrize(
    ("text", "sharers"),
    [("1", 1), ("4", 1), ("4:cyclic", 4), ("2+4+6", 1), ("12", 1), ("2+4+6:cyclic", 4), ("6:cyclic", 6)],
)
def test_ring_neighbours_share_a_link_where_they_are_on_other_nodes(text: str, sharers: int) -> None:
    nodes, row = parse_nodes(text, 12), CATALOGUE["allreduce/ring"]
    assert time(row.key, nodes, 1 << 20, levels=BYTES_ONLY) == pytest.approx(
        sharers * 2 * 11 / 12 * (1 << 20) * 1e-9
    )
    shared = SLOW._replace(beta=sharers * SLOW.beta)
    assert time(row.key, nodes, 1 << 26, 1 << 18) == seconds(row, 12, 1 << 26, 1 << 18, shared)


# --- hierarchical rows


def test_an_allreduce_by_hand() -> None:
    """6 nodes of 4: a reduce_scatter and an allgather of 4 ranks on the node, and between them a circulant of 6 in each of 4 stripes."""
    m, nodes = 1 << 20, parse_nodes("4:cyclic", 24)
    on_node = (
        (1 * NODE.alpha + 2 * NODE.overhead) * 2
        + 3 / 4 * m * (NODE.beta + NODE.gamma)
        + 3 / 4 * m * NODE.beta
    )
    rounds, sent, handshakes = 2 * 3, 2 * 5 / 6 * m / 4, m / 4 / 2 > SLOW.eager
    between = rounds * (SLOW.alpha + handshakes * SLOW.handshake) + sent * (4 * SLOW.beta + SLOW.gamma)
    assert time("allreduce/hierarchical", nodes, m) == pytest.approx(on_node + between)


def test_parts_on_a_node_and_between_nodes_overlap_from_segment_to_segment() -> None:
    """The slower of both sets the pace of those behind the first."""
    nodes, segment, n = parse_nodes("4", 16), 1 << 20, 8
    for levels, slower in ((LEVELS, Levels(FREE, SLOW)), (Levels(SLOW, NODE), Levels(SLOW, FREE))):
        first, all_of_them = (
            time("allreduce/hierarchical", nodes, k * segment, segment, levels) for k in (1, n)
        )
        paces = [time("allreduce/hierarchical", nodes, k * segment, segment, slower) for k in (1, n)]
        assert all_of_them - first == pytest.approx(paces[1] - paces[0])


@pytest.mark.parametrize("row", HIERARCHICAL, ids=ids)
def test_time_grows_with_the_message(row: Algorithm) -> None:
    for nranks in (2, 5, 12, 40):
        for nodes in placements(nranks):
            times = [time(row.key, nodes, m) for m in SIZES]
            assert times == sorted(times)
            assert times[0] >= 0


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reduce_scatter", "alltoall"])
def test_bytes_between_nodes_are_those_of_the_schedules(collective: str) -> None:
    """Where bytes between nodes are all that costs: what leaves a node is in the time, all of it."""
    key = f"{collective}/hierarchical"
    for nodes in (parse_nodes(text, 12) for text in ("2", "3:cyclic", "4", "6:cyclic")):
        assert is_even(nodes)
        m, nchunks = 1 << 20, 12
        leaving = max(traffic(key, nodes)[0].values()) / nchunks * m
        assert time(key, nodes, m, levels=BYTES_ONLY) == pytest.approx(leaving * 1e-9)


# --- cache domains


def test_the_link_of_a_domain_carries_a_few_streams() -> None:
    """8 stripes of 8 domains take as long as two of them one after the other, and 7.1 ranks that send across as 1.8."""
    nodes, m = parse_nodes("8", 64), 1 << 20
    across = BYTES_ONLY.network._replace(streams=STREAMS)
    stripes, direct = (
        time(key, nodes, m, levels=Levels(FREE, across))
        for key in ("allreduce/hierarchical", "alltoall/direct")
    )
    assert stripes == pytest.approx(8 / STREAMS * 2 * 7 / 8 / 8 * m * 1e-9)
    assert direct == pytest.approx(8 * 56 / 63 / STREAMS * 63 / 64 * m * 1e-9)
    assert time("allreduce/ring", nodes, m, levels=Levels(FREE, across)) == time(
        "allreduce/ring", nodes, m, levels=BYTES_ONLY
    )
