"""The order of a communicator's ranks in a Cartesian grid."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from math import prod
from operator import index
from typing import Any

from mpi4py import MPI

from hpcoll.base.errors import ArgumentError
from hpcoll.schedules.cartesian import place
from hpcoll.selection.config import log
from hpcoll.selection.topology import Topology

_placed = lru_cache(128)(place)  # programs make the same grid again


@contextmanager
def in_grid_order(
    comm: MPI.Intracomm,
    topology: Topology | None,
    dims: Sequence[int],
    periods: Any,
    shape: Sequence[int] | None,
) -> Iterator[Any]:
    """Give mpi4py's communicator of a grid's ranks, placed as `place` says; null on ranks that the grid does not need.

    It has all ranks in their order where nothing is gained, or where the library refuses such a grid. Collective.

    Args:
        comm: Communicator of the ranks.
        topology: Their placement; None: they keep their order.
        dims: Ranks in each dimension.
        periods: As in mpi4py's ``Create_cart``.
        shape: As in `place`.

    Raises:
        ArgumentError: ``shape`` is not one for these dimensions.
    """
    native = MPI.Intracomm(comm)
    if topology is None:
        yield native
        return
    size = list(map(index, dims))
    # mpi4py takes one for all, too
    rounds = list(periods) if hasattr(periods, "__len__") else [bool(periods)] * len(size)
    if len(rounds) != len(size) or min(size, default=1) < 1 or prod(size) > topology.nranks:
        yield native
        return
    if shape is not None and (len(shape) != len(size) or min(shape) < 1):
        expected = f"{len(size)} numbers of points, of the whole array"
        raise ArgumentError(f"rank {topology.rank}: shape of Create_cart needs {expected}, got {list(shape)}")
    placed = _placed(
        tuple(size), tuple(map(bool, rounds)), topology.parts, None if shape is None else tuple(shape)
    )
    what = "nodes" if len(set(topology.nodes)) > 1 else "cache domains"
    if topology.rank == 0 and placed.before:
        log.info(
            "grid %s: %d faces between %s, %d in the order of ranks", size, placed.after, what, placed.before
        )
    if list(placed.ranks) == sorted(placed.ranks):
        yield native
        return
    position = placed.ranks.index(topology.rank) if topology.rank in placed.ranks else MPI.UNDEFINED
    ordered = native.Split(MPI.UNDEFINED if position == MPI.UNDEFINED else 0, max(0, position))
    try:
        yield ordered
    finally:
        if ordered != MPI.COMM_NULL:
            ordered.Free()
