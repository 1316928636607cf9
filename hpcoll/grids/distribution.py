"""`Distribution`: the parts of an n-dimensional array that ranks have. It is read and proven from its arguments, without MPI."""

import operator
from collections.abc import Iterable, Sequence
from functools import cached_property
from hashlib import blake2b
from itertools import product
from math import prod
from typing import Any, NoReturn

import numpy as np

from hpcoll.base.errors import ArgumentError
from hpcoll.base.text import MAX_RANKS, quoted, ranks_in_words
from hpcoll.grids.parts import Parts, Words, evenly, first_wrong, in_a_row, in_turns, parts_of

_SHOWN = 8  # boxes in a text
_MOST = 1 << 60  # elements along an axis


class Distribution:
    """A value that says which rank has which part of an n-dimensional array. Each element is on one rank, or on all of a group.

    Two are equal if all ranks have equal parts. It can be pickled, and needs no MPI.

        hpcoll.Distribution((1000, 800), 4, split=0)                              # blocks of rows
        hpcoll.Distribution((1000, 800), 4, split=0, sizes=(500, 0, 300, 200))    # of these sizes
        hpcoll.Distribution((1000, 800), 4, grid=(2, 2))                          # a grid of ranks, the last axis fastest
        hpcoll.Distribution((1000, 800), 4, grid=(2, 2), block=64)                # block-cyclic, as ScaLAPACK has it
        hpcoll.Distribution((1000, 800), 4, grid=(2, 2), split=(1, None))         # columns; each block is on two ranks
        hpcoll.Distribution((1000, 800), 2, boxes=[((0, 1000), (0, 800)), None])  # all of it on rank 0
        hpcoll.Distribution((1000, 800), 4)                                       # all of it on all ranks

    The local array of a rank has the rank's intervals of each axis one behind the other, in ascending order.

    Args:
        shape: Elements along each axis, 0 or more; at least one axis.
        nranks: Number of ranks, 1 or more.
        split: Axis that is cut into a block for each rank, as `numpy.array_split` cuts. With ``grid`` it has an axis for each dimension
            of the grid. None in it is a dimension along which ranks have the same part.
        grid: Ranks along each dimension of a grid, the last one fastest. Without ``split`` its dimensions are the first axes.
        boxes: For each rank ``(start, stop)`` along each axis, a list of such boxes, or None for nothing. Several boxes of a rank are all
            combinations of some intervals along each axis. Boxes do not overlap, unless each is the whole array.
        sizes: Elements of each block along the axis. With ``grid`` it has such a sequence for each dimension, or None.
        block: Elements of a block, where blocks are dealt out in turns. With ``grid`` it may have one for each dimension, or None.

    Attributes:
        shape: Elements along each axis.
        nranks: Number of ranks.

    Raises:
        ArgumentError: An argument cannot be used, or boxes overlap or leave a gap: the text names the first element and its ranks.
    """

    def __init__(
        self,
        shape: Sequence[int],
        nranks: int,
        *,
        split: int | Sequence[int | None] | None = None,
        grid: Sequence[int] | None = None,
        boxes: Iterable[Any] | None = None,
        sizes: Sequence[Any] | None = None,
        block: int | Sequence[int | None] | None = None,
    ) -> None:
        self._shape = _numbers("a shape with one axis or more, each of 0 elements or more", shape)
        self._nranks = _numbers(f"1 to {MAX_RANKS} ranks", [nranks], least=1, most=MAX_RANKS)[0]
        given = {"split": split, "grid": grid, "sizes": sizes, "block": block}
        options = {name: value for name, value in given.items() if value is not None}
        text = [f"{self._shape}", f"{self._nranks}"]
        text += [f"{name}={quoted(_plain(value))}" for name, value in options.items()]
        if boxes is not None:
            if options:
                _refuse("boxes= alone", ", ".join(options))
            each = list(boxes) if isinstance(boxes, Iterable) else []
            if len(each) != self._nranks:
                _refuse(f"boxes= with a value for each of {self._nranks} ranks", quoted(boxes))
            self._parts = _of_boxes(self._shape, each)
            text.append(f"boxes={quoted([_plain(one) for one in each[:_SHOWN]])}")
        elif split is not None or grid is not None:
            self._parts = _of_grid(self._shape, self._nranks, **given)
        else:
            if options:
                _refuse(f"split= or grid= for {' and '.join(options)}=", "none")
            whole = [[np.array([[0, n]])] for n in self._shape]
            self._parts = parts_of(whole, [np.zeros(self._nranks, int)] * len(self._shape))
        self._text = f"Distribution({', '.join(text)})"

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self._shape

    @property
    def nranks(self) -> int:
        """Number of ranks."""
        return self._nranks

    @property
    def parts(self) -> Parts:
        """The parts of all ranks, as plans use them."""
        return self._parts

    @cached_property
    def digest(self) -> str:
        """The digest of the parts: equal for equal distributions."""
        arrays = [array for cuts in self._parts.cuts for array in cuts]
        known = blake2b(repr((self._shape, self._nranks)).encode(), digest_size=16)
        for array in (*arrays, self._parts.coords):
            known.update(repr(array.shape).encode())
            known.update(array.tobytes())
        return known.hexdigest()

    def local_shape(self, rank: int) -> tuple[int, ...]:
        """Return the shape of a rank's local array.

        Raises:
            ArgumentError: There is no such rank.
        """
        return tuple(int((own[:, 1] - own[:, 0]).sum()) for own in self._intervals(rank))

    def boxes(self, rank: int) -> list[tuple[tuple[int, int], ...]]:
        """Return the boxes of a rank, ``(start, stop)`` along each axis, in row-major order; none where it has no element.

        Raises:
            ArgumentError: There is no such rank.
        """
        return list(product(*([(low, high) for low, high in own.tolist()] for own in self._intervals(rank))))

    def owner(self, index: int | Sequence[int]) -> int:
        """Return the first rank that has an element.

        Args:
            index: Index of the element along each axis, from 0 on; a number for an array with one axis.

        Raises:
            ArgumentError: There is no such element.
        """
        try:
            place = [operator.index(i) for i in (index if isinstance(index, Iterable) else [index])]
        except TypeError:
            place = []
        if len(place) != len(self._shape) or not all(0 <= i < n for i, n in zip(place, self._shape)):
            raise ArgumentError(f"owner needs an index of an array of shape {self._shape}, got {index!r}")
        has = np.ones(self._nranks, bool)
        for axis, i in enumerate(place):
            has &= self._parts.cuts[axis].having(i)[self._parts.coords[:, axis]]
        return int(np.argmax(has))

    def _intervals(self, rank: int) -> list[Words]:
        if not 0 <= rank < self._nranks:
            raise ArgumentError(f"{self._text} needs a rank from 0 to {self._nranks - 1}, got {rank}")
        return [self._parts.own(rank, axis) for axis in range(len(self._shape))]

    def __eq__(self, other: object) -> bool:
        return self.digest == other.digest if isinstance(other, Distribution) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"hpcoll.{self._text}"


