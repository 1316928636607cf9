"""Placements are read, dealt to nodes and described; what is known of where ranks run, and what that makes messages cost."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from many_processes import processes_of
from test_machine import several_l3, write

from hpcoll.analysis.cost import (
    APART,
    HOSTS,
    HOSTS_NETWORK,
    HPCOLL_NETWORK,
    ONE_HOST,
    STREAMS,
    Levels,
    apart,
    levels_between,
)
from hpcoll.base.errors import ArgumentError
from hpcoll.schedules.placement import Nodes, numbered, parse_nodes, parts
from hpcoll.selection.processes import UNBOUND, bound_to
from hpcoll.selection.topology import Topology, dealt, domains_of, find_topology


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


@pytest.mark.parametrize(
    "text",
    ["", "0", "-2", "1.5", "two", "2+", "+2", "2+0", "2 + 1", "2:round", "2:cyclic:cyclic", ":cyclic", "2,1"],
)
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
def test_hierarchies_look_at_domains_where_there_is_one_node_only(
    nodes: str, domains: str, found: str
) -> None:
    """And where one of several domains has several ranks: else few ranks could not read for others."""
    nodes_, domains_, expected = (parse_nodes(text, 8) for text in (nodes, domains, found))
    assert parts(nodes_, domains_) == expected


def topology(nodes: Nodes, **more: Any) -> Topology:
    nranks = len(nodes)
    hosts = tuple(f"host{node}" for node in nodes)
    return Topology(
        **{"rank": 0, "nodes": nodes, "hosts": hosts, "domains": nodes, "gpus": (0,) * nranks, **more}
    )


def test_costs_are_those_of_the_hosts_unless_they_were_fitted() -> None:
    several, one = ("here", "here", "there"), ("here",) * 3
    assert (levels_between(several, None), levels_between(one, None)) == (HOSTS, ONE_HOST)
    fitted = Levels(HPCOLL_NETWORK, HOSTS_NETWORK._replace(alpha=1.0))
    assert levels_between(several, fitted) == levels_between(one, fitted) == fitted


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({}, "2 nodes of 2 ranks, by blocks"),
        ({"hosts": ("a", "a", "a", "a")}, "2 nodes of 2 ranks, by blocks; on 1 host"),
        ({"hosts": ("a", "b", "c", "c")}, "2 nodes of 2 ranks, by blocks; on 3 hosts"),
        ({"domains": (0, 1, 2, 3)}, "2 nodes of 2 ranks, by blocks; 4 cache domains of 1 rank"),
        (
            {"domains": (0, 0, 1, 2)},
            "2 nodes of 2 ranks, by blocks; 3 cache domains of 1 to 2 ranks, by blocks",
        ),
        ({"gpus": (4, 4, 4, 4)}, "2 nodes of 2 ranks, by blocks; 4 GPUs per host"),
        ({"gpus": (0, 0, 8, 8)}, "2 nodes of 2 ranks, by blocks; 0 to 8 GPUs per host"),
        (
            {"hosts": ("a",) * 4, "domains": (0, 1, 2, 3), "gpus": (2, 2, 2, 2)},
            "2 nodes of 2 ranks, by blocks; 4 cache domains of 1 rank; on 1 host; 2 GPUs per host",
        ),
    ],
)
def test_it_says_what_it_is(more: dict[str, Any], text: str) -> None:
    assert str(topology((0, 0, 1, 1), **more)) == text


# --- cache domains


@pytest.mark.parametrize(
    ("cores", "domain"),
    [
        ({0}, 0),
        ({9}, 8),
        ({8, 15, 72}, 8),
        (set(range(8)), 0),
        ({64 + 33}, 32),
        ({7, 8}, UNBOUND),
        (set(range(32)), UNBOUND),
        (set(range(128)), UNBOUND),
    ],
)
def test_a_rank_is_bound_to_a_domain_if_all_its_cores_are_there(
    cores: set[int], domain: int, tmp_path: Path
) -> None:
    """On two sockets of 4 caches of 8 cores of two hardware threads each: the domain's number is its lowest core."""
    cpus = write(tmp_path, {core: several_l3(core) for core in cores})
    assert bound_to(frozenset(cores), cpus) == domain


def test_of_a_system_that_hides_its_caches_no_rank_is_bound(tmp_path: Path) -> None:
    assert bound_to(frozenset({0}), tmp_path) == UNBOUND


