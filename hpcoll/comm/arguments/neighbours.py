"""Neighbourhood collectives: the graph of a communicator's topology, and arguments described as plain bytes.

Blocks of neighbours that there are not, behind an open edge of a grid, are neither read nor written.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from mpi4py import MPI

from hpcoll.base.errors import ArgumentError
from hpcoll.comm.arguments.buffers import Resolved, check_overlap, check_same_order, resolve
from hpcoll.comm.arguments.call import Call, is_in_place
from hpcoll.comm.arguments.data_movement import NOTHING, PlainBytes, as_copied, move, plain_bytes, sent_aside
from hpcoll.comm.arguments.typed_blocks import typed_bytes
from hpcoll.schedules.graph import NO_RANK, Graph, grid, matched

_TOPOLOGIES: dict[int, type[MPI.Topocomm]] = {
    MPI.CART: MPI.Cartcomm,
    MPI.GRAPH: MPI.Graphcomm,
    MPI.DIST_GRAPH: MPI.Distgraphcomm,
}


def plain(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Return a communicator as mpi4py's own object, of the class for its topology."""
    return _TOPOLOGIES.get(MPI.UNDEFINED if comm == MPI.COMM_NULL else comm.Get_topology(), MPI.Intracomm)(
        comm
    )


def graph_of(comm: MPI.Intracomm) -> Callable[[], Graph | None]:
    """Return a function that returns the graph of all ranks, None where it has none or an edge lacks an end; collective.

    Args:
        comm: As `plain` returns it. Ranks of a distributed graph tell each other their neighbours now; of others each rank knows all.
    """
    if isinstance(comm, MPI.Cartcomm):
        dims, periods, _ = comm.Get_topo()
        return cache(partial(grid, dims, [bool(periodic) for periodic in periods]))
    if isinstance(comm, MPI.Graphcomm):
        ends, edges = comm.Get_topo()
        neighbours = [edges[first:end] for first, end in zip([0, *ends], ends)]
        return cache(partial(matched, neighbours, neighbours))
    if isinstance(comm, MPI.Distgraphcomm):
        sources, targets, _ = comm.Get_dist_neighbors()
        every = comm.allgather([[max(NO_RANK, rank) for rank in ranks] for ranks in (targets, sources)])
        return cache(partial(matched, [one[0] for one in every], [one[1] for one in every]))
    return lambda: None


def neighbours(
    collective: str, sendbuf: Any, recvbuf: Any, rank: int, graph: Graph, *, varies: bool
) -> Call | None:
    """Describe a neighbor_allgather or a neighbor_alltoall; None where only the MPI library understands it.

    Args:
        collective: "neighbor_allgather", which sends one block, or "neighbor_alltoall".
        sendbuf: The caller's; not looked at where it has no blocks, likewise recvbuf.
        recvbuf: The caller's.
        rank: Rank of this process.
        graph: Graph of the communicator.
        varies: Blocks have sizes of their own, which the two ranks of an edge know.

    Raises:
        ArgumentError: Bad buffer, or blocks that have other sizes at their two ends; likewise for `typed_neighbours`.
    """
    gathers, nreceived = collective == "neighbor_allgather", len(graph.sources[rank])
    nsent = len(graph.targets[rank])
    nsent = min(1, nsent) if gathers else nsent
    send = _blocks(sendbuf, "sendbuf", rank, nsent, varies=varies and not gathers)
    recv = _blocks(recvbuf, "recvbuf", rank, nreceived, varies=varies)
    if (send is None and nsent) or (recv is None and nreceived) or is_in_place(sendbuf):
        return None
    if send is not None and recv is not None and not varies:
        if send.nbytes * nreceived != recv.nbytes * nsent:
            needs = f"{nreceived} blocks of {send.nbytes // nsent} bytes"
            raise ArgumentError(f"rank {rank}: recvbuf needs {needs}, got {recv.nbytes} bytes")
        check_same_order(sendbuf, recvbuf, rank, sent=nsent, received=nreceived)
    shared = send is not None and recv is not None and check_overlap(send, recv, rank)
    source, copied = (NOTHING if send is None else plain_bytes(send)), 0
    if send is not None and shared:
        source, copied = (as_copied(source), 0) if send.gpu is None else sent_aside(send)
    target = NOTHING if recv is None else plain_bytes(recv)
    if not varies and not graph.lonely:
        return move(
            collective,
            source,
            target,
            source.nbytes // nsent if nsent else target.nbytes // nreceived,
            0,
            graph=graph,
            copied=copied,
        )
    places = source.places or _equal(source.nbytes, nsent)
    call = _varying(
        collective,
        source,
        target._replace(places=target.places or _equal(target.nbytes, nreceived)),
        places,
        rank,
        graph,
    )
    return call._replace(copied=copied, element="" if graph.lonely else call.element)


def typed_neighbours(sendbuf: Any, recvbuf: Any, rank: int, graph: Graph) -> Call | None:
    """Describe a neighbor_alltoall whose blocks have datatypes of their own and displacements in bytes; arguments as of `neighbours`."""
    source = None if is_in_place(sendbuf) else typed_bytes(sendbuf, "sendbuf", rank, len(graph.targets[rank]))
    target = typed_bytes(recvbuf, "recvbuf", rank, len(graph.sources[rank]))
    if source is None or target is None:
        return None
    return _varying("neighbor_alltoall", source, target, source.places, rank, graph)


def _equal(nbytes: int, n: int) -> tuple[tuple[int, int], ...]:
    """Return the places of equal blocks."""
    return tuple((i * (nbytes // n), nbytes // n) for i in range(n))


def _varying(
    collective: str,
    source: PlainBytes,
    target: PlainBytes,
    places: tuple[tuple[int, int], ...],
    rank: int,
    graph: Graph,
) -> Call:
    """Return a call whose blocks, at ``places`` of INPUT, have sizes of their own; refuse those that are copied here and differ."""
    # by the rank from which blocks come: their sizes
    found, same = (
        graph.received(rank),
        dict[int, list[int]](),
    )
    if collective == "neighbor_allgather":
        same = {peer: [target.places[block][1] for block in blocks] for peer, blocks in found.items()}
        if rank in same:
            same[rank].append(source.nbytes)
    for sent, received in zip(graph.sent(rank).get(rank, ()), found.get(rank, ())) if not same else ():
        if places[sent][1] != target.places[received][1]:
            same[rank] = [places[sent][1], target.places[received][1]]
    for peer, sizes in same.items():
        if len(set(sizes)) > 1:
            raise ArgumentError(
                f"rank {rank}: blocks of rank {peer} must have one size at both ends of an edge, got {sizes} bytes"
            )
    return move(collective, source, target, source.nbytes, 0, blocks=(places, target.places, ()), graph=graph)


def _blocks(spec: Any, name: str, rank: int, n: int, *, varies: bool) -> Resolved | None:
    """Resolve a buffer with ``n`` blocks; None also where there are none."""
    if not n:
        return None
    return resolve(
        spec,
        name=name,
        rank=rank,
        nblocks=n if varies else None,
        nparts=1 if varies else n,
        writable=name == "recvbuf",
    )
