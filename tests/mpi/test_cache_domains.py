"""Hierarchical algorithms on the cache domains of one node: all messages go through shared memory.

Domains are neighbours, as `HPCOLL_DOMAINS` says; results are compared with those of NumPy.
"""

import logging
from functools import cache
from typing import Any

import numpy as np
import pytest
from internals import resources
from mpi4py import MPI
from reference import ensure, ensure_none, roots
from test_collectives import run, run_in_place
from test_hierarchical import ROWS, cases, made

import hpcoll
from hpcoll.analysis.cost import ONE_HOST, apart
from hpcoll.base.errors import ArgumentError
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.placement import describe
from hpcoll.selection.topology import dealt, domains_of

pytestmark = pytest.mark.mpi

NRANKS = MPI.COMM_WORLD.size
ONE_NODE = (0,) * NRANKS
SIZES = ("2", "3+1", "1+9")
MOVING = [(row.collective, row.name) for row in ROWS if row.collective != "barrier"]


@cache
def on_domains(sizes: str) -> hpcoll.Communicator:
    """A communicator of domains of these sizes; the first call is collective."""
    return made(HPCOLL_DOMAINS=sizes)


def domains(sizes: str) -> tuple[int, ...]:
    return domains_of(ONE_NODE, dealt(ONE_NODE, tuple(map(int, sizes.split("+")))))


def has_hierarchies(sizes: str) -> bool:
    return 1 < len(set(domains(sizes))) < NRANKS


@pytest.mark.parametrize("sizes", SIZES)
def test_topology(sizes: str, caplog: pytest.LogCaptureFixture) -> None:
    """Equal on all ranks, in the log, and in what messages cost; memory is shared by all ranks as before."""
    caplog.set_level(logging.INFO, "hpcoll")
    comm = made(HPCOLL_DOMAINS=sizes, HPCOLL_DEBUG="info")
    on = resources(comm)
    assert (on.topology.nodes, on.topology.domains, on.one_node) == (ONE_NODE, domains(sizes), True)
    assert on.topology.parts == (domains(sizes) if has_hierarchies(sizes) else ONE_NODE)
    assert on.levels[:2] == (
        (ONE_HOST.node, apart(ONE_HOST.node)) if has_hierarchies(sizes) else ONE_HOST[:2]
    )
    assert sorted(on.node.local_peers) == [rank for rank in range(NRANKS) if rank != comm.rank]
    assert len(set(comm.allgather(on.topology._replace(rank=0)))) == 1
    several = len(set(domains(sizes))) > 1
    assert (describe(domains(sizes), "cache domain") in caplog.text) is (several and comm.rank == 0)
    comm.Free()


@pytest.mark.parametrize(
    ("sizes", "runner"),
    [
        *((one, run) for one in SIZES),
        *(pytest.param(one, run_in_place, marks=pytest.mark.full) for one in SIZES),
    ],
)
@pytest.mark.parametrize(("collective", "algorithm"), MOVING)
def test_results(collective: str, algorithm: str, runner: Any, sizes: str) -> None:
    """Of few elements and of many lanes, which what is staged for other domains must fit."""
    comm = on_domains(sizes)
    ensure_none(
        [case for case in cases(collective) if not runner(comm, collective, *case, algorithm=algorithm)]
    )
    assert {row.ways for row in comm.ledger.rows() if row.algorithm in ("hierarchical", "leaders")} == {"shm"}


@pytest.mark.skipif(not has_hierarchies("2"), reason="needs a domain of several ranks, and another one")
def test_they_are_chosen_by_themselves() -> None:
    """For some sizes; with one domain of all ranks nothing is layered. All results are right."""
    found = {}
    for sizes in ("2", "9"):
        comm, wrong = made(HPCOLL_DOMAINS=sizes), []
        for collective, count in (
            ("allreduce", 1 << 12),
            ("allreduce", 1 << 17),
            ("allgather", 16),
            ("reduce_scatter", 16),
        ):
            wrong += [
                (collective, root)
                for root in roots(collective, NRANKS)[:1]
                if not run(comm, collective, count, root)
            ]
        ensure_none(wrong)
        found[sizes] = {(row.operation, row.algorithm) for row in comm.ledger.rows()}
        assert len(set(comm.allgather(frozenset(found[sizes])))) == 1
        comm.Free()
    layered = {row for row in found["2"] if CATALOGUE.get("/".join(row)) in ROWS}
    assert layered, found
    assert not {row for row in found["9"] if CATALOGUE.get("/".join(row)) in ROWS}


def test_communicators_of_some_ranks_deal_them_anew() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HPCOLL_DOMAINS", "2+1")
        comm = hpcoll.Communicator(MPI.COMM_WORLD.Split(int(MPI.COMM_WORLD.rank > 0), 0))
        comm.Barrier()
    assert resources(comm).topology.domains == (0, 0, 1, 2, 2)[: comm.size]
    x = np.full(5000, comm.rank + 1.0)
    comm.Allreduce(MPI.IN_PLACE, x, algorithm="hierarchical")
    ensure((x == comm.size * (comm.size + 1) / 2).all(), comm.rank)
    comm.Free()


@pytest.mark.skipif(NRANKS < 2, reason="needs ranks that differ")
def test_ranks_must_agree_on_domains() -> None:
    with pytest.raises(
        ArgumentError,
        match=r"HPCOLL_DOMAINS must be equal on all ranks, expected \(2,\) as on rank 0, got \(3,\)",
    ):
        made(HPCOLL_DOMAINS="3" if MPI.COMM_WORLD.rank == 1 else "2")
