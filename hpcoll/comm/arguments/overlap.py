"""Whether the two buffers of a call are one memory, share none, or must be refused."""

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np

from hpcoll.base.errors import ArgumentError
from hpcoll.comm.arguments.buffers import Resolved
from hpcoll.comm.arguments.memory import find_gpu_array
from hpcoll.runtime.gpu.arrays import DeviceArray

_NAMES = {"C": "C", "F": "Fortran"}
_Order: TypeAlias = tuple[tuple[int, ...], str]


def check_same_order(send: object, recv: object, rank: int, *, sent: int = 1, received: int = 1) -> None:
    """Refuse a C-ordered and a Fortran-ordered array where memory order would permute elements in silence.

    That is where the blocks of both have one shape: those of C-ordered arrays lie along the first axis, of others along the last one.

    Args:
        send, recv: Buffers, or the caller's specs.
        rank: Of this process, for texts.
        sent, received: How many blocks each of them has.

    Raises:
        ArgumentError: that is so.
    """
    one, other = _order(send), _order(recv)
    if one[1] and other[1] and not _shapes(one, sent).isdisjoint(_shapes(other, received)) and set(one[1]).isdisjoint(other[1]):
        shapes, got = f"sendbuf of shape {one[0]} and recvbuf of shape {other[0]}", f"{_NAMES[one[1]]} and {_NAMES[other[1]]}"
        raise ArgumentError(f"rank {rank}: {shapes} need one memory order, got {got}: copy one of them")


def _order(spec: Any) -> _Order:
    """Shape of an array of two or more axes, and its memory order, or both orders where no two of these axes are long."""
    buffer = spec[0] if isinstance(spec, list | tuple) and spec else spec
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
    """Shapes that each of so many equal blocks of an array may be thought to have."""
    shape, order = array
    found = set[tuple[int, ...]]()
    for axis in {"C": (0,), "F": (-1,)}.get(order, (0, -1)):
        length, rest = shape[axis], shape[1:] if axis == 0 else shape[:-1]
        found |= {rest} if length == nblocks else set()
        if length % nblocks == 0:
            found.add((length // nblocks, *rest) if axis == 0 else (*rest, length // nblocks))
    return found


def check_overlap(send: Resolved, recv: Resolved, rank: int) -> bool:
    """Whether two buffers are the same memory, to be treated as in place; False when they share none.

    Derived datatypes may interleave, and count as sharing none: they are packed before anything is stored.

    Raises:
        ArgumentError: they overlap in part.
    """
    gaps = send.gpu is not None and not send.gpu.order
    if send.address == recv.address and send.nbytes == recv.nbytes and send[6:9] == recv[6:9] and not gaps:
        return send.nbytes > 0
    if send.datatype is not None or recv.datatype is not None:
        return False
    if send.counts is recv.counts is None and not gaps and not send.address - recv.nbytes < recv.address < send.address + send.nbytes:
        return False
    reach = [0, 0]  # end of the blocks of each side, so far up the addresses
    for low, high, side in sorted((*_ranges(send, 0), *_ranges(recv, 1))):
        if low < reach[1 - side]:
            raise ArgumentError(f"rank {rank}: sendbuf and recvbuf must be the same memory or share none, got a partial overlap")
        reach[side] = max(reach[side], high)
    return False


def _ranges(one: Resolved, side: int) -> list[tuple[int, int, int]]:
    """Byte range of each non-empty block of plain elements; of an array with gaps all that it spans."""
    if one.gpu is not None and not one.gpu.order:
        return [(*one.gpu.span, side)]
    size = one.dtype.itemsize
    return [(one.address + displ * size, one.address + (displ + count) * size, side) for count, displ in blocks(one) if count]


def blocks(one: Resolved) -> Iterable[tuple[int, int]]:
    """Count and displacement of each block."""
    return zip(one.counts or (one.count,), one.displs or (0,), strict=True)
