"""Moves of elements as an exchange of typed blocks: for each peer a datatype over the local array, so nothing is packed by hand."""

from collections.abc import Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
from mpi4py import MPI

from hpcoll.comm.arguments.memory import find_gpu_array
from hpcoll.grids.moves import Move
from hpcoll.grids.parts import cut_up

_MOST = 1 << 30  # elements of a run in a datatype: MPI counts in 32 bits
_KEPT = 8  # kinds of strides

Strides: TypeAlias = tuple[int, ...]


class TypedMoves:
    """The moves out of local arrays of one shape, or into them, whatever their strides.

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
        self._moves = moves
        self._shape = shape
        self._axes = axes
        self._itemsize = itemsize
        self._outward = range(len(axes))[:: 1 if order == "F" else -1]
        self._counts = [0] * nranks
        self._displs = [0] * nranks
        self._types = dict[Strides, list[MPI.Datatype]]()
        for move in moves:
            self._counts[move.peer] = 1

    def spec(self, array: Any) -> list[Any]:
        """Return an array as a buffer of an exchange, with a datatype for each rank; one on a GPU has no gaps."""
        on_gpu = find_gpu_array(array)
        strides = array.strides if on_gpu is None else on_gpu.strides or self._packed()
        first = sum((n - 1) * -step for n, step in zip(self._shape, strides) if step < 0)
        if strides not in self._types:
            if len(self._types) == _KEPT:
                self.free()
            self._types[strides] = self._made(strides, first)
        memory = array if on_gpu is not None or array.flags.forc else self._memory(array, first)
        return [memory, self._counts, self._displs, self._types[strides]]

    def _packed(self) -> Strides:
        """Return the strides of an array in C order without gaps."""
        return tuple(self._itemsize * prod(self._shape[axis + 1 :]) for axis in range(len(self._shape)))

    def _memory(self, array: np.ndarray[Any, Any], first: int) -> np.ndarray[Any, Any]:
        """Return the bytes from the lowest element of an array with gaps to the highest."""
        reach = sum((n - 1) * abs(step) for n, step in zip(self._shape, array.strides))
        nbytes = reach + self._itemsize if array.size else 0
        memory: Any = MPI.buffer.fromaddress(array.ctypes.data - first, nbytes, not array.flags.writeable)
        return np.asarray(memory)

    def _made(self, strides: Strides, first: int) -> list[MPI.Datatype]:
        """Return a datatype for each rank, over the memory of an array whose first element lies so many bytes in it."""
        types = [MPI.BYTE] * len(self._counts)
        for move in self._moves:
            types[move.peer] = self._datatype(move, [strides[axis] for axis in self._axes], first)
        return types

    def _datatype(self, move: Move, strides: Sequence[int], first: int) -> MPI.Datatype:
        """Return the datatype of a move's elements: for each axis runs of what is further inward."""
        whole = MPI.BYTE.Create_contiguous(self._itemsize)
        for axis in self._outward:
            starts, lengths = cut_up(*move.pieces[axis], _MOST)
            inner = whole.Create_resized(0, strides[axis])
            whole.Free()
            places = starts * strides[axis]
            if axis == self._outward[-1]:
                places += first
            whole = inner.Create_hindexed(lengths.tolist(), places.tolist())
            inner.Free()
        # backwards, MPI would have it end before it begins
        one = whole.Create_resized(0, self._itemsize)
        whole.Free()
        return one.Commit()

    def free(self) -> None:
        """Give back the datatypes."""
        for types in self._types.values():
            for move in self._moves:
                types[move.peer].Free()
        self._types.clear()
