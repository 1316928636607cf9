"""The meaning of each collective: its buffers, their content before the call and the content required afterwards.

Verifier, lowering and builders all read this one definition. An **item** names data (a part of someone's message); an **extent** names a
size. A value is an item together with the ranks that contributed to it.
"""

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, NamedTuple

from hpcoll.schedules.graph import Graph, ring

_Count = Callable[[int, int, int, int], int]  # (rank, nranks, root, nchunks) -> number of chunks
_Name = Callable[[int, int], Hashable]  # (rank, index) -> item or extent
_Ranks = Callable[[int, int, int, int], int]  # (rank, index, nranks, root) -> bit mask of contributing ranks
# (rank, nranks, root, nchunks) -> chunks of INPUT and of OUTPUT
_Aliases = Callable[[int, int, int, int], list[tuple[int, int]]]


class Collective(NamedTuple):
    """Pre- and postcondition of one collective.

    Functions take ``(rank, nranks, root, nchunks)`` or, for names, ``(rank, index)``; ``wanted`` takes ``(rank, index, nranks, root)``.
    """

    name: str  # in lower case
    ninputs: _Count  # chunks of INPUT on a rank
    noutputs: _Count  # chunks of OUTPUT on a rank
    input_item: _Name  # item in a chunk of INPUT
    output_item: _Name  # item that a chunk of OUTPUT must hold at the end
    wanted: (
        _Ranks  # ranks whose contributions a chunk of OUTPUT must hold, as a bit mask; 0: any content will do
    )
    # pairs of chunks that are one memory in an in-place call; None: hpcoll copies in such calls
    aliases: _Aliases | None
    always_in_place: bool = False  # there is one buffer (bcast), so INPUT and OUTPUT are the same
    rooted: bool = False  # one rank is the root
    reduces: bool = False  # contributions are combined by an operator
    ordered: bool = False  # the result is defined in rank order for every operator (scan)
    idempotent: bool = False  # a contribution that arrives twice counts once (barrier)
    blocks: bool = False  # there is a block per rank (allgather, ...), rather than one vector
    neighbours: bool = False  # there is a block per edge of a graph, which `meaning` needs
    one_extent: bool = False  # all chunks have one size; else those of one item

    def input_extent(self, rank: int, index: int) -> Hashable:
        """Return the extent of a chunk of INPUT; equal extents are equal sizes on all ranks."""
        return 0 if self.one_extent else self.input_item(rank, index)

    def output_extent(self, rank: int, index: int) -> Hashable:
        """Return the extent of a chunk of OUTPUT."""
        return 0 if self.one_extent else self.output_item(rank, index)


def _one(rank: int, nranks: int, root: int, nchunks: int) -> int:
    return 1


def _nranks(rank: int, nranks: int, root: int, nchunks: int) -> int:
    return nranks


def _nchunks(rank: int, nranks: int, root: int, nchunks: int) -> int:
    return nchunks


def _at_root(count: _Count) -> _Count:
    return lambda rank, nranks, root, nchunks: count(rank, nranks, root, nchunks) if rank == root else 0


def _index(rank: int, index: int) -> int:
    return index


def _rank(rank: int, index: int) -> int:
    return rank


def _own(rank: int, index: int) -> tuple[int, int]:
    return rank, index


def _all(rank: int, index: int, nranks: int, root: int) -> int:
    return (1 << nranks) - 1


def _only_root(rank: int, index: int, nranks: int, root: int) -> int:
    return 1 << root


def _index_rank(rank: int, index: int, nranks: int, root: int) -> int:
    return 1 << index


def _identity(count: _Count) -> _Aliases:
    return lambda rank, nranks, root, nchunks: [(i, i) for i in range(count(rank, nranks, root, nchunks))]


_vector: dict[str, Any] = {"input_item": _index, "output_item": _index}


def _neighbourhood(name: str, graph: Graph) -> Collective:
    """Return a neighbourhood collective on a graph."""

    def sent_to(rank: int, nranks: int, root: int, nchunks: int) -> int:
        return len(graph.targets[rank])

    def received_from(rank: int, nranks: int, root: int, nchunks: int) -> int:
        return len(graph.sources[rank])

    def source(rank: int, index: int) -> Hashable:
        return graph.sources[rank][index]

    def source_rank(rank: int, index: int) -> Hashable:
        end = graph.sources[rank][index]
        return end and end[0]

    def wanted(rank: int, index: int, nranks: int, root: int) -> int:
        end = graph.sources[rank][index]
        return 1 << end[0] if end else 0

    inputs, sent, received = (
        (_one, _rank, source_rank) if name == "neighbor_allgather" else (sent_to, _own, source)
    )
    return Collective(name, inputs, received_from, sent, received, wanted, None, blocks=True, neighbours=True)


