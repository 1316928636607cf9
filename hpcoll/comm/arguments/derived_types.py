"""Derived datatypes: buffers as plain bytes, packed and unpacked by the MPI library, and datatypes kept for calls in flight."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.comm.arguments.buffers import Resolved
from hpcoll.comm.arguments.overlap import blocks

_PIECE_NBYTES = 1 << 30  # one MPI_Pack; Open MPI 5 counts its bytes in 32 bits


def pack(one: Resolved) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Copy of the bytes that travel, block after block, shape (nbytes,): plain bytes whatever the datatype."""
    packed = np.empty(one.nbytes, np.uint8)
    for datatype, memory, piece in _pieces(one):
        datatype.Pack(memory, packed[piece], 0, MPI.COMM_SELF)
    return packed


def unpack(packed: np.ndarray[Any, np.dtype[np.uint8]], one: Resolved) -> None:
    """Store packed bytes, shape (nbytes,), into the memory described."""
    for datatype, memory, piece in _pieces(one):
        datatype.Unpack(packed[piece], 0, memory, MPI.COMM_SELF)


def _pieces(one: Resolved) -> Iterator[tuple[MPI.Datatype, MPI.buffer, slice]]:
    """Datatype and memory of each call to MPI, and which packed bytes belong to it."""
    datatype, size = one.datatype or MPI.BYTE, one.dtype.itemsize
    extent = size if one.datatype is None else datatype.extent
    step, packed = max(1, _PIECE_NBYTES // max(extent, size)), 0
    for count, displ in blocks(one):
        for first in range(displ, displ + count, step):
            length = min(step, displ + count - first)
            # MPI.Datatype.Pack counts items by dividing: name whole extents, even where the last one's gap leaves the array.
            memory = MPI.buffer.fromaddress(one.address + first * extent, length * extent)
            yield datatype, memory, slice(packed, packed + length * size)
            packed += length * size


class _Retained(MPI.Datatype):
    """A datatype that is freed with its last reference."""

    def __del__(self) -> None:
        if self != MPI.DATATYPE_NULL and not MPI.Is_finalized():
            self.Free()


def retain_datatypes(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a call's arguments with duplicates of derived datatypes, which the program may free while the call is in flight."""
    return tuple(_retained(spec) if isinstance(spec, list | tuple) else spec for spec in arguments)


def _retained(spec: Any) -> Any:
    return [_duplicate(item) if _may_be_freed(item) else item for item in spec] if any(map(_may_be_freed, spec)) else spec


def _may_be_freed(item: Any) -> bool:
    """Say whether the program may free an item: a derived datatype that is not one of ours."""
    ours = not isinstance(item, MPI.Datatype) or isinstance(item, _Retained)
    return not (ours or item == MPI.DATATYPE_NULL or item.is_predefined)


def _duplicate(datatype: MPI.Datatype) -> MPI.Datatype:
    copy = _Retained(datatype.Dup())
    copy.name = datatype.name
    return copy