def placed(
    hosts: str, bound: list[int], found: list[tuple[int, bool]], per_domain: tuple[int, ...] = ()
) -> Topology:
    firsts, sharing = np.array(found).T
    processes = processes_of(list(hosts), bound, firsts.tolist())
    return find_topology(0, processes, firsts, sharing.astype(bool), per_domain)


def test_64_ranks_on_8_caches(tmp_path: Path) -> None:
    """Bound core by core, in order and in turn on the caches."""
    cpus = write(tmp_path, {core: several_l3(core) for core in range(64)})
    bound = [bound_to(frozenset({core}), cpus) for core in range(64)]
    turn = [bound[rank % 8 * 8 + rank // 8] for rank in range(64)]
    for who, text in ((bound, "8"), (turn, "8:cyclic")):
        found = placed("a" * 64, who, [(0, True)] * 64)
        assert found.nodes == (0,) * 64
        assert found.domains == found.parts == parse_nodes(text, 64)
    assert str(found) == "1 node of 64 ranks; 8 cache domains of 8 ranks, cyclic"


def test_a_node_with_an_unbound_rank_is_one_domain() -> None:
    """Other nodes are what they are; domains with the same number on two hosts are two."""
    found = placed("aaaabbbb", [0, 0, 8, 8, 0, 8, UNBOUND, 8], [(0, True)] * 4 + [(4, True)] * 4)
    assert found.domains == (0, 0, 1, 1, 2, 2, 2, 2)
    assert found.parts == found.nodes == (0, 0, 0, 0, 1, 1, 1, 1)
    assert domains_of((0, 0), (0, UNBOUND)) == (0, 0)


def test_ranks_that_share_no_memory_have_no_domains() -> None:
    """Their messages are the MPI library's, which cost what they cost: whatever the caches, and whatever the variable says."""
    for sizes in ((), (2,)):
        assert placed("aaaa", [0, 0, 8, 8], [(0, False)] * 4, sizes).domains == (0,) * 4
        assert placed("aaaa", [0, 0, 8, 8], [(0, True)] * 4, sizes).domains == (0, 0, 1, 1)


@pytest.mark.parametrize(
    ("sizes", "nodes", "domains"),
    [
        ((2,), (0, 0, 0, 0), (0, 0, 1, 1)),
        ((2, 3), (0,) * 5, (0, 0, 1, 1, 1)),
        ((3, 1), (0,) * 5, (0, 0, 0, 1, 2)),
        ((8,), (0,) * 5, (0,) * 5),
        ((2,), (0, 0, 0, 1, 1), (0, 0, 1, 2, 2)),
        ((2,), (0, 1, 0, 1, 0), (0, 1, 0, 1, 2)),
        ((1, 2**63 - 1, 5), (0,) * 5, (0, 1, 1, 1, 1)),
    ],
)
def test_sizes_of_domains_may_be_set(sizes: tuple[int, ...], nodes: Nodes, domains: Nodes) -> None:
    """Against what ranks are bound to; nodes of any size, and communicators of some ranks, take as many domains as they need."""
    assert (
        placed(
            "a" * len(nodes), [0] * len(nodes), [(nodes.index(node), True) for node in nodes], sizes
        ).domains
        == domains
    )
    assert domains_of(nodes, dealt(nodes, sizes)) == domains


def test_costs_on_and_between_what_hierarchies_look_at() -> None:
    one, eight = (0,) * 64, parse_nodes("8", 64)
    assert ONE_HOST.on_parts(one, one) == ONE_HOST, "caches are not known"
    assert ONE_HOST.on_parts(one, tuple(range(64))) == ONE_HOST, "nobody shares one"
    between = ONE_HOST.on_parts(one, eight)
    assert (between.node, between.network) == (ONE_HOST.node, apart(ONE_HOST.node))
    assert between.network.alpha == APART * ONE_HOST.node.alpha
    assert (between.network.streams, ONE_HOST.node.streams) == (STREAMS, 1)
    assert HOSTS.on_parts(eight, parse_nodes("4", 64)) == Levels(apart(HOSTS.node), HOSTS.network), (
        "a node is as slow as its domains"
    )
    assert HOSTS.on_parts(eight, eight) == HOSTS
    own = HOSTS._replace(domains=HPCOLL_NETWORK)
    assert own.on_parts(one, eight).network == own.across() == HPCOLL_NETWORK