COLLECTIVES = {
    c.name: c
    for c in (
        Collective(
            "allreduce", _nchunks, _nchunks, **_vector, wanted=_all, aliases=_identity(_nchunks), reduces=True
        ),
        Collective(
            "reduce",
            _nchunks,
            _at_root(_nchunks),
            **_vector,
            wanted=_all,
            aliases=_identity(_at_root(_nchunks)),
            rooted=True,
            reduces=True,
        ),
        Collective(
            "bcast",
            _at_root(_nchunks),
            _nchunks,
            **_vector,
            wanted=_only_root,
            aliases=_identity(_at_root(_nchunks)),
            always_in_place=True,
            rooted=True,
        ),
        Collective(
            "scan",
            _nchunks,
            _nchunks,
            **_vector,
            wanted=lambda rank, index, nranks, root: (2 << rank) - 1,
            aliases=_identity(_nchunks),
            reduces=True,
            ordered=True,
        ),
        Collective(
            "exscan",
            _nchunks,
            _nchunks,
            **_vector,
            wanted=lambda rank, index, nranks, root: (1 << rank) - 1,
            aliases=_identity(_nchunks),
            reduces=True,
            ordered=True,
        ),
        Collective(
            "barrier",
            _one,
            _one,
            **_vector,
            wanted=_all,
            aliases=_identity(_one),
            reduces=True,
            idempotent=True,
        ),
        Collective(
            "allgather",
            _one,
            _nranks,
            _rank,
            _index,
            _index_rank,
            aliases=lambda rank, nranks, root, nchunks: [(0, rank)],
            blocks=True,
        ),
        Collective(
            "reduce_scatter",
            _nranks,
            _one,
            _index,
            _rank,
            _all,
            aliases=None,
            reduces=True,
            blocks=True,
        ),
        Collective(
            "gather",
            _one,
            _at_root(_nranks),
            _rank,
            _index,
            _index_rank,
            aliases=lambda rank, nranks, root, nchunks: [(0, rank)] if rank == root else [],
            rooted=True,
            blocks=True,
        ),
        Collective(
            "scatter",
            _at_root(_nranks),
            _one,
            _index,
            _rank,
            _only_root,
            aliases=lambda rank, nranks, root, nchunks: [(rank, 0)] if rank == root else [],
            rooted=True,
            blocks=True,
        ),
        Collective(
            "alltoall",
            _nranks,
            _nranks,
            _own,
            lambda rank, index: (index, rank),
            _index_rank,
            aliases=None,
            blocks=True,
        ),
        _neighbourhood("neighbor_allgather", ring(1)),
        _neighbourhood("neighbor_alltoall", ring(1)),
    )
}


@lru_cache(maxsize=128)
def meaning(collective: str, graph: Graph | None, parts: int = 1) -> Collective:
    """Return the definition of a collective: of neighbours on their graph, of blocks with ``parts`` chunks to each."""
    found = COLLECTIVES[collective] if graph is None else _neighbourhood(collective, graph)
    return found if parts == 1 else _in_parts(found, parts)


def _in_parts(c: Collective, parts: int) -> Collective:
    """Return a block collective of which each block is so many chunks: chunk ``i`` is part ``i % parts`` of block ``i // parts``."""

    def counted(count: _Count) -> _Count:
        return lambda rank, nranks, root, nchunks: parts * count(rank, nranks, root, nchunks)

    def named(name: _Name) -> _Name:
        return lambda rank, index: (name(rank, index // parts), index % parts)

    def aliases(rank: int, nranks: int, root: int, nchunks: int) -> list[tuple[int, int]]:
        pairs = c.aliases(rank, nranks, root, nchunks) if c.aliases else []
        return [(i * parts + part, o * parts + part) for i, o in pairs for part in range(parts)]

    return c._replace(
        ninputs=counted(c.ninputs),
        noutputs=counted(c.noutputs),
        input_item=named(c.input_item),
        output_item=named(c.output_item),
        wanted=lambda rank, index, nranks, root: c.wanted(rank, index // parts, nranks, root),
        aliases=aliases if c.aliases else None,
    )


def nblocks(collective: str, nranks: int, graph: Graph | None = None) -> int:
    """Return the blocks of a whole message, each of a call's count; ``graph``: of a neighbourhood collective, None: a ring."""
    found = COLLECTIVES[collective]
    return (graph or ring(nranks)).degree if found.neighbours else nranks if found.blocks else 1
