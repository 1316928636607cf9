"""What a rank knows of all ranks' processes: compact, told in one exchange, refused where settings differ."""

import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
from many_processes import Exchange, processes_of

from hpcoll.base.errors import SettingsError
from hpcoll.runtime.transports.cross_memory import ProbeWord
from hpcoll.selection.agreement import agree
from hpcoll.selection.processes import Process
from hpcoll.selection.topology import Topology, find_topology, grouped

NRANKS, PER_NODE = 24_756, 64
MINE = Process("node0000.cluster.example.org", 1000, 0, 4, True, ProbeWord(1000, 1 << 46, -5))


def large(**different: int) -> Exchange:
    """The exchange of a large job; half of the ranks of each node are bound to another cache."""
    nodes = np.arange(NRANKS) // PER_NODE
    hosts = [f"node{node:04d}.cluster.example.org" for node in nodes]
    return Exchange(hosts, np.arange(NRANKS) % PER_NODE // 32 * 32, nodes * PER_NODE, **different)


def found(comm: Any) -> tuple[Any, Topology]:
    _, processes = agree(comm, MINE, 0)
    firsts = grouped(processes.rows["first"], None)
    return processes, find_topology(0, processes, firsts, np.full(NRANKS, True))


def test_a_large_job_takes_little_memory_and_one_exchange() -> None:
    """Host names, placements and addresses of all ranks: at most 4 MB at any time, and far below a second."""
    comm = large()
    agree(Exchange(["a"], [0], [0]), MINE, 0)  # type: ignore[arg-type]  # what is made once for all
    assert len(comm.different) == NRANKS  # made before memory is counted
    tracemalloc.start()
    begun = time.process_time()
    kept = found(comm)
    took = time.process_time() - begun
    now, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert comm.nexchanges == 1
    assert now < 2.5e6
    assert most < 4e6
    assert took < 1.0
    processes, topology = kept
    last = processes[NRANKS - 1]
    assert (last.host, last.pid) == (comm.hosts[-1], 1000 + NRANKS - 1)
    assert (last.domain, last.ngpus, last.has_gpu) == (32, 4, True)
    assert last.word == (last.pid, 1 << 46, -5)
    assert str(topology) == (
        "387 nodes of 52 to 64 ranks, by blocks; 774 cache domains of 20 to 32 ranks, by blocks; 4 GPUs per host"
    )


def test_of_some_ranks_no_other_hosts_are_known() -> None:
    """Names decide whether a communicator has several hosts."""
    some = processes_of(["a", "b", "b", "c"], [0] * 4, [0, 1, 1, 3]).of([3, 1, 2])
    assert some.hosts == ("c", "b", "b")
    assert sorted(some.names) == ["b", "c"]
    assert [some.host_nranks(rank) for rank in range(3)] == [1, 2, 2]
    assert some[2].pid == 1002


def test_other_settings_of_one_rank_are_told() -> None:
    """The digests differ, so that ranks ask for the settings themselves: with the same ones all goes on."""
    comm = Exchange(["a", "a", "a"], [0] * 3, [0] * 3, other_settings=2)
    settings: list[dict[str, Any]] = [{}, {}, {"HPCOLL_SHM": 0}]
    comm.allgather = lambda mine: [("", one, None) for one in settings]  # type: ignore[attr-defined]
    with pytest.raises(SettingsError, match="rank 2: HPCOLL_SHM must be equal"):
        agree(comm, MINE, 0)  # type: ignore[arg-type]
    settings.pop()
    agree(comm, MINE, 0)  # type: ignore[arg-type]


def test_wrong_settings_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one rank or of all, so that digests may be equal: no rank goes on."""
    monkeypatch.setenv("HPCOLL_SEGMENT", "none")
    comm = Exchange(["a", "a"], [0] * 2, [0] * 2)
    comm.allgather = lambda mine: [mine] * 2  # type: ignore[attr-defined]
    with pytest.raises(SettingsError, match="rank 0: environment variable HPCOLL_SEGMENT"):
        agree(comm, MINE, 0)  # type: ignore[arg-type]


def test_nodes_are_cut_into_groups_of_neighbours() -> None:
    """Whatever the order of ranks; the last group of a node may have fewer."""
    assert grouped(np.array([0, 1, 0, 1, 0]), 2).tolist() == [0, 1, 0, 1, 4]
    assert grouped(np.array([0, 0, 0, 3]), None).tolist() == [0, 0, 0, 3]
