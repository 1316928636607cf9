"""Moves of elements as an exchange of typed blocks: for each peer a datatype over the local array, so nothing is packed by hand."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.grids.moves import Move
from hpcoll.grids.parts import cut_up

_MOST = 1 << 30  # elements of a run in a datatype: MPI counts in 32 bits


class TypedMoves:
    """The moves out of local arrays of one shape, or into them.

    Args:
        shape: Of the local array.
        axes: Axis of the local array for each axis along which moves have pieces.
        moves: A move for each peer that has one.
        nranks: Number of ranks.
        itemsize: Bytes of an element.
        order: Order of elements in messages: ``"C"`` or ``"F"``.
    """

    def __init__(
        self,
        shape: Sequence[int],
        axes: Sequence[int],
        moves: Sequence[Move],
        *,
        nranks: int,
        itemsize: int,
        order: str,
    ) -> None:
        self.moves = moves
        self._shape = shape
        self._axes = axes
        self._itemsize = itemsize
        self._outward = range(len(shape))[:: 1 if order == "F" else -1]
        self._counts = [0] * nranks
        self._displs = [0] * nranks
        self._types = dict[str, list[MPI.Datatype]]()  # by the order of the array
        for move in moves:
            self._counts[move.peer] = 1

    def spec(self, array: np.ndarray[Any, Any]) -> list[Any]:
        """Return a contiguous array as a buffer of an exchange, with a datatype for each rank."""
        order = "C" if array.flags.c_contiguous else "F"
        if order not in self._types:
            self._types[order] = self._made(order)
        return [array, self._counts, self._displs, self._types[order]]

    def _made(self, order: str) -> list[MPI.Datatype]:
        """Return a datatype for each rank, over an array of this order."""
        before = (self._shape[axis + 1 :] if order == "C" else self._shape[:axis] for axis in self._axes)
        strides = [self._itemsize * prod(faster) for faster in before]
        types = [MPI.BYTE] * len(self._counts)
        for move in self.moves:
            types[move.peer] = self._datatype(move, strides)
        return types

    def _datatype(self, move: Move, strides: Sequence[int]) -> MPI.Datatype:
        """Return the datatype of a move's elements: for each axis runs of what is further inward."""
        whole = MPI.BYTE.Create_contiguous(self._itemsize)
        for axis in self._outward:
            starts, lengths = cut_up(*move.pieces[axis], _MOST)
            inner = whole.Create_resized(0, strides[axis])
            whole.Free()
            whole = inner.Create_hindexed(lengths.tolist(), (starts * strides[axis]).tolist())
            inner.Free()
        return whole.Commit()

    def free(self) -> None:
        """Give back the datatypes."""
        for types in self._types.values():
            for move in self.moves:
                types[move.peer].Free()
        self._types.clear()
