"""Copies of any buffer as plain bytes, made and unmade by the MPI library."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.comm.calls.buffers import Resolved
from hpcoll.comm.calls.overlap import blocks

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