def _refuse(expected: str, got: str) -> NoReturn:
    raise ArgumentError(f"Distribution needs {expected}, got {got}")


def _plain(value: Any) -> Any:
    """Return an array as a list, and anything else as it is."""
    return value.tolist() if isinstance(value, np.ndarray) else value


def _numbers(expected: str, values: Any, least: int = 0, most: int = _MOST) -> tuple[int, ...]:
    """Return one number or more, each in a range."""
    try:
        numbers = tuple(operator.index(value) for value in values)
    except TypeError:
        numbers = ()
    if not numbers or not all(least <= number <= most for number in numbers):
        _refuse(expected, quoted(values))
    return numbers


def _of_grid(shape: Sequence[int], nranks: int, *, split: Any, grid: Any, sizes: Any, block: Any) -> Parts:
    """Return the parts of ranks in a grid. It has one dimension where there is only an axis to split."""
    if grid is None:
        grid = [nranks]
        split = [split]
        sizes = None if sizes is None else [sizes]
        block = None if block is None else [block]
    dims = _numbers(f"a grid of {nranks} ranks", grid, least=1)
    if prod(dims) != nranks:
        _refuse(f"a grid of {nranks} ranks", quoted(grid))
    split = _each("split", range(len(dims)) if split is None else split, dims)
    sizes = _each("sizes", [None] * len(dims) if sizes is None else sizes, dims)
    block = _each("block", [block] * len(dims) if not isinstance(block, Iterable) else block, dims)
    axes: list[Sequence[Words]] = [[np.array([[0, n]])] for n in shape]
    ranks = [np.zeros(nranks, int)] * len(shape)
    cut = set[int]()
    for coords, d, axis, given, length in zip(
        np.unravel_index(np.arange(nranks), dims), dims, split, sizes, block
    ):
        if axis is None:
            continue
        try:
            axis = range(len(shape))[axis]
        except (IndexError, TypeError):
            _refuse(f"an axis of {len(shape)} to split", quoted(axis))
        if axis in cut:
            _refuse("different axes to split", quoted(split))
        cut.add(axis)
        axes[axis] = _cuts(axis, shape[axis], d, given, length)
        ranks[axis] = coords
    return parts_of(axes, ranks)


