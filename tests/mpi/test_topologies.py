"""Communicators with a topology, merged ones and those of groups: of hpcoll's classes and of mpi4py's for them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from reference import communicator, ensure, ensure_none, fresh, unless, works

import hpcoll
from hpcoll.base.errors import ArgumentError
from hpcoll.runtime.transports.mpi import group_of

pytestmark = pytest.mark.mpi


def test_cartesian() -> None:
    comm = communicator()
    dims = MPI.Compute_dims(comm.size, 2)
    grid = comm.Create_cart(dims, [True, False])
    row, twin = grid.Sub([False, True]), grid.Dup()
    for made in (grid, row, twin):
        assert isinstance(made, hpcoll.CartCommunicator)
        assert isinstance(made, MPI.Cartcomm)
        ensure(works(made), made)
    assert (grid.dims, row.dims, twin.periods) == (dims, dims[1:], [True, False])
    assert grid.Shift(0, 1) == MPI.Cartcomm(grid).Shift(0, 1)
    for made in (row, twin, grid):
        made.Free()


@pytest.mark.mpi(min_size=4)
def test_ordered_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two caches of two ranks take a column each of a wide array's grid, and its rows without the array; other ranks get no grid."""
    monkeypatch.setenv("HPCOLL_DOMAINS", "2")
    comm, wrong = fresh(), []
    for shape, order in (((10, 1000), [0, 2, 1, 3]), ((1000, 10), [0, 1, 2, 3]), (None, [0, 1, 2, 3])):
        grid = comm.Create_cart([2, 2], None, True, shape=shape)
        if comm.rank > 3:
            wrong += unless(grid == MPI.COMM_NULL, shape)
            continue
        right = (type(grid), grid.rank, grid.dims) == (
            hpcoll.CartCommunicator,
            order[comm.rank],
            [2, 2],
        ) and works(grid)
        wrong += unless(right, (shape, grid.rank))
        grid.Free()
    ensure_none(wrong)
    with pytest.raises(
        ArgumentError,
        match=r"rank \d: shape of Create_cart needs 2 numbers of points, of the whole array, got \[4\]",
    ):
        comm.Create_cart([2, 2], None, True, shape=[4])
    comm.Free()


def test_graphs() -> None:
    """The classes are those of hpcoll and of mpi4py for the topology, and so are those of what is made of them or put around them."""
    comm = communicator()
    last, following, everyone = (
        (comm.rank - 1) % comm.size,
        (comm.rank + 1) % comm.size,
        list(range(comm.size)),
    )
    graph = comm.Create_graph([r + 1 for r in everyone], [(r + 1) % comm.size for r in everyone])
    distributed, adjacent = (
        comm.Create_dist_graph([comm.rank], [1], [following]),
        comm.Create_dist_graph_adjacent([last], [following]),
    )
    made: list[tuple[Any, str, Callable[[Any], bool]]] = [
        (graph, "Graph", lambda one: one.neighbors == [following]),
        (graph.Dup(), "Graph", lambda one: one.nneighbors == 1),
        (distributed, "DistGraph", lambda one: one.Get_dist_neighbors()[:2] == ([last], [following])),
        (adjacent, "DistGraph", lambda one: one.outdegree == 1),
        (graph.Split(), "", lambda one: one.topology == MPI.UNDEFINED),
    ]
    wrong, theirs, found = (
        [],
        {"Graph": MPI.Graphcomm, "DistGraph": MPI.Distgraphcomm, "": MPI.Intracomm},
        np.zeros(1, int),
    )
    for one, kind, holds in made:
        again = hpcoll.Communicator(one)
        right = type(one) is type(again) is getattr(
            hpcoll, f"{kind}Communicator", hpcoll.Communicator
        ) and isinstance(one, theirs[kind])
        if kind == "DistGraph":
            one.Neighbor_allgather(np.full(1, comm.rank), found)
            right = right and found[0] == last
        wrong += unless(right and holds(one) and works(one), (kind, one))
    with pytest.raises(
        ArgumentError, match="GraphCommunicator needs a communicator with graph topology, got"
    ):
        hpcoll.GraphCommunicator(comm)
    for one, *_ in made:
        one.Free()
    ensure_none(wrong)


@pytest.mark.mpi(min_size=2)
def test_merged() -> None:
    """Also of a duplicate, and of a part."""
    comm = communicator()
    half = comm.Split(comm.rank % 2)
    between = half.Create_intercomm(0, comm, 1 - comm.rank % 2)
    whole = [between.Merge(), between.Dup().Merge(high=True), between.Split().Merge()]
    ensure_none([one for one in whole if type(one) is not hpcoll.Communicator or not works(one)])
    for one in (*whole, between, half):
        one.Free()


def test_of_a_group() -> None:
    comm = communicator()
    try:
        made = hpcoll.Communicator.Create_from_group(comm.Get_group())
    except (NotImplementedError, MPI.Exception):
        pytest.skip("the MPI library has no MPI_Comm_create_from_group")
    ensure(type(made) is hpcoll.Communicator and works(made), made)
    made.Free()


@pytest.mark.mpi(min_size=2)
def test_of_fewer_ranks() -> None:
    """Grids and graphs that leave ranks out, and what is made of them; MPICH 5.0.2 says that all ranks are in their groups."""
    comm = communicator()
    nranks, nodes = comm.size - 1, [0] * (comm.size - 1)
    made = [
        comm.Create_cart([nranks], [True]),
        comm.Create_cart([nranks], [True], reorder=True),
        comm.Create_graph(nodes, []),
    ]
    plain = MPI.Intracomm(comm).Create_cart([1])
    made += [comm.Create_cart([1]), plain if plain == MPI.COMM_NULL else hpcoll.Communicator(plain)]
    if made[0] != MPI.COMM_NULL:
        grid = made[0]
        made += [
            grid.Dup(),
            grid.Sub([True]),
            grid.Split(0, -grid.rank),
            grid.Split_type(MPI.COMM_TYPE_SHARED),
            grid.Create_cart([1]),
        ]
        made += [hpcoll.Communicator(MPI.Intracomm(grid).Dup()), grid.Create_group(group_of(grid))]
    used = [one for one in made if one != MPI.COMM_NULL]
    wrong = [one.name for one in used if not works(one)]
    for one in used:
        found = one.zeros(3)
        found[:] = one.rank
        one.Allreduce(MPI.IN_PLACE, found)
        wrong += unless(found[0] == one.size * (one.size - 1) / 2, one.size)
    if made[0] != MPI.COMM_NULL:
        around = np.zeros((2, 1))
        made[0].Neighbor_allgather(np.full(1, float(made[0].rank)), around)
        wrong += unless(
            around.ravel().tolist() == [(made[0].rank - 1) % nranks, (made[0].rank + 1) % nranks],
            "neighbours",
        )
    for one in used:
        one.Free()
    ensure_none(wrong)
