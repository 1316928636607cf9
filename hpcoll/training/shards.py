"""Shards: the elements of the parameters that each server keeps, and their layout in its memory. NumPy alone; no MPI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcoll.schedules.ir import chunk_bounds

Array = NDArray[Any]
ALIGNMENT = 64  # bytes, of the start of every piece


class ShardLayout(NamedTuple):
    """Name, shape and element type of a parameter."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))


class Piece(NamedTuple):
    """Elements ``lo`` to ``hi`` of a flattened parameter, from byte ``start`` of their shard on."""

    name: str
    lo: int
    hi: int
    start: int
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """The bytes of the elements."""
        return (self.hi - self.lo) * self.dtype.itemsize


class Shard:
    """The shard of a server: pieces of parameters.

    Attributes:
        pieces: Pieces in the order of parameters and elements.
        nbytes: Bytes of all pieces, with gaps for alignment.
        payload: Bytes of the elements.
    """

    def __init__(self, parts: Sequence[tuple[ShardLayout, int, int]]) -> None:
        self.pieces = []
        end = 0
        for layout, lo, hi in parts:
            dtype = np.dtype(layout.dtype)
            self.pieces.append(Piece(layout.name, lo, hi, end, dtype))
            end = -(-(end + self.pieces[-1].nbytes) // ALIGNMENT) * ALIGNMENT
        self.nbytes = end
        self.payload = sum(piece.nbytes for piece in self.pieces)

    def views(self, memory: Array) -> list[Array]:
        """Return each piece as an array ``(hi - lo,)`` in ``memory``, a uint8 array of ``nbytes`` elements."""
        return [memory[piece.start : piece.start + piece.nbytes].view(piece.dtype) for piece in self.pieces]

    def pack(self, arrays: Mapping[str, Array], memory: Array) -> None:
        """Copy this shard's elements of contiguous ``arrays`` to ``memory``."""
        for piece, view in zip(self.pieces, self.views(memory)):
            view[:] = arrays[piece.name].reshape(-1)[piece.lo : piece.hi]

    def unpack(self, memory: Array, arrays: Mapping[str, Array]) -> None:
        """Copy this shard's elements from ``memory`` to contiguous ``arrays``."""
        for piece, view in zip(self.pieces, self.views(memory)):
            arrays[piece.name].reshape(-1)[piece.lo : piece.hi] = view


def cut_shards(layouts: Sequence[ShardLayout], nservers: int, *, split: bool = True) -> list[Shard]:
    """Cut parameters into a shard per server: equal numbers of consecutive elements, or, without ``split``, whole parameters.

    >>> [[(piece.name, piece.lo, piece.hi) for piece in shard.pieces] for shard in cut_shards([ShardLayout("a", (5,), "f4")], 2)]
    [[('a', 0, 3)], [('a', 3, 5)]]
    """
    total = sum(layout.size for layout in layouts)
    shards: list[list[tuple[ShardLayout, int, int]]] = [[] for _ in range(nservers)]
    bounds = [chunk_bounds(total, nservers, i) for i in range(nservers)]
    first = 0
    for layout in layouts:
        end = first + layout.size
        if split:
            for parts, (lo, hi) in zip(shards, bounds):
                if max(lo, first) < min(hi, end):
                    parts.append((layout, max(lo, first) - first, min(hi, end) - first))
        elif layout.size:
            middle = first + layout.size // 2
            owner = next(i for i, (lo, hi) in enumerate(bounds) if lo <= middle < hi)
            shards[owner].append((layout, 0, layout.size))
        first = end
    return [Shard(parts) for parts in shards]
