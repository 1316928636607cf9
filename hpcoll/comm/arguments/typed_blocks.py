"""Buffers whose blocks have datatypes of their own: ``[array, counts, displs, types]``, displacements in bytes."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import ArgumentError, ArgumentTypeError
from hpcoll.base.text import quoted
from hpcoll.comm.arguments.buffer_specs import BufferLayout, integers, layout_of
from hpcoll.comm.arguments.call import Call, is_in_place
from hpcoll.comm.arguments.data_movement import BYTES, NOTHING, PlainBytes, as_copied, move, packed_places
from hpcoll.comm.arguments.memory import Array, memory, surroundings
from hpcoll.runtime.gpu.arrays import DeviceArray
from hpcoll.runtime.program.layouts import Map
from hpcoll.runtime.transports.mpi import handle

_Blocks = list[tuple[int, int, BufferLayout]]  # count, displacement and layout of each


class TypedSpec(NamedTuple):
    """The parts of such a buffer."""

    buffer: Any
    counts: Sequence[int]
    displs: Sequence[int]
    types: Sequence[MPI.Datatype]

    @classmethod
    def of(cls, spec: Any, nblocks: int) -> "TypedSpec | None":
        """Return the parts of a spec for so many blocks; None for one that the MPI library refuses."""
        if not isinstance(spec, list | tuple) or not 2 <= len(spec) <= 4:
            return None
        buffer, *given, types = spec
        counts, displs = (given if len(given) != 1 else given[0]) or (None, None)  # type: Any, Any
        if counts is None and displs is None:
            counts, displs = [1] * nblocks, [0] * nblocks
        alike = all(
            isinstance(one, Sequence | np.ndarray) and len(one) == nblocks for one in (counts, displs, types)
        )
        return cls(buffer, counts, displs, types) if alike else None

    def remembered(self, places: Sequence[tuple[int, int]]) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the blocks as `hpcoll.runtime.engine.compiled.spec_reader.read_blocks` compares them, with their ``places``."""
        rows = zip(
            self.counts,
            self.displs,
            map(id, self.types),
            map(handle, self.types),
            *zip(*places, strict=True),
            strict=True,
        )
        return np.array(list(rows), np.int64)


def typed_bytes(spec: Any, name: str, rank: int, nblocks: int) -> PlainBytes | None:
    """Return a buffer as bytes; None for one that only the MPI library understands. Arguments and errors as of `resolve`.

    Its bytes are where they lie, at the displacements of the blocks, where all types are contiguous; else it has a map.
    """
    if not nblocks:
        return NOTHING
    parts, subject = TypedSpec.of(spec, nblocks), f"rank {rank}: {name}"
    if parts is None:
        if isinstance(spec, list | tuple) and 2 <= len(spec) <= 4:
            raise ArgumentTypeError(
                f"{subject} needs counts, displacements and datatypes for {nblocks} blocks, got {quoted(spec[1:])}"
            )
        return None
    anywhere = parts.buffer is MPI.BOTTOM  # displacements are addresses
    array = (
        np.empty(0, np.uint8)
        if anywhere
        else memory(parts.buffer, "", subject, writable=name == "recvbuf", bare=False, stream=None)
    )
    if array is None:
        return None
    blocks: _Blocks = []
    alone = range(nblocks)  # a lone integer is refused before
    for count, displ, datatype in zip(
        integers(parts.counts, alone, subject),
        integers(parts.displs, alone, subject),
        parts.types,
        strict=True,
    ):
        if datatype is None:
            raise ArgumentTypeError(f"{subject} needs a datatype for each block, got None")
        layout = layout_of(array, datatype, subject)
        if layout is None or count < 0:
            return None
        blocks.append((count, displ, layout))
    if not anywhere and not isinstance(parts.buffer, MPI.buffer):
        _check_reach(blocks, array, subject)
    sizes = [count * layout.dtype.itemsize for count, _, layout in blocks]
    start = array.pointer if isinstance(array, DeviceArray) else array.ctypes.data
    address, nbytes = 0 if anywhere else start, sum(sizes)
    if all(layout.table is None for *_, layout in blocks):
        places = tuple((displ, size) for (_, displ, _), size in zip(blocks, sizes, strict=True))
        return PlainBytes(address, nbytes, places, array, "")
    every = Map(
        (size, displ, BYTES if one.table is None else one.table)
        for (_, displ, one), size in zip(blocks, sizes, strict=True)
    )
    return PlainBytes(address, nbytes, packed_places(sizes), array, "", map=every)


def _check_reach(blocks: _Blocks, array: Array | DeviceArray, subject: str) -> None:
    """Refuse blocks that reach outside an array and what it is a view of."""
    before, behind = surroundings(array)
    for count, displ, layout in blocks:
        first, end = displ + layout.lower, displ + (count - 1) * layout.extent + layout.upper
        if count and (first < -before or end > array.nbytes + behind):
            raise ArgumentError(
                f"{subject} needs bytes {first} to {end} of its array, got {array.nbytes} bytes"
            )


def typed_alltoall(sendbuf: Any, recvbuf: Any, rank: int, nranks: int) -> Call | None:
    """Describe an alltoall whose blocks have datatypes of their own; in place it sends a copy."""
    target = typed_bytes(recvbuf, "recvbuf", rank, nranks)
    if target is None:
        return None
    aliased = is_in_place(sendbuf)
    source = as_copied(target) if aliased else typed_bytes(sendbuf, "sendbuf", rank, nranks)
    if source is None:
        return None
    sent, received = source.places[rank][1], target.places[rank][1]
    if sent != received:
        raise ArgumentError(
            f"rank {rank}: block {rank} of recvbuf needs the {sent} bytes that sendbuf has for this rank, got {received}"
        )
    return move(
        "alltoall",
        source,
        target,
        source.nbytes,
        0,
        aliased=aliased,
        blocks=(source.places, target.places, ()),
    )
