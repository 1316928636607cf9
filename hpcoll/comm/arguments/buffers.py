"""Buffer arguments as flat descriptions: address, count, element type; and whether the two of a call share memory.

A refusal is an `ArgumentError`, raised before any message leaves. Buffers that hpcoll does not know (`MPI.BOTTOM`, objects without
memory) resolve to None: the call belongs to the MPI library, which raises the errors that its users expect.
"""

from collections.abc import Iterable
from operator import add
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import ArgumentError
from hpcoll.comm.arguments.buffer_specs import (
    LAYOUTS,
    BufferLayout,
    Element,
    layout_of,
    place_blocks,
    place_one,
    plain_layout,
    split,
)
from hpcoll.comm.arguments.memory import buffer_of, find_gpu_array, memory
from hpcoll.runtime.gpu.arrays import DeviceArray
from hpcoll.runtime.program.layouts import Map

_get_address = MPI.Get_address
_new_tuple = tuple.__new__  # twice as fast as calling the NamedTuple
_NATIVE_FORMATS = frozenset("?bhilqBHILQfd")  # of memoryviews
_NAMES = {"C": "C", "F": "Fortran"}
_Order: TypeAlias = tuple[tuple[int, ...], str]


class Resolved(NamedTuple):
    """A buffer argument. Always ``nbytes == count * dtype.itemsize``: the bytes that travel, without gaps.

    An element of a derived datatype is one item of it, and dtype an opaque void of its size. A GPU array with gaps is described as if it
    were packed in C order, but for its address.
    """

    address: int  # of the first element, 0 when empty; v forms: where displs count from
    count: int  # type: ignore[assignment]  # elements in total, over all blocks
    dtype: np.dtype[Any]  # canonical: equal types are one object
    nbytes: int
    readonly: bool
    owner: object  # keeps the memory alive
    counts: tuple[int, ...] | None = None  # v forms: elements per block
    displs: tuple[int, ...] | None = None  # v forms: element displacement per block
    gpu: DeviceArray | None = None  # None for host memory
    map: Map | None = None  # of elements that are not contiguous
    spec: Any = None  # the argument itself
    layout: BufferLayout | None = None  # of an element

    @property
    def datatype(self) -> MPI.Datatype | None:
        """The derived datatype of the elements; None for plain contiguous ones."""
        return None if self.layout is None else self.layout.datatype

    @property
    def element(self) -> Element:
        """Element type, as in `hpcoll.comm.arguments.call.Call`."""
        return self.dtype if self.layout is None else self.layout.element

    @property
    def blocks(self) -> Iterable[tuple[int, int]]:
        """Count and displacement of each block."""
        return zip(self.counts or (self.count,), self.displs or (0,), strict=True)


def resolve(
    spec: object,
    *,
    name: str,
    rank: int,
    nblocks: int | None = None,
    nparts: int = 1,
    writable: bool = False,
    stream: int | None = None,
) -> Resolved | None:
    """Describe a buffer argument, with mpi4py's rules for what a spec leaves out.

    Args:
        spec: Buffer, or ``(buffer, [count | (count, displ),] [displ,] [datatype])``; Fortran order is memory order.
        name: Name of the argument, for error texts.
        rank: Rank of this process, for error texts.
        nblocks: Blocks of a v form, >= 1; fills counts and displs. None for every other form.
        nparts: Equal blocks that a count stands for, >= 1: nranks for Allgather's recvbuf. An explicit count is per
            block, an inferred one must divide; ``Resolved.count`` is always the total.
        writable: The call stores into the buffer.
        stream: Handle of the stream that orders the call, for producers of GPU arrays.

    Returns:
        The description, or None where the call must go to the MPI library unchanged.

    Raises:
        ArgumentError: Not contiguous, read-only, out of the array's range, wrong count or type, GPU memory that this rank cannot use.
    """
    if nblocks is None and (found := _resolve_plain(spec, nparts, writable=writable)) is not None:
        return found
    subject = f"rank {rank}: {name}"
    buffer, counts, displs, datatype = split(spec, subject, vector=nblocks is not None)
    array = memory(buffer, datatype, subject, writable=writable, bare=buffer is spec, stream=stream)
    layout = None if array is None else layout_of(array, datatype, subject)
    if array is None or layout is None:
        return None
    gpu = array if isinstance(array, DeviceArray) else None
    # a length that the caller has declared; mpi4py does not ask it
    if layout.datatype is not None and isinstance(buffer, MPI.buffer):
        layout = layout._replace(trusted=True)
    place, nblocks = (place_one, nparts) if nblocks is None else (place_blocks, nblocks)
    count, offset, sizes, starts = place(
        counts, displs, array, layout=layout, nblocks=nblocks, subject=subject
    )
    address = 0 if not count else _get_address(array) + offset if gpu is None else gpu.pointer + offset
    readonly = not array.flags.writeable if isinstance(array, np.ndarray) else array.readonly
    nbytes, every = count * layout.dtype.itemsize, layout.map
    if layout.table is not None and sizes and starts:
        size, extent, table = layout.dtype.itemsize, layout.extent, layout.table
        every = Map((n * size, start * extent, table) for n, start in zip(sizes, starts, strict=True))
    elif layout.table is not None and gpu is not None:
        every = Map([(nbytes, 0, layout.table)])
    return _new_tuple(
        Resolved,
        (address, count, layout.dtype, nbytes, readonly, array, sizes, starts, gpu, every, spec, layout),
    )


