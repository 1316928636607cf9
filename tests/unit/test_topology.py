"""What is known of where ranks run, and what that makes messages cost."""

from __future__ import annotations

from typing import Any

import mpi4py
import pytest

mpi4py.rc.initialize = False

from hpcoll.analysis.cost import Levels  # noqa: E402
from hpcoll.schedules.placement import Nodes, parse_nodes  # noqa: E402
from hpcoll.selection.choose import HOSTS, HOSTS_NETWORK, HPCOLL_NETWORK, ONE_HOST  # noqa: E402
from hpcoll.selection.topology import Topology, _ngpus, _socket  # noqa: E402


def topology(nodes: Nodes, **more: Any) -> Topology:
    nranks = len(nodes)
    hosts = tuple(f"host{node}" for node in nodes)
    return Topology(**{"rank": 0, "nodes": nodes, "hosts": hosts, "sockets": (-1,) * nranks, "gpus": (0,) * nranks, **more})


@pytest.mark.parametrize(
    ("text", "local"),
    [("6", (0, 1, 2, 3, 4, 5)), ("1", (0,) * 6), ("2", (0, 1) * 3), ("3:cyclic", (0, 0, 1, 1, 2, 2)), ("1+2+3", (0, 0, 1, 0, 1, 2))],
)
def test_ranks_are_counted_on_their_node(text: str, local: tuple[int, ...]) -> None:
    found = topology(parse_nodes(text, 6))
    assert found.nranks == 6
    assert found.local_ranks == local


def test_costs_are_those_of_the_hosts_unless_they_were_fitted() -> None:
    several, one = topology((0, 0, 1)), topology((0, 0, 1), hosts=("here",) * 3)
    assert (several.levels(None), one.levels(None)) == (HOSTS, ONE_HOST)
    fitted = Levels(HPCOLL_NETWORK, HOSTS_NETWORK._replace(alpha=1.0))
    assert several.levels(fitted) == one.levels(fitted) == fitted


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({}, "2 nodes of 2 ranks, by blocks"),
        ({"hosts": ("a", "a", "a", "a")}, "2 nodes of 2 ranks, by blocks; on 1 host"),
        ({"hosts": ("a", "b", "c", "c")}, "2 nodes of 2 ranks, by blocks; on 3 hosts"),
        ({"sockets": (0, 1, 0, 1)}, "2 nodes of 2 ranks, by blocks; bound to 2 sockets"),
        ({"sockets": (0, -1, 0, -1)}, "2 nodes of 2 ranks, by blocks"),
        ({"gpus": (4, 4, 4, 4)}, "2 nodes of 2 ranks, by blocks; 4 GPUs per host"),
        ({"gpus": (0, 0, 8, 8)}, "2 nodes of 2 ranks, by blocks; 0 to 8 GPUs per host"),
        ({"hosts": ("a",) * 4, "sockets": (0, 1, 2, 0), "gpus": (2, 2, 2, 2)},
         "2 nodes of 2 ranks, by blocks; on 1 host; bound to 3 sockets; 2 GPUs per host"),
    ],
)  # fmt: skip
def test_it_says_what_it_is(more: dict[str, Any], text: str) -> None:
    assert str(topology((0, 0, 1, 1), **more)) == text


def test_this_machine_can_be_asked() -> None:
    assert _socket() >= -1
    assert _ngpus() >= 0
