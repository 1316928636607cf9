"""Whether the two buffers of a call are one memory, share none, or must be refused."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from hpcoll.base.errors import ArgumentError
from hpcoll.comm.calls.buffers import Resolved
from hpcoll.comm.calls.exporters import find_gpu_array
from hpcoll.runtime.gpu.arrays import DeviceArray


def check_same_order(send: object, recv: object, rank: int) -> None:
    """Raise ArgumentError for a C-ordered and a Fortran-ordered array of one shape: memory order would permute in silence."""
    (shape, one), (other_shape, other) = _order(send), _order(recv)
    if one and other and one != other and shape == other_shape:
        names = {"C": "C", "F": "Fortran"}
        got = f"{names[one]} and {names[other]}"
        raise ArgumentError(f"rank {rank}: sendbuf and recvbuf of shape {shape} need one memory order, got {got}: copy one of them")


def _order(spec: Any) -> tuple[tuple[int, ...], str]:
    """Shape and memory order of an array of two or more axes; contiguous arrays without two long axes have both orders, told as C."""
    buffer = spec[0] if isinstance(spec, list | tuple) and spec else spec
    if len(getattr(buffer, "shape", (0, 0))) < 2:
        return (), ""
    array = buffer if isinstance(buffer, np.ndarray) else find_gpu_array(buffer)
    if array is None or len(array.shape) < 2:
        return (), ""
    if isinstance(array, DeviceArray):
        return array.shape, array.order or "C"  # what has gaps is packed in C order
    return array.shape, "C" if array.flags.c_contiguous else "F"


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
