"""What each collective means: its buffers, what is in them before and what must be in them after.

The only definition of a collective in hpcoll: the verifier, the lowering and the builders read it, none repeats it.
An **item** names data (which part of whose message); an **extent** names a size. A value is an item together
with the ranks that contributed to it.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

_Count = Callable[[int, int, int, int], int]  # (rank, nranks, root, nchunks) -> number of chunks
_Name = Callable[[int, int], Hashable]  # (rank, index) -> item or extent
_Ranks = Callable[[int, int, int, int], int]  # (rank, index, nranks, root) -> bit mask of contributing ranks


def _all(rank: int, index: int, nranks: int, root: int) -> int:
    return (1 << nranks) - 1


def _only_root(rank: int, index: int, nranks: int, root: int) -> int:
    return 1 << root


def _index_rank(rank: int, index: int, nranks: int, root: int) -> int:
    return 1 << index


@dataclass(frozen=True)
class Collective:
    """Pre- and postcondition of one collective.

    Attributes:
        name: MPI's name in lower case.
        ninputs, noutputs: Chunks of INPUT and OUTPUT on a rank, from ``(rank, nranks, root, nchunks)``.
        input_item, output_item: Item that INPUT chunk ``index`` holds, or that OUTPUT chunk ``index`` must hold at the end.
        wanted: Ranks whose contributions an OUTPUT chunk must hold, as a bit mask; 0 leaves it unspecified.
        input_extent, output_extent: Size name of a chunk. Equal extents have equal size on all ranks.
        aliases: In an in-place call, ``(INPUT index, OUTPUT index)`` pairs that are one memory on this rank:
            from ``(rank, nranks, root, nchunks)``. None where hpcoll serves in-place calls by a copy.
        always_in_place: One buffer only (bcast): INPUT and OUTPUT are the same.
        rooted, reduces, ordered, idempotent: Has a root; combines contributions; is defined in rank order for every
            operator (scan); counts a contribution that arrives twice as one (barrier).
        blocks: Made of one block per rank (allgather, ...) rather than of one vector.
    """

    name: str
    ninputs: _Count
    noutputs: _Count
    input_item: _Name
    output_item: _Name
    wanted: _Ranks
    input_extent: _Name
    output_extent: _Name
    aliases: Callable[[int, int, int, int], list[tuple[int, int]]] | None
    always_in_place: bool = False
    rooted: bool = False
    reduces: bool = False
    ordered: bool = False
    idempotent: bool = False
    blocks: bool = False


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


def _identity(count: _Count) -> Callable[[int, int, int, int], list[tuple[int, int]]]:
    return lambda rank, nranks, root, nchunks: [(i, i) for i in range(count(rank, nranks, root, nchunks))]


_vector: dict[str, Any] = dict.fromkeys(("input_item", "output_item", "input_extent", "output_extent"), _index)

COLLECTIVES = {
    c.name: c
    for c in (
        Collective("allreduce", _nchunks, _nchunks, **_vector, wanted=_all, aliases=_identity(_nchunks), reduces=True),
        Collective(
            "reduce", _nchunks, _at_root(_nchunks), **_vector, wanted=_all, aliases=_identity(_at_root(_nchunks)), rooted=True, reduces=True
        ),
        Collective(
            "bcast", _at_root(_nchunks), _nchunks, **_vector,
            wanted=_only_root, aliases=_identity(_at_root(_nchunks)), always_in_place=True, rooted=True,
        ),
        Collective(
            "scan", _nchunks, _nchunks, **_vector,
            wanted=lambda rank, index, nranks, root: (2 << rank) - 1, aliases=_identity(_nchunks), reduces=True, ordered=True,
        ),
        Collective(
            "exscan", _nchunks, _nchunks, **_vector,
            wanted=lambda rank, index, nranks, root: (1 << rank) - 1, aliases=_identity(_nchunks), reduces=True, ordered=True,
        ),
        Collective("barrier", _one, _one, **_vector, wanted=_all, aliases=_identity(_one), reduces=True, idempotent=True),
        Collective(
            "allgather", _one, _nranks, _rank, _index, _index_rank, _rank, _index,
            aliases=lambda rank, nranks, root, nchunks: [(0, rank)], blocks=True,
        ),
        Collective("reduce_scatter", _nranks, _one, _index, _rank, _all, _index, _rank, aliases=None, reduces=True, blocks=True),
        Collective(
            "gather", _one, _at_root(_nranks), _rank, _index, _index_rank, _rank, _index,
            aliases=lambda rank, nranks, root, nchunks: [(0, rank)] if rank == root else [], rooted=True, blocks=True,
        ),
        Collective(
            "scatter", _at_root(_nranks), _one, _index, _rank, _only_root, _index, _rank,
            aliases=lambda rank, nranks, root, nchunks: [(rank, 0)] if rank == root else [], rooted=True, blocks=True,
        ),
        Collective(
            "alltoall", _nranks, _nranks,
            lambda rank, index: (rank, index), lambda rank, index: (index, rank), _index_rank,
            lambda rank, index: (rank, index), lambda rank, index: (index, rank), aliases=None, blocks=True,
        ),
    )
}
