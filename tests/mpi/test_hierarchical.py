"""Hierarchical algorithms where groups of ranks stand for nodes: they share memory, and messages go from group to group.

Groups are neighbours, so placements are by blocks; for others a communicator is told another placement than that of its memory.
"""

import logging
from functools import cache
from typing import Any

import numpy as np
import pytest
import test_shm
from forms import COLLECTIVE, ROOTED, Case, in_every_form, names
from internals import made_for, resources
from mpi4py import MPI
from reference import communicator, ensure, ensure_none, fresh, representative, roots
from test_blocks import wrong_blocks
from test_collectives import run, run_in_place
from test_neighbours import graphs
from test_symmetric import wrong_in_symmetric_memory

import hpcoll
from hpcoll.analysis.cost import ONE_HOST
from hpcoll.base.errors import ArgumentError
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.graph import matched
from hpcoll.schedules.placement import Nodes, cyclic, describe, numbered, parse_nodes
from hpcoll.selection.topology import dealt, domains_of

pytestmark = pytest.mark.mpi

RANKS = "HPCOLL_SHM_RANKS"
GROUPS = (1, 2, 3)
NRANKS = MPI.COMM_WORLD.size
ROWS = [row for row in CATALOGUE.values() if row.hierarchical and not COLLECTIVES[row.collective].neighbours]
MOVING = [(row.collective, row.name) for row in ROWS if row.collective != "barrier"]
SIZED = [(*case, 2) for case in MOVING] + [
    pytest.param(*case, size, marks=pytest.mark.full) for case in MOVING for size in (1, 3)
]
METHODS = [
    (method, row.name)
    for row in ROWS
    for method, collective in COLLECTIVE.items()
    if collective == row.collective and row.name in names(method)
]
OTHER_PLACEMENTS: dict[str, Nodes] = {
    "cyclic": cyclic([NRANKS - NRANKS // 2, NRANKS // 2] if NRANKS > 1 else [1]),
    "uneven": parse_nodes(f"1+{NRANKS - 1}" if NRANKS > 1 else "1", NRANKS),
    "around": numbered("abbac"[:NRANKS].ljust(NRANKS, "a")),
    "one": (0,) * NRANKS,
}


def made(**variables: str) -> hpcoll.Communicator:
    """A communicator made with these settings."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        return fresh()


@cache
def grouped(size: int) -> hpcoll.Communicator:
    """A communicator of groups of so many neighbours that share memory; the first call is collective."""
    return made(**{RANKS: str(size)})


@cache
def placed(name: str) -> hpcoll.Communicator:
    """A communicator of groups of two whose schedules are made for another placement."""
    comm = made(**{RANKS: "2"})
    tell(comm, OTHER_PLACEMENTS[name])
    return comm


def tell(comm: Any, nodes: Nodes) -> None:
    """Let the schedules of a communicator's later calls be made for a placement."""
    made_for(comm, resources(comm).topology._replace(nodes=nodes, domains=nodes))


# --- topology


@pytest.mark.parametrize("size", GROUPS)
def test_topology(size: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hpcoll")
    comm = made(**{RANKS: str(size), "HPCOLL_DEBUG": "info"})
    found = resources(comm).topology
    nodes = tuple(rank // size for rank in range(NRANKS))
    facts = (found.nodes, found.rank, found.nranks, len(set(found.hosts)), resources(comm).levels)
    assert facts == (nodes, comm.rank, NRANKS, 1, ONE_HOST)
    assert all(len(one) == NRANKS for one in (found.hosts, found.domains, found.gpus))
    peers = [rank for rank, node in enumerate(nodes) if node == nodes[comm.rank] and rank != comm.rank]
    assert sorted(resources(comm).node.local_peers) == peers
    assert len(set(comm.allgather(found._replace(rank=0)))) == 1, "equal on all ranks"
    assert (f"ranks: {describe(nodes)}" in caplog.text) is (comm.rank == 0)
    assert ("on 1 host" in str(found)) is (len(set(nodes)) > 1)
    comm.Free()


def test_topology_of_parts() -> None:
    """Of ranks in another order, and of some of them: nodes are numbered anew, by groups of that communicator's neighbours."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(RANKS, "2")
        world = communicator()
        backwards, some = world.Split(0, -world.rank), world.Split(int(world.rank > 0), 0)
        for comm in (backwards, some):
            comm.Barrier()
    for comm in (backwards, some):
        assert resources(comm).topology.nodes == tuple(rank // 2 for rank in range(comm.size))
        assert resources(comm).topology.rank == comm.rank
    wrong = [
        row
        for row in MOVING
        for comm in (backwards, some)
        if not run(comm, row[0], 101, comm.size - 1, algorithm=row[1])
    ]
    ensure_none(wrong)
    backwards.Free()
    some.Free()


# --- results


@pytest.mark.parametrize("where", ["groups", "cyclic", "uneven"])
@pytest.mark.parametrize("collective", ["alltoall", "allgather"])
def test_neighbours_in_bundles(collective: str, where: str) -> None:
    """On random graphs with several edges between two ranks: short blocks, and blocks of several lanes; all forms equal to direct."""
    comm, wrong, nodes = (
        communicator(),
        [],
        OTHER_PLACEMENTS.get(where, tuple(rank // 2 for rank in range(NRANKS))),
    )
    for targets, sources in graphs(comm.size, 6):
        one, graph = (
            comm.Create_dist_graph_adjacent(sources[comm.rank], targets[comm.rank]),
            matched(targets, sources),
        )
        tell(one, nodes)
        # where a rank has no blocks not all know their size
        for count in (1, 30_001) if graph and not graph.lonely else ():
            nsent = len(targets[comm.rank]) if collective == "alltoall" else 1
            send, found = np.random.default_rng(comm.rank).random((nsent, count)), list[np.ndarray]()
            for form, algorithm in (
                ("N", "direct"),
                ("N", "hierarchical"),
                ("In", "hierarchical"),
                ("N_init", "hierarchical"),
            ):
                found.append(np.full((len(sources[comm.rank]), count), -1.0))
                method = getattr(
                    one, f"{form.removesuffix('_init')}eighbor_{collective}{'_init' * form.endswith('_init')}"
                )
                request = method(send, found[-1], algorithm=algorithm)
                if form == "N_init":
                    request.Start()
                if request:
                    request.Wait()
            wrong += [
                (targets, count, i) for i, other in enumerate(found) if not np.array_equal(found[0], other)
            ]
        wrong += (
            [(targets, "elsewhere")]
            if {row.algorithm for row in one.ledger.rows()} - {"direct", "hierarchical"}
            else []
        )
        one.Free()
    ensure_none(wrong)


def cases(collective: str) -> list[tuple[int, int]]:
    """Counts and roots: all with few elements, one with many."""
    every = roots(collective, NRANKS)
    many = 300_000 // NRANKS if COLLECTIVES[collective].blocks else 300_000
    return [*((count, root) for count in (0, 1, 7, 1000) for root in every), (many, every[-1])]


@pytest.mark.parametrize("runner", [run, run_in_place])
@pytest.mark.parametrize(("collective", "algorithm", "size"), SIZED)
def test_results(collective: str, algorithm: str, runner: Any, size: int) -> None:
    comm = grouped(size)
    ensure_none(
        [case for case in cases(collective) if not runner(comm, collective, *case, algorithm=algorithm)]
    )


@pytest.mark.parametrize("name", OTHER_PLACEMENTS)
@pytest.mark.parametrize(("collective", "algorithm"), representative(MOVING))
def test_placements_that_are_not_those_of_memory(collective: str, algorithm: str, name: str) -> None:
    comm = placed(name)
    wrong = []
    for runner in (run, run_in_place):
        wrong += [
            case for case in cases(collective) if not runner(comm, collective, *case, algorithm=algorithm)
        ]
    ensure_none(wrong)


@pytest.mark.parametrize("size", GROUPS[1:])
@pytest.mark.parametrize(("collective", "algorithm"), representative(MOVING))
def test_deep_pipeline(collective: str, algorithm: str, size: int) -> None:
    comm = grouped(size)
    every = [
        (runner, 1009, root, segment)
        for runner in (run, run_in_place)
        for root in {0, NRANKS - 1}
        for segment in (64, 1000)
    ]
    wrong = [
        case
        for runner, *case in every
        if not runner(comm, collective, *case[:2], algorithm=algorithm, segment=case[2])
    ]
    ensure_none(wrong)


@pytest.mark.parametrize("size", GROUPS)
@pytest.mark.parametrize("algorithm", ["hierarchical", "leaders"])
def test_bits_are_equal_on_all_ranks(algorithm: str, size: int) -> None:
    rng = np.random.default_rng(MPI.COMM_WORLD.rank)
    x = (rng.standard_normal(1009) * 10.0 ** rng.integers(-6, 7, 1009)).astype(np.float32)
    for segment in (None, 256):
        y = x.copy()
        grouped(size).Allreduce(MPI.IN_PLACE, y, algorithm=algorithm, segment=segment)
        assert {one.tobytes() for one in MPI.COMM_WORLD.allgather(y)} == {y.tobytes()}


@pytest.mark.parametrize(("collective", "algorithm"), representative(MOVING))
def test_without_shared_memory(collective: str, algorithm: str) -> None:
    """All messages are MPI's; schedules still look at the nodes."""
    comm = made(**{RANKS: "2", "HPCOLL_SHM": "0"})
    assert resources(comm).message_contexts[0].rings is None
    wrong = [case for case in cases(collective) if not run(comm, collective, *case, algorithm=algorithm)]
    ensure_none(wrong)
    comm.Free()


# --- every form


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.full)])
@pytest.mark.parametrize(("method", "algorithm"), METHODS)
def test_forms(method: str, algorithm: str, size: int) -> None:
    """Blocking, non-blocking and persistent, twice; in place and not; blocks that vary, where it has them; all in flight together."""
    comm = grouped(size)
    every = [
        Case(comm, method, count, root, in_place)
        for count in (0, 1, 7, 1000)
        for root in (
            range(NRANKS) if method in ROOTED and count == 7 else [NRANKS - 1] if method in ROOTED else [0]
        )
        for in_place in (False, True)
    ]
    ensure_none(in_every_form(comm, every, algorithm=algorithm))


@pytest.mark.parametrize("size", GROUPS[1:])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("method", ["Allgatherv", "Reduce_scatter"])
def test_blocks_of_very_different_size(method: str, in_place: bool, size: int) -> None:
    ensure_none(wrong_blocks(grouped(size), method, "hierarchical", in_place, test_shm.SHAPES))


@pytest.mark.parametrize("size", GROUPS[1:])
@pytest.mark.parametrize(("collective", "algorithm"), representative(MOVING))
def test_symmetric_memory(collective: str, algorithm: str, size: int) -> None:
    """What ranks of a group read where it lies."""
    for everywhere in (True, False):
        ensure_none(wrong_in_symmetric_memory(grouped(size), collective, algorithm, everywhere))


def test_what_they_cannot_serve_is_refused() -> None:
    comm, x = grouped(2), np.ones(NRANKS)
    left = hpcoll.reduce_op(lambda a, b: a, name="left", commutative=False)
    for collective, algorithm in [row for row in MOVING if row[0] in ("allreduce", "reduce")]:
        with pytest.raises(
            ArgumentError, match=f"{algorithm} cannot serve this call: it combines ranks in any order"
        ):
            getattr(comm, collective.capitalize())(x.copy(), np.empty(NRANKS), op=left, algorithm=algorithm)
    counts = [1] * NRANKS
    with pytest.raises(ArgumentError, match="hierarchical cannot serve this call: it needs equal blocks"):
        comm.Alltoallv([x, counts], [np.empty(NRANKS), counts], algorithm="hierarchical")


# --- what travels, and who chooses


@pytest.mark.skipif(NRANKS < 3, reason="needs a group of several ranks, and another one")
def test_they_are_chosen_where_nodes_have_several_ranks() -> None:
    comm = made(**{RANKS: "2"})
    for nbytes in (8, 1 << 12, 1 << 16, 1 << 20):
        x, y = np.ones(nbytes), np.empty(nbytes)
        comm.Allreduce(x, y)
        comm.Reduce(x, y if comm.rank == 0 else None)
        comm.Bcast(x)
        comm.Reduce_scatter_block(np.ones(NRANKS * (nbytes // NRANKS)), np.empty(nbytes // NRANKS))
        comm.Allgather(np.ones(nbytes // NRANKS), np.empty(NRANKS * (nbytes // NRANKS)))
        comm.Alltoall(np.ones(NRANKS * (nbytes // NRANKS)), np.empty(NRANKS * (nbytes // NRANKS)))
    chosen = {(row.operation, row.algorithm) for row in comm.ledger.rows()}
    layered = {row for row in chosen if CATALOGUE.get("/".join(row)) in ROWS}
    assert len(layered) >= 2, chosen
    assert len(set(comm.allgather(frozenset(chosen)))) == 1
    comm.Free()


ONE_NODE = (0,) * NRANKS


SIZES = ("2", "3+1", "1+9")


@cache
def on_domains(sizes: str) -> hpcoll.Communicator:
    """A communicator of domains of these sizes; the first call is collective."""
    return made(HPCOLL_DOMAINS=sizes)


def domains(sizes: str) -> tuple[int, ...]:
    return domains_of(ONE_NODE, dealt(ONE_NODE, tuple(map(int, sizes.split("+")))))


def has_hierarchies(sizes: str) -> bool:
    return 1 < len(set(domains(sizes))) < NRANKS


@pytest.mark.parametrize(
    ("sizes", "runner"),
    [
        *((one, run) for one in SIZES),
        *(pytest.param(one, run_in_place, marks=pytest.mark.full) for one in SIZES),
    ],
)
@pytest.mark.parametrize(("collective", "algorithm"), MOVING)
def test_results_on_domains(collective: str, algorithm: str, runner: Any, sizes: str) -> None:
    """Of few elements and of many lanes, which what is staged for other domains must fit."""
    comm = on_domains(sizes)
    ensure_none(
        [case for case in cases(collective) if not runner(comm, collective, *case, algorithm=algorithm)]
    )
    assert {row.ways for row in comm.ledger.rows() if row.algorithm in ("hierarchical", "leaders")} == {"shm"}


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