def _each(name: str, values: Any, dims: Sequence[int]) -> list[Any]:
    """Return an argument that has a value for each dimension of the grid."""
    if not isinstance(values, Iterable) or len(each := list(values)) != len(dims):
        _refuse(f"{name}= with a value for each dimension of a grid {tuple(dims)}", quoted(values))
    return each


def _cuts(axis: int, n: int, nparts: int, sizes: Any, block: Any) -> list[Words]:
    """Return the intervals of each part along an axis."""
    if block is not None:
        if sizes is not None:
            _refuse(f"sizes= or block= for axis {axis}", "both")
        return in_turns(n, nparts, *_numbers("blocks of 1 element or more", [block], least=1))
    if sizes is None:
        return evenly(n, nparts)
    expected = f"{nparts} sizes of 0 or more that add up to {n} along axis {axis}"
    numbers = _numbers(expected, sizes)
    if len(numbers) != nparts or sum(numbers) != n:
        _refuse(expected, quoted(sizes))
    return in_a_row(numbers)


def _of_boxes(shape: Sequence[int], given: Sequence[Any]) -> Parts:
    """Return the parts that ranks' boxes are, once it is proven that they make up the array."""
    each = [_boxes(shape, rank, value) for rank, value in enumerate(given)]
    _prove(shape, each)
    axes = [[_along(boxes, axis) for boxes in each] for axis in range(len(shape))]
    for rank, boxes in enumerate(each):
        if len(boxes) != prod(len(intervals[rank]) for intervals in axes):
            _refuse(f"boxes of rank {rank} that are all combinations of intervals", quoted(given[rank]))
    return parts_of(axes, [np.arange(len(given))] * len(shape))


def _boxes(shape: Sequence[int], rank: int, value: Any) -> Words:
    """Return the boxes of a rank, ``(nboxes, naxes, 2)``; only one alone may be empty."""
    expected = f"boxes of rank {rank} with (start, stop) in each axis of {tuple(shape)}"
    if value is None or (isinstance(value, Sequence) and not value):
        return np.zeros((0, len(shape), 2), np.int64)
    try:
        boxes = np.asarray(value)
    except ValueError:
        _refuse(expected, quoted(value))
    if boxes.ndim == 2:
        boxes = boxes[np.newaxis]
    if boxes.dtype.kind not in "iu" or boxes.shape[1:] != (len(shape), 2):
        _refuse(expected, quoted(value))
    boxes = boxes.astype(np.int64)
    starts, stops = boxes[..., 0], boxes[..., 1]
    if (starts < 0).any() or (stops < starts).any() or (stops > shape).any():
        _refuse(expected, quoted(value))
    return boxes if len(boxes) == 1 else boxes[(starts < stops).all(axis=1)]


def _along(boxes: Words, axis: int) -> Words:
    """Return the intervals of a rank's boxes along an axis, ascending."""
    return boxes[:, axis] if len(boxes) < 2 else np.unique(boxes[:, axis], axis=0)


def _prove(shape: Sequence[int], each: Sequence[Words]) -> None:
    """Refuse boxes that overlap or leave a gap."""
    boxes = np.concatenate(each)
    ranks = np.repeat(np.arange(len(each)), [len(one) for one in each])
    filled = (boxes[..., 0] < boxes[..., 1]).all(axis=1)
    boxes = boxes[filled]
    whole = len(boxes) > 0 and bool((boxes == [(0, n) for n in shape]).all())
    if whole or 0 in shape:
        return
    if wrong := first_wrong(boxes, ranks[filled], shape):
        index, having = wrong
        where = ranks_in_words(sorted(set(having))) if having else "no rank"
        times = " several times" if len(having) > len(set(having)) else ""
        _refuse("each element in the box of one rank", f"element {tuple(index)} on {where}{times}")
