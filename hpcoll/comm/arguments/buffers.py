"""Buffer specs of mpi4py as flat descriptions: address, count, element type.

Decides which memory a spec names and whether a call may use it; every refusal is an `ArgumentError` raised before any
message leaves. Refuses to know which collective asks. What it does not know at all (`MPI.BOTTOM`, objects without
memory) resolves to None: that call belongs to the MPI library, which raises what its users expect.
"""

from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from hpcoll.comm.arguments.buffer_specs import LAYOUTS, Element, element_of, layout_of, place_blocks, place_one, split
from hpcoll.comm.arguments.memory import memory
from hpcoll.runtime.gpu.arrays import DeviceArray

_get_address = MPI.Get_address
_new_tuple = tuple.__new__  # twice as fast as calling the NamedTuple


class Resolved(NamedTuple):
    """One buffer argument. Always ``nbytes == count * dtype.itemsize``: the bytes that travel, gaps left out.

    For a derived datatype an element is one item of it, and dtype is an opaque void of its size. A GPU array with gaps is as if it had been
    packed in C order, except that address is where it lies.
    """

    address: int  # of the first element, 0 when empty; v forms: where displs count from
    count: int  # type: ignore[assignment]  # elements in total, over all blocks
    dtype: np.dtype[Any]  # canonical: equal types are one object
    nbytes: int
    readonly: bool
    owner: object  # keeps the memory alive
    counts: tuple[int, ...] | None = None  # v forms: elements per block
    displs: tuple[int, ...] | None = None  # v forms: element displacement per block
    datatype: MPI.Datatype | None = None  # None for plain contiguous elements
    gpu: DeviceArray | None = None  # None for host memory

    @property
    def element(self) -> Element:
        """As in `hpcoll.comm.arguments.call.Call`."""
        return element_of(self.dtype, self.datatype)


def resolve(
    spec: object, *, name: str, rank: int, nblocks: int | None = None, nparts: int = 1, writable: bool = False,
    stream: int | None = None,
) -> Resolved | None:  # fmt: skip
    """Flat description of one buffer argument, with mpi4py's rules for what a spec leaves out.

    Args:
        spec: Buffer, or ``(buffer, [count | (count, displ),] [displ,] [datatype])``; Fortran order is memory order.
        name, rank: Of the argument and of this process, for error texts.
        nblocks: Blocks of a v form, >= 1; fills counts and displs. None for every other form.
        nparts: Equal blocks that a count stands for, >= 1: nranks for Allgather's recvbuf. An explicit count is per
            block, an inferred one must divide; ``Resolved.count`` is always the total.
        writable: Whether the call stores into the buffer.
        stream: Handle of the stream that orders the call, for producers of GPU arrays.

    Returns:
        The description, or None where the call must go to the MPI library unchanged; GPU memory with a derived datatype is such a case.

    Raises:
        ArgumentError: not contiguous, read-only, out of the array's range, wrong count or type, GPU memory that this rank cannot use.
    """
    if type(spec) is np.ndarray and nblocks is None:
        layout, flags, count = LAYOUTS.get(spec.dtype), spec.flags, spec.size
        if layout is not None and flags.c_contiguous and (not writable or flags.writeable) and (nparts == 1 or count % nparts == 0):
            address, readonly = _get_address(spec) if count else 0, not flags.writeable
            return _new_tuple(Resolved, (address, count, layout[0], spec.nbytes, readonly, spec, None, None, None, None))
    subject = f"rank {rank}: {name}"
    buffer, counts, displs, datatype = split(spec, subject, vector=nblocks is not None)
    array = memory(buffer, datatype, subject, writable=writable, bare=buffer is spec, stream=stream)
    layout = None if array is None else layout_of(array, datatype, subject)
    if array is None or layout is None:
        return None
    gpu = array if isinstance(array, DeviceArray) else None
    if gpu is not None and layout.datatype is not None:
        return None
    if layout.datatype is not None and isinstance(buffer, MPI.buffer):  # a length that the caller has declared; mpi4py does not ask it
        layout = layout._replace(trusted=True)
    place, nblocks = (place_one, nparts) if nblocks is None else (place_blocks, nblocks)
    count, offset, sizes, starts = place(counts, displs, array.nbytes, layout=layout, nblocks=nblocks, subject=subject)
    address = 0 if not count else _get_address(array) + offset if gpu is None else gpu.pointer + offset
    readonly = not array.flags.writeable if isinstance(array, np.ndarray) else array.readonly
    nbytes = count * layout.dtype.itemsize
    return _new_tuple(Resolved, (address, count, layout.dtype, nbytes, readonly, array, sizes, starts, layout.datatype, gpu))
