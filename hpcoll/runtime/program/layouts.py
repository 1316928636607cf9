"""Layouts: how the bytes of an element lie in memory, and maps: how the blocks of a buffer do. Pure arithmetic.

The bytes that travel are numbered as they are packed. A program knows these numbers alone: displacements in a mapped buffer are packed
ones, and `hpcoll.runtime.engine.compiled.mapped_ops` finds the memory by the map that the engine has been given with the call.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from hpcoll.runtime.program.fields import PACKED_AT, PIECE_NBYTES, PIECE_NFIELDS, PIECE_OFFSET, PIECES

_EVERY_NBYTES = 1 << 61  # more than any message has
Words: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


class Layout:
    """The memory of an element: pieces in the order in which they are packed. A piece is nested loops around a run of contiguous bytes.

    Attributes:
        pieces: int64 ``(npieces, PIECE_NFIELDS + 2 * nloops)``: packed position, offset and bytes of the first run, then ``(count,
            stride)`` of each loop, the outermost first. Pieces are as few and have as few loops as is known to do.
        size: Bytes that travel.
    """

    __slots__ = ("pieces", "size")

    def __init__(self, pieces: Words, size: int) -> None:
        self.pieces, self.size = pieces, size

    @classmethod
    def of_run(cls, nbytes: int) -> "Layout":
        """Return the layout of contiguous bytes."""
        return cls(np.array([[0, 0, nbytes]], np.int64), nbytes)

    @classmethod
    def of_runs(cls, offsets: Any, nbytes: Any) -> "Layout":
        """Return the layout of runs, packed one behind the other; arguments are sequences of integers, one per run."""
        runs = np.array([np.cumsum(nbytes) - nbytes, offsets, nbytes], np.int64).T
        return _merged(runs[runs[:, PIECE_NBYTES] > 0], int(np.sum(nbytes)))

    @classmethod
    def of_array(cls, shape: Sequence[int], strides: Sequence[int], itemsize: int) -> "Layout":
        """Return the layout of an array's elements in C order; strides in bytes."""
        layout = cls.of_run(itemsize)
        for n, stride in zip(shape[::-1], strides[::-1], strict=True):
            layout = layout.repeated(n, stride)
        return layout

    @property
    def loops(self) -> list[tuple[int, int]]:
        """Counts and strides of the only piece's loops, the outermost first."""
        numbers = self.pieces[0, PIECE_NFIELDS:].tolist()
        return list(zip(numbers[::2], numbers[1::2], strict=True))

    def repeated(self, count: int, stride: int) -> "Layout":
        """Return the layout of so many of these, ``stride`` bytes from one to the next."""
        if not count or not self.size:
            return EMPTY
        if count == 1:
            return self
        if len(self.pieces) > 1:
            pieces, turns = np.tile(self.pieces, (count, 1)), np.repeat(np.arange(count), len(self.pieces))
            pieces[:, PACKED_AT] += turns * self.size
            pieces[:, PIECE_OFFSET] += turns * stride
            return _merged(pieces, count * self.size)
        loops, (at, offset, nbytes) = self.loops, self.pieces[0, :PIECE_NFIELDS].tolist()
        if not loops and stride == nbytes:
            nbytes *= count
        elif loops and stride == loops[0][0] * loops[0][1]:
            loops[0] = count * loops[0][0], loops[0][1]
        else:
            loops.insert(0, (count, stride))
        return Layout(
            np.array([[at, offset, nbytes, *(number for loop in loops for number in loop)]], np.int64),
            count * self.size,
        )

    def boxes(self, extent: int, axes: Iterable[tuple[int, Sequence[tuple[int, int]]]]) -> "Layout":
        """Return the layout of a part of a grid of these, ``extent`` bytes apart.

        ``axes`` has the length of each axis and the ranges ``(first, length)`` of it that belong to the part, the fastest axis first.
        """
        layout, step = self, extent
        for length, ranges in axes:
            layout = joined((first * step, layout.repeated(n, step)) for first, n in ranges)
            step *= length
        return layout

    def is_plain(self, extent: int) -> bool:
        """Say whether elements of this layout, ``extent`` bytes apart, are contiguous bytes."""
        return extent == self.size and self.pieces.tolist() == [[0, 0, extent]]

    def table(self, extent: int) -> Words:
        """Return the layout of any number of elements, ``extent`` bytes apart, as compiled code reads it."""
        whole = self.repeated(_EVERY_NBYTES // self.size, extent) if len(self.pieces) == 1 else self
        nloops = (whole.pieces.shape[1] - PIECE_NFIELDS) // 2
        return np.array([whole.size, extent, len(whole.pieces), nloops, *whole.pieces.ravel()], np.int64)


EMPTY = Layout(np.zeros((0, PIECE_NFIELDS), np.int64), 0)


def joined(parts: Iterable[tuple[int, Layout]]) -> Layout:
    """Return the layout of others, packed one behind the other, each at a displacement in bytes."""
    given = [(displ, layout) for displ, layout in parts if layout.size]
    width, size = max((layout.pieces.shape[1] for _, layout in given), default=PIECE_NFIELDS), 0
    every = [np.zeros((0, width), np.int64)]
    for displ, layout in given:
        pieces = np.empty((len(layout.pieces), width), np.int64)
        npad = width - layout.pieces.shape[1]
        pieces[:, :PIECE_NFIELDS] = layout.pieces[:, :PIECE_NFIELDS] + [size, displ, 0]
        # loops that are none, outside the others
        pieces[:, PIECE_NFIELDS : PIECE_NFIELDS + npad] = [1, 0] * (npad // 2)
        pieces[:, PIECE_NFIELDS + npad :] = layout.pieces[:, PIECE_NFIELDS:]
        every.append(pieces)
        size += layout.size
    return _merged(np.concatenate(every), size)


def _merged(pieces: Words, size: int) -> Layout:
    """Return the layout of pieces, in one where runs are contiguous, and in a loop where all are alike and equally far apart."""
    if pieces.shape[1] == PIECE_NFIELDS and len(pieces) > 1:
        ends = pieces[:, PIECE_OFFSET] + pieces[:, PIECE_NBYTES]
        pieces = pieces[np.concatenate([[True], pieces[1:, PIECE_OFFSET] != ends[:-1]])]
        pieces[:, PIECE_NBYTES] = np.diff(pieces[:, PACKED_AT], append=size)
    steps = np.diff(pieces[:, PIECE_OFFSET])
    if (
        len(pieces) > 1
        and (steps == steps[0]).all()
        and (pieces[:, PIECE_NBYTES:] == pieces[0, PIECE_NBYTES:]).all()
    ):
        return Layout(pieces[:1], size // len(pieces)).repeated(len(pieces), int(steps[0]))
    return Layout(pieces, size)


class Map:
    """The memory of a buffer's blocks, which lie one behind the other as far as a program knows.

    Args:
        blocks: Of each block the packed bytes, the displacement in bytes from the buffer's address on, and the table of its layout.
    """

    def __init__(self, blocks: Iterable[tuple[int, int, Words]]) -> None:
        self._blocks = list(blocks)
        sizes, displs, tables = zip(*self._blocks, strict=True)
        self.nbytes = sum(sizes)  # that are packed
        firsts = np.cumsum([0, *sizes[:-1]])
        places = np.array([firsts, displs, [table.ctypes.data for table in tables]], np.int64)
        self._words = np.array([len(sizes), *places.T.ravel()], np.int64)
        self.address: int = self._words.ctypes.data  # for compiled code

    @cached_property
    def pieces(self) -> Words:
        """The pieces of all blocks, as those of one `Layout`."""
        return joined(
            (displ, _of_table(table, nbytes)) for nbytes, displ, table in self._blocks if nbytes
        ).pieces


def _of_table(table: Words, nbytes: int) -> Layout:
    """Return the layout of so many packed bytes of elements whose table `Layout.table` gave."""
    (size, extent, npieces, _), pieces = table[:PIECES].tolist(), table[PIECES:].copy()
    if npieces > 1:
        return Layout(pieces.reshape(npieces, -1), size).repeated(nbytes // size, extent)
    pieces[PIECE_NBYTES] = min(nbytes, pieces[PIECE_NBYTES])
    if len(pieces) > PIECE_NFIELDS:  # its outermost loop is for any number of elements
        inner = int(np.prod(pieces[PIECE_NFIELDS + 2 :: 2]))
        count = nbytes // (int(pieces[PIECE_NBYTES]) * inner)
        rest = pieces[PIECE_NFIELDS + 1 :] if count > 1 else pieces[PIECE_NFIELDS + 2 :]
        pieces = np.array([*pieces[:PIECE_NFIELDS], *[count] * (count > 1), *rest], np.int64)
    return Layout(pieces.reshape(1, -1), nbytes)


# of INPUT and OUTPUT; None: contiguous, or blocks at the displacements that a program has
Maps: TypeAlias = tuple[Map | None, Map | None]
UNMAPPED: Maps = None, None


def addresses(maps: Maps) -> tuple[int, int]:
    """Return the addresses of maps, 0 where there is none."""
    source, target = maps
    return 0 if source is None else source.address, 0 if target is None else target.address
