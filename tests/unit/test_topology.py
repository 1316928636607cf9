"""What is known of where ranks run, and what that makes messages cost."""

from __future__ import annotations

import os
from typing import Any

import mpi4py
import pytest

mpi4py.rc.initialize = False

from hpcoll.analysis.cost import Levels  # noqa: E402
from hpcoll.schedules.placement import Nodes  # noqa: E402
from hpcoll.selection.networks import HOSTS, HOSTS_NETWORK, HPCOLL_NETWORK, ONE_HOST, levels  # noqa: E402
from hpcoll.selection.topology import Topology, _ngpus, _socket  # noqa: E402


def topology(nodes: Nodes, **more: Any) -> Topology:
    nranks = len(nodes)
    hosts = tuple(f"host{node}" for node in nodes)
    return Topology(**{"rank": 0, "nodes": nodes, "hosts": hosts, "sockets": (-1,) * nranks, "gpus": (0,) * nranks, **more})


def test_costs_are_those_of_the_hosts_unless_they_were_fitted() -> None:
    several, one = ("here", "here", "there"), ("here",) * 3
    assert (levels(several, None), levels(one, None)) == (HOSTS, ONE_HOST)
    fitted = Levels(HPCOLL_NETWORK, HOSTS_NETWORK._replace(alpha=1.0))
    assert levels(several, fitted) == levels(one, fitted) == fitted


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
    assert _socket(frozenset(os.sched_getaffinity(0))) >= -1
    assert _ngpus() >= 0
