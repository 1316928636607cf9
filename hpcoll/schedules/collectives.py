"""The meaning of each collective: its buffers, their content before the call and the content required afterwards.

Verifier, lowering and builders all read this one definition. An **item** names data (a part of someone's message); an **extent** names a
size. A value is an item together with the ranks that contributed to it.
"""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

_Count = Callable[[int, int, int, int], int]  # (rank, nranks, root, nchunks) -> number of chunks
_Name = Callable[[int, int], Hashable]  # (rank, index) -> item or extent
_Ranks = Callable[[int, int, int, int], int]  # (rank, index, nranks, root) -> bit mask of contributing ranks
_Aliases = Callable[[int, int, int, int], list[tuple[int, int]]]  # (rank, nranks, root, nchunks) -> chunks of INPUT and of OUTPUT


class Collective(NamedTuple):
    """Pre- and postcondition of one collective.

    Functions take ``(rank, nranks, root, nchunks)`` or, for names, ``(rank, index)``; ``wanted`` takes ``(rank, index, nranks, root)``.
    """

    name: str  # in lower case
    ninputs: _Count  # chunks of INPUT on a rank
    noutputs: _Count  # chunks of OUTPUT on a rank
    input_item: _Name  # item in a chunk of INPUT
    output_item: _Name  # item that a chunk of OUTPUT must hold at the end
    wanted: _Ranks  # ranks whose contributions a chunk of OUTPUT must hold, as a bit mask; 0: any content will do
    input_extent: _Name  # extent of a chunk of INPUT; equal extents are equal sizes on all ranks
    output_extent: _Name  # extent of a chunk of OUTPUT
    aliases: _Aliases | None  # pairs of chunks that are one memory in an in-place call; None: hpcoll copies in such calls
    always_in_place: bool = False  # there is one buffer (bcast), so INPUT and OUTPUT are the same
    rooted: bool = False  # one rank is the root
    reduces: bool = False  # contributions are combined by an operator
    ordered: bool = False  # the result is defined in rank order for every operator (scan)
    idempotent: bool = False  # a contribution that arrives twice counts once (barrier)
    blocks: bool = False  # there is a block per rank (allgather, ...), rather than one vector


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


def _all(rank: int, index: int, nranks: int, root: int) -> int:
    return (1 << nranks) - 1


def _only_root(rank: int, index: int, nranks: int, root: int) -> int:
    return 1 << root


def _index_rank(rank: int, index: int, nranks: int, root: int) -> int:
    return 1 << index


def _identity(count: _Count) -> _Aliases:
    return lambda rank, nranks, root, nchunks: [(i, i) for i in range(count(rank, nranks, root, nchunks))]


_vector: dict[str, Any] = dict.fromkeys(("input_item", "output_item", "input_extent", "output_extent"), _index)

COLLECTIVES = {
    c.name: c
    for c in (
        Collective("allreduce", _nchunks, _nchunks, **_vector, wanted=_all, aliases=_identity(_nchunks), reduces=True),
        Collective("reduce", _nchunks, _at_root(_nchunks), **_vector,
            wanted=_all, aliases=_identity(_at_root(_nchunks)), rooted=True, reduces=True),
        Collective("bcast", _at_root(_nchunks), _nchunks, **_vector,
            wanted=_only_root, aliases=_identity(_at_root(_nchunks)), always_in_place=True, rooted=True),
        Collective("scan", _nchunks, _nchunks, **_vector,
            wanted=lambda rank, index, nranks, root: (2 << rank) - 1, aliases=_identity(_nchunks), reduces=True, ordered=True),
        Collective("exscan", _nchunks, _nchunks, **_vector,
            wanted=lambda rank, index, nranks, root: (1 << rank) - 1, aliases=_identity(_nchunks), reduces=True, ordered=True),
        Collective("barrier", _one, _one, **_vector, wanted=_all, aliases=_identity(_one), reduces=True, idempotent=True),
        Collective("allgather", _one, _nranks, _rank, _index, _index_rank, _rank, _index,
            aliases=lambda rank, nranks, root, nchunks: [(0, rank)], blocks=True),
        Collective("reduce_scatter", _nranks, _one, _index, _rank, _all, _index, _rank, aliases=None, reduces=True, blocks=True),
        Collective("gather", _one, _at_root(_nranks), _rank, _index, _index_rank, _rank, _index,
            aliases=lambda rank, nranks, root, nchunks: [(0, rank)] if rank == root else [], rooted=True, blocks=True),
        Collective("scatter", _at_root(_nranks), _one, _index, _rank, _only_root, _index, _rank,
            aliases=lambda rank, nranks, root, nchunks: [(rank, 0)] if rank == root else [], rooted=True, blocks=True),
        Collective("alltoall", _nranks, _nranks, lambda rank, index: (rank, index), lambda rank, index: (index, rank), _index_rank,
            lambda rank, index: (rank, index), lambda rank, index: (index, rank), aliases=None, blocks=True),
    )
}  # fmt: skip