def _resolve_plain(spec: Any, nparts: int, *, writable: bool) -> Resolved | None:
    """Describe a bare array, ``[array, datatype]`` or ``[array, count, datatype]``, with nothing to refuse; None for any other spec.

    The rest of `resolve` says the same of it, in three times as long.
    """
    array, count = spec, None
    if type(spec) is list or type(spec) is tuple:
        if not 2 <= len(spec) <= 3 or type(array := spec[0]) is not np.ndarray:
            return None
        datatype = spec[-1]
        if len(spec) == 3 and (type(count := spec[1]) is not int or count < 0):
            return None
        if not isinstance(datatype, MPI.Datatype) or array.dtype.hasobject:
            return None
        layout = plain_layout(datatype)
    else:
        if type(spec) is memoryview and spec.format in _NATIVE_FORMATS:
            array = np.asarray(spec)
        if type(array) is not np.ndarray:
            return None
        layout = LAYOUTS.get(array.dtype)
    if layout is None:
        return None
    flags, counted = array.flags, count is not None
    count = array.nbytes // layout.extent if count is None else count * nparts
    nbytes = count * layout.extent
    if nbytes > array.nbytes or (nbytes < array.nbytes and not counted) or count % nparts:
        return None
    if not flags.c_contiguous or (writable and not flags.writeable):
        return None
    address, readonly = _get_address(array) if count else 0, not flags.writeable
    return _new_tuple(
        Resolved,
        (address, count, layout.dtype, nbytes, readonly, array, None, None, None, None, spec, layout),
    )


def check_same_order(send: object, recv: object, rank: int, *, sent: int = 1, received: int = 1) -> None:
    """Refuse a C-ordered and a Fortran-ordered array where memory order would permute elements in silence.

    It would where the blocks of both have one shape. Blocks of C-ordered arrays lie along the first axis, of others along the last one.

    Args:
        send: Buffer, or the caller's spec.
        recv: Buffer, or the caller's spec.
        rank: Rank of this process, for texts.
        sent: Number of blocks in ``send``.
        received: Number of blocks in ``recv``.

    Raises:
        ArgumentError: The orders differ, and the shapes do not.
    """
    if (
        (one := _order(send))[1]
        and (other := _order(recv))[1]
        and not _shapes(one, sent).isdisjoint(_shapes(other, received))
        and set(one[1]).isdisjoint(other[1])
    ):
        shapes, got = (
            f"sendbuf of shape {one[0]} and recvbuf of shape {other[0]}",
            f"{_NAMES[one[1]]} and {_NAMES[other[1]]}",
        )
        raise ArgumentError(f"rank {rank}: {shapes} need one memory order, got {got}: copy one of them")


def _order(spec: Any) -> _Order:
    """Return an array's shape and memory order; both orders where fewer than two axes are longer than 1, none below two axes."""
    buffer = buffer_of(spec)
    if len(getattr(buffer, "shape", (0, 0))) < 2:
        return (), ""
    array = buffer if isinstance(buffer, np.ndarray) else find_gpu_array(buffer)
    if array is None or len(array.shape) < 2:
        return (), ""
    if sum(length > 1 for length in array.shape) < 2:
        return array.shape, "CF"
    if isinstance(array, DeviceArray):
        return array.shape, array.order or "C"  # what has gaps is packed in C order
    return array.shape, "C" if array.flags.c_contiguous else "F"


def _shapes(array: _Order, nblocks: int) -> set[tuple[int, ...]]:
    """Return the shapes that a reader may think each of the equal blocks of an array has."""
    shape, order = array
    found = set[tuple[int, ...]]()
    for axis in {"C": (0,), "F": (-1,)}.get(order, (0, -1)):
        length, rest = shape[axis], shape[1:] if axis == 0 else shape[:-1]
        found |= {rest} if length == nblocks else set()
        if length % nblocks == 0:
            found.add((length // nblocks, *rest) if axis == 0 else (*rest, length // nblocks))
    return found


def check_overlap(send: Resolved, recv: Resolved, rank: int) -> bool:
    """Say whether two buffers are the same memory, to be treated as in place; False when they share none.

    Derived datatypes may interleave, and count as sharing none.

    Raises:
        ArgumentError: The buffers overlap in part.
    """
    same = send.address == recv.address and send.nbytes == recv.nbytes and send[6:8] == recv[6:8]
    if same and send.datatype == recv.datatype:
        return send.nbytes > 0
    if send.map is not None or recv.map is not None:
        return False
    (low, high), (start, end) = _hull(send), _hull(recv)
    if high <= start or end <= low:
        return False
    reach = [0, 0]  # end of the blocks of each side, so far up the addresses
    for low, high, side in sorted((*_ranges(send, 0), *_ranges(recv, 1))):
        if low < reach[1 - side]:
            raise ArgumentError(
                f"rank {rank}: sendbuf and recvbuf must be the same memory or share none, got a partial overlap"
            )
        reach[side] = max(reach[side], high)
    return False


def _hull(one: Resolved) -> tuple[int, int]:
    """Return the byte range that all blocks of plain elements lie in."""
    if one.counts is None or one.displs is None:
        return one.address, one.address + one.nbytes
    size = one.dtype.itemsize
    return one.address + min(one.displs) * size, one.address + max(map(add, one.displs, one.counts)) * size


def _ranges(one: Resolved, side: int) -> list[tuple[int, int, int]]:
    """Return the byte range of each non-empty block of plain elements."""
    size = one.dtype.itemsize
    return [
        (one.address + displ * size, one.address + (displ + count) * size, side)
        for count, displ in one.blocks
        if count
    ]
