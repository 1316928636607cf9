"""Graphs of neighbourhood collectives: which block of which rank becomes which block of which other rank."""

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

from hpcoll.base.errors import ArgumentError
from hpcoll.base.text import is_count, quoted

_MAX_DIMS = 16  # of a grid that is read from a text
NO_RANK = -1  # in place of a neighbour: behind an open edge of a grid. Its block is neither sent nor received
# the rank at the other end of an edge, and the number of the block there; None: `NO_RANK`
End = tuple[int, int] | None


class Graph(NamedTuple):
    """The edges between all ranks, from both of their ends.

    Attributes:
        targets: For each rank, where each block goes that it sends, in its order.
        sources: For each rank, where each block comes from that it receives, in its order.
        degree: The most blocks that a rank sends, or receives; at least 1.
        lonely: Some rank has no blocks at all, and so does not know of which size those of the others are.
    """

    targets: tuple[tuple[End, ...], ...]
    sources: tuple[tuple[End, ...], ...]
    degree: int
    lonely: bool = False

    def __hash__(self) -> int:
        """Return a hash that takes no look at all edges; of two graphs alike it is the same."""
        return hash((self.degree, self.targets[0], len(self.targets)))

    def sent(self, rank: int) -> dict[int, list[int]]:
        """Return the blocks that a rank sends to each of its targets, in the order in which they travel."""
        return _by_peer(self.targets[rank])

    def received(self, rank: int) -> dict[int, list[int]]:
        """Return the blocks that a rank receives from each of its sources, in the order in which they travel."""
        ends = self.sources[rank]
        return {
            peer: sorted(blocks, key=lambda index: ends[index] or ())
            for peer, blocks in _by_peer(ends).items()
        }


def _by_peer(ends: Sequence[End]) -> dict[int, list[int]]:
    """Return the numbers of a rank's blocks by the rank at the other end."""
    indices: dict[int, list[int]] = {}
    for index, end in enumerate(ends):
        if end is not None:
            indices.setdefault(end[0], []).append(index)
    return indices


def matched(targets: Sequence[Sequence[int]], sources: Sequence[Sequence[int]]) -> Graph | None:
    """Return the graph of ranks that name their neighbours, `NO_RANK` among them; None where an edge lacks an end.

    The k-th edge from a rank to another in the order of the one is the k-th in the order of the other.

    >>> matched([[1, 0, 1], []], [[0], [0, 0]])
    Graph(targets=(((1, 0), (0, 0), (1, 1)), ()), sources=(((0, 1),), ((0, 0), (0, 2))), degree=3, lonely=False)
    >>> matched([[1], []], [[], []]) is None
    True
    """
    leaving: dict[tuple[int, int], list[int]] = defaultdict(list)  # (source, target) -> blocks there
    arriving: dict[tuple[int, int], list[int]] = defaultdict(list)
    for rank, peers in enumerate(targets):
        for index, peer in enumerate(peers):
            leaving[rank, peer].append(index)
    for rank, peers in enumerate(sources):
        for index, peer in enumerate(peers):
            arriving[peer, rank].append(index)
    ends: list[list[list[End]]] = [[[None] * len(peers) for peers in side] for side in (targets, sources)]
    for edge in leaving.keys() | arriving.keys():
        if NO_RANK in edge:
            continue
        if len(leaving[edge]) != len(arriving[edge]):
            return None
        for index, other in zip(leaving[edge], arriving[edge], strict=True):
            ends[0][edge[0]][index], ends[1][edge[1]][other] = (edge[1], other), (edge[0], index)
    leave, arrive = (tuple(map(tuple, side)) for side in ends)
    lonely = not all(map(any, zip(map(len, leave), map(len, arrive))))
    return Graph(leave, arrive, max([1, *map(len, (*leave, *arrive))]), lonely)


def grid(dims: Sequence[int], periods: Sequence[bool]) -> Graph:
    """Return the graph of a Cartesian grid, last dimension fastest: of each dimension the neighbour below, then the one above.

    A block that goes up arrives as that of the neighbour below, however few ranks a dimension has.

    >>> grid([2], [True]).targets
    (((1, 1), (1, 0)), ((0, 1), (0, 0)))
    """
    ends: list[tuple[End, ...]] = []
    for rank in range(prod(dims)):
        its_ends: list[End] = []
        for axis, (size, periodic) in enumerate(zip(dims, periods, strict=True)):
            stride = prod(dims[axis + 1 :])
            at = rank // stride % size
            for step in (-1, 1):
                inside = periodic or 0 <= at + step < size
                its_ends.append(
                    (rank + ((at + step) % size - at) * stride, 2 * axis + (step < 0)) if inside else None
                )
        ends.append(tuple(its_ends))
    return Graph(tuple(ends), tuple(ends), max(1, 2 * len(dims)), not dims)


def parse_dims(text: str, nranks: int | None = None) -> tuple[int, ...]:
    """Return the dimensions of the grid that a text describes, such as ``4x2``; ArgumentError unless it has ``nranks`` ranks, if given.

    >>> parse_dims("2x2x2", 8), parse_dims("5")
    ((2, 2, 2), (5,))
    """
    parts = text.split("x")
    if len(parts) > _MAX_DIMS or not all(map(is_count, parts)):
        raise ArgumentError(f"grid must look like 8, 4x2 or 2x2x2, got {quoted(text)}")
    dims = tuple(map(int, parts))
    if nranks is not None and prod(dims) != nranks:
        raise ArgumentError(f"grid {quoted(text)} has {prod(dims)} ranks, expected {nranks}")
    return dims


@lru_cache(maxsize=128)
def ring(nranks: int) -> Graph:
    """Return the graph of a periodic line, for schedules and costs where no other is given."""
    return grid([nranks], [True])
