"""Parts of an array: for each axis some intervals of it, and the part that a rank has. Pure arithmetic, without MPI.

A part is the product of its intervals along all axes. So all computing is along one axis at a time, and ranks that share a coordinate
share the work.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Words: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


class Cuts(NamedTuple):
    """The intervals of an axis that parts have: those of one part ascend, and no two of them touch."""

    intervals: Words  # (n, 2): start and stop of each, part after part
    firsts: Words  # (nparts + 1,): the first of each part

    def of(self, part: int) -> Words:
        """Return the intervals of a part."""
        return self.intervals[self.firsts[part] : self.firsts[part + 1]]

    def having(self, at: int) -> np.ndarray[Any, Any]:
        """Say for each part whether it has an index."""
        starts, stops = self.intervals.T
        (found,) = np.nonzero((starts <= at) & (at < stops))
        has = np.zeros(len(self.firsts) - 1, bool)
        has[np.searchsorted(self.firsts, found, "right") - 1] = True
        return has


class Parts(NamedTuple):
    """The parts of all ranks. Ranks whose parts are equal are a group; parts of different groups have nothing in common."""

    cuts: tuple[Cuts, ...]  # of each axis
    coords: np.ndarray[Any, Any]  # (nranks, naxes): which of an axis's cuts a rank has
    group: np.ndarray[Any, Any]  # (nranks,)
    number: np.ndarray[Any, Any]  # (nranks,): how many of the group come before
    replicas: np.ndarray[Any, Any]  # (nranks,): how many the group has

    def own(self, rank: int, axis: int) -> Words:
        """Return the intervals of a rank along an axis."""
        return self.cuts[axis].of(self.coords[rank, axis])

    def transposed(self, axes: Sequence[int]) -> "Parts":
        """Return the parts of the array whose axis ``i`` is axis ``axes[i]`` of this one."""
        return self._replace(cuts=tuple(self.cuts[axis] for axis in axes), coords=self.coords[:, list(axes)])


class Pieces(NamedTuple):
    """The pieces of a part along an axis that it has in common with each of some cuts."""

    starts: Words  # (n,): where each begins in the local array
    lengths: Words  # (n,)
    firsts: Words  # (nparts + 1,): the first of each of the cuts

    def of(self, part: int) -> tuple[Words, Words]:
        """Return starts and lengths of those in common with one of the cuts."""
        these = slice(self.firsts[part], self.firsts[part + 1])
        return self.starts[these], self.lengths[these]


def pieces_of(own: Words, cuts: Cuts) -> Pieces:
    """Return what the intervals of a part have in common with each of an axis's cuts, in ascending order.

    >>> pieces = pieces_of(np.array([[2, 4], [6, 9]]), Cuts(np.array([[0, 3], [3, 8]]), np.array([0, 1, 2])))
    >>> [[numbers.tolist() for numbers in pieces.of(part)] for part in (0, 1)]
    [[[0], [1]], [[1, 2], [1, 2]]]
    """
    low = np.searchsorted(own[:, 1], cuts.intervals[:, 0], "right")
    counts = np.searchsorted(own[:, 0], cuts.intervals[:, 1], "left") - low
    theirs, turns = _repeats(counts)
    mine = low[theirs] + turns
    starts = np.maximum(cuts.intervals[theirs, 0], own[mine, 0])
    lengths = np.minimum(cuts.intervals[theirs, 1], own[mine, 1]) - starts
    sizes = own[:, 1] - own[:, 0]
    shifts = np.cumsum(sizes) - sizes - own[:, 0]  # from an index of the array to one of the local array
    return Pieces(starts + shifts[mine], lengths, np.searchsorted(theirs, cuts.firsts))


def cut_up(starts: Words, lengths: Words, most: int) -> tuple[Words, Words]:
    """Return runs as runs of at most ``most`` elements, those one behind the other as one before.

    >>> [numbers.tolist() for numbers in cut_up(np.array([0, 2, 9]), np.array([2, 3, 1]), 4)]
    [[0, 4, 9], [4, 1, 1]]
    """
    gaps = starts[1:] != (starts + lengths)[:-1]
    starts = starts[np.concatenate([[True], gaps])]
    lengths = np.add.reduceat(lengths, np.concatenate([[0], np.flatnonzero(gaps) + 1]))
    whole, turns = _repeats(-(-lengths // most))
    return starts[whole] + turns * most, np.minimum(lengths[whole] - turns * most, most)


def between(starts: Words, lengths: Words, low: int, high: int) -> tuple[Words, Words]:
    """Return what runs have of the elements ``low`` to ``high``, numbered run after run.

    >>> [numbers.tolist() for numbers in between(np.array([0, 5, 9]), np.array([2, 3, 1]), 1, 4)]
    [[1, 5], [1, 2]]
    """
    ends = np.cumsum(lengths)
    firsts = ends - lengths
    inside = (firsts < high) & (ends > low)
    skipped = np.maximum(low - firsts, 0)[inside]
    cut = np.maximum(ends - high, 0)[inside]
    return starts[inside] + skipped, lengths[inside] - skipped - cut


def indices(starts: Words, lengths: Words) -> Words:
    """Return the indices of all elements of runs.

    >>> indices(np.array([2, 8]), np.array([3, 1])).tolist()
    [2, 3, 4, 8]
    """
    runs, turns = _repeats(lengths)
    return starts[runs] + turns


def _repeats(counts: Words) -> tuple[Words, Words]:
    """Return each index as often as its count says, and how often it was there before."""
    index = np.repeat(np.arange(len(counts)), counts)
    return index, np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)


# --- parts from intervals


def parts_of(axes: Sequence[Sequence[Words]], ranks: Sequence[Any]) -> Parts:
    """Return the parts of ranks.

    Args:
        axes: For each axis the intervals that parts have, ascending.
        ranks: For each axis which of these each rank has, ``(nranks,)``.
    """
    cuts = list[Cuts]()
    columns = list[Any]()
    for intervals, column in zip(axes, ranks, strict=True):
        merged = [_merged(one) for one in intervals]
        names = [one.tobytes() for one in merged]
        known = dict(zip(names, merged))
        order = {name: i for i, name in enumerate(sorted(known))}  # equal parts are equal values
        sizes = [len(known[name]) for name in order]
        cuts.append(Cuts(np.concatenate([known[name] for name in order]), np.cumsum([0, *sizes])))
        columns.append(np.array([order[name] for name in names], np.int32)[column])
    coords = np.stack(columns, axis=1)
    _, group, replicas = np.unique(coords, axis=0, return_inverse=True, return_counts=True)
    group = group.reshape(-1)
    by_group = np.argsort(group, kind="stable")
    number = np.empty_like(group)
    number[by_group] = np.arange(len(group)) - np.repeat(np.cumsum(replicas) - replicas, replicas)
    return Parts(tuple(cuts), coords, group, number, replicas[group])


def _merged(intervals: Words) -> Words:
    """Return ascending intervals without empty ones, and those that touch as one."""
    intervals = intervals[intervals[:, 0] < intervals[:, 1]]
    if len(intervals) < 2:
        return intervals
    gaps = intervals[1:, 0] != intervals[:-1, 1]
    starts = intervals[np.concatenate([[True], gaps]), 0]
    stops = intervals[np.concatenate([gaps, [True]]), 1]
    return np.stack([starts, stops], axis=1)


def in_a_row(sizes: Any) -> list[Words]:
    """Return intervals of given sizes, one behind the other, each for a part of its own."""
    stops = np.cumsum(np.asarray(sizes, np.int64))
    return list(np.stack([stops - sizes, stops], axis=1).reshape(-1, 1, 2))


def evenly(n: int, nparts: int) -> list[Words]:
    """Return an axis of ``n`` elements cut as `numpy.array_split` cuts it."""
    return in_a_row([n // nparts + (part < n % nparts) for part in range(nparts)])


def in_turns(n: int, nparts: int, block: int) -> list[Words]:
    """Return an axis of ``n`` elements in blocks that parts have in turns.

    >>> [part.tolist() for part in in_turns(7, 2, 2)]
    [[[0, 2], [4, 6]], [[2, 4], [6, 7]]]
    """
    starts = [np.arange(part * block, n, nparts * block, dtype=np.int64) for part in range(nparts)]
    return [np.stack([one, np.minimum(one + block, n)], axis=1) for one in starts]


# --- the proof that boxes make up an array


def first_wrong(boxes: Words, ranks: Words, shape: Sequence[int]) -> tuple[list[int], list[int]] | None:
    """Return the first element that is not in one box, and the ranks whose boxes have it; None where there is no such element.

    Between two edges of boxes along an axis, all indices are in the same ones. So no element is looked at by itself.

    Args:
        boxes: ``(nboxes, naxes, 2)``: start and stop along each axis; none is empty.
        ranks: ``(nboxes,)``: whose they are.
        shape: The array's, without zeros.

    >>> first_wrong(np.array([[[0, 2], [0, 5]], [[1, 3], [4, 5]]]), np.array([0, 1]), (3, 5))
    ([1, 4], [0, 1])
    """
    starts, stops = boxes[:, 0].T
    if len(shape) > 1:
        edges = np.unique([0, *starts, *stops[stops < shape[0]]])
        for at in edges.tolist():
            here = (starts <= at) & (at < stops)
            if wrong := first_wrong(boxes[here, 1:], ranks[here], shape[1:]):
                return [at, *wrong[0]], wrong[1]
        return None
    order = np.argsort(starts, kind="stable")
    expected = np.concatenate([[0], stops[order]])
    got = np.concatenate([starts[order], [shape[0]]])
    if (expected == got).all():
        return None
    i = int(np.argmax(expected != got))
    at = int(min(expected[i], got[i]))
    return [at], sorted(ranks[(starts <= at) & (at < stops)].tolist())
