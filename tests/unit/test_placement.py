"""Placements: read from text, dealt to nodes, described."""

import random

import pytest

from hpcoll.base.errors import ArgumentError
from hpcoll.schedules.placement import blocks, cyclic, describe, members, numbered, parse_nodes, parts


@pytest.mark.parametrize(
    ("text", "nranks", "nodes"),
    [
        ("1", 1, (0,)),
        ("1", 3, (0, 1, 2)),
        ("3", 3, (0, 0, 0)),
        ("9", 3, (0, 0, 0)),
        ("2", 6, (0, 0, 1, 1, 2, 2)),
        ("2", 5, (0, 0, 1, 1, 2)),
        ("2:block", 5, (0, 0, 1, 1, 2)),
        ("2:", 5, (0, 0, 1, 1, 2)),
        ("2:cyclic", 5, (0, 1, 2, 0, 1)),
        ("3:cyclic", 7, (0, 1, 2, 0, 1, 0, 1)),
        ("3+1+2", 6, (0, 0, 0, 1, 2, 2)),
        ("3+1+2:cyclic", 6, (0, 1, 2, 0, 2, 0)),
        ("1+5:cyclic", 6, (0, 1, 1, 1, 1, 1)),
        ("06", 6, (0,) * 6),
    ],
)
def test_text(text: str, nranks: int, nodes: tuple[int, ...]) -> None:
    assert parse_nodes(text, nranks) == nodes


@pytest.mark.parametrize("text", ["", "0", "-2", "1.5", "two", "2+", "+2", "2+0", "2 + 1", "2:round", "2:cyclic:cyclic", ":cyclic", "2,1"])
def test_text_that_means_nothing(text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        parse_nodes(text, 3)
    assert str(caught.value) == f"nodes must look like 6, 3+1+4 or 2:cyclic, got {text!r}"


@pytest.mark.parametrize(("text", "together"), [("1+1", 2), ("2+2", 4), ("3+3:cyclic", 6)])
def test_sizes_that_do_not_add_up(text: str, together: int) -> None:
    with pytest.raises(ArgumentError) as caught:
        parse_nodes(text, 3)
    assert str(caught.value) == f"nodes {text!r} have {together} ranks together, expected 3"


def test_nodes_are_numbered_as_their_lowest_ranks_come() -> None:
    assert numbered("cabbac") == (0, 1, 2, 2, 1, 0)
    assert numbered([7, (1, 2), 7]) == (0, 1, 0)
    assert numbered([]) == ()


@pytest.mark.parametrize("seed", range(20))
def test_members_are_the_ranks_of_each_node_in_order(seed: int) -> None:
    rng = random.Random(seed)
    nodes = numbered(rng.randrange(5) for _ in range(rng.randrange(1, 12)))
    found = members(nodes)
    assert sorted(rank for ranks in found for rank in ranks) == list(range(len(nodes)))
    assert all(list(ranks) == sorted(ranks) for ranks in found)
    assert [ranks[0] for ranks in found] == sorted(ranks[0] for ranks in found), "nodes in the order of their lowest ranks"
    assert all(nodes[rank] == node for node, ranks in enumerate(found) for rank in ranks)
    assert members(()) == ()


@pytest.mark.parametrize("sizes", [[1], [4], [1, 1, 1], [2, 2], [3, 1, 4], [1, 4, 2], [5, 1, 1, 3]])
def test_ranks_are_dealt_by_blocks_and_in_turn(sizes: list[int]) -> None:
    assert list(blocks(sizes)) == sorted(blocks(sizes))
    assert list(map(len, members(blocks(sizes)))) == sizes
    dealt = cyclic(sizes)
    assert list(map(len, members(dealt))) == sizes
    in_turn = [node for turn in range(max(sizes)) for node, size in enumerate(sizes) if turn < size]
    assert list(dealt) == in_turn


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        ((0,), "1 node of 1 rank"),
        ((0, 0, 0), "1 node of 3 ranks"),
        ((0, 1, 2), "3 nodes of 1 rank"),
        ((0, 0, 1, 1), "2 nodes of 2 ranks, by blocks"),
        ((0, 1, 0, 1), "2 nodes of 2 ranks, cyclic"),
        ((0, 1, 1, 0), "2 nodes of 2 ranks, in another order"),
        ((0, 0, 0, 1), "2 nodes of 1 to 3 ranks, by blocks"),
        ((0, 1, 2, 0, 2), "3 nodes of 1 to 2 ranks, cyclic"),
    ],
)
def test_description(nodes: tuple[int, ...], text: str) -> None:
    assert describe(nodes) == text


@pytest.mark.parametrize(
    ("nodes", "domains", "found"),
    [
        ("8", "4", "4"),
        ("8", "5+3", "5+3"),
        ("8", "8", "8"),
        ("8", "1", "8"),
        ("8", "2:cyclic", "2:cyclic"),
        ("4", "2", "4"),
        ("4", "1", "4"),
        ("1", "1", "1"),
    ],
)
def test_hierarchies_look_at_domains_where_there_is_one_node_only(nodes: str, domains: str, found: str) -> None:
    """And where one of several domains has several ranks: else few ranks could not read for others."""
    nodes_, domains_, expected = (parse_nodes(text, 8) for text in (nodes, domains, found))
    assert parts(nodes_, domains_) == expected


def test_domains_are_described_as_nodes_are() -> None:
    assert describe(blocks([5, 3]), "cache domain") == "2 cache domains of 3 to 5 ranks, by blocks"
    assert describe((0, 0), "cache domain") == "1 cache domain of 2 ranks"
