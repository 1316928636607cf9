"""Buffer specs of mpi4py as flat descriptions: address, count, element type.

Decides which memory a spec names and whether a call may use it; every refusal is an `ArgumentError` raised before any
message leaves. Refuses to know which collective asks. What it does not know at all (`MPI.BOTTOM`, objects without
memory) resolves to None: that call belongs to the MPI library, which raises what its users expect.
"""

import contextlib
import functools
import operator
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from mpi4py import MPI

from hpcoll.base.dtypes import is_bfloat16
from hpcoll.base.errors import ArgumentError
from hpcoll.comm.calls.exporters import Array, memory
from hpcoll.runtime.gpu.arrays import DeviceArray, device_array

_Place: TypeAlias = tuple[int, int, tuple[int, ...] | None, tuple[int, ...] | None]  # elements in total, byte offset, counts, displs

_QUAD = ("REAL16", "COMPLEX32")  # binary128 in Fortran, though mpi4py's type string says long double
_CHARACTERS: dict[str, np.dtype[Any]] = {"S1": np.dtype("u1"), "U1": np.dtype("u4")}

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


class _Layout(NamedTuple):
    """How elements lie in memory: extent and true bounds of one, in bytes."""

    dtype: np.dtype[Any]
    extent: int
    lower: int
    upper: int
    label: str
    datatype: MPI.Datatype | None = None

    def infer(self, nbytes: int, nparts: int, subject: str) -> int:
        """Elements in so many bytes, which must fill equal parts."""
        count, rest = divmod(nbytes, self.extent)
        if rest or count % nparts:
            needs = f"whole elements of {self.label}" if rest else f"{nparts} equal blocks of {self.label}"
            raise ArgumentError(f"{subject} needs {needs}, got {nbytes} bytes ({self.extent} per element): give the count")
        return count

    def check(self, first: int, end: int, nbytes: int, *, subject: str) -> None:
        """Refuse elements [first, end) that reach outside so many bytes."""
        if first < end and (first * self.extent + self.lower < 0 or (end - 1) * self.extent + self.upper > nbytes):
            needs = f"elements {first} to {end}" if first < 0 else f"{end} elements"
            raise ArgumentError(f"{subject} needs {needs} of {self.label}, got {nbytes // self.extent}")


def _plain(dtype: np.dtype[Any]) -> _Layout | None:
    """Layout of the plain elements of a dtype, or None for one that no collective takes."""
    if dtype.kind in "biufc" and dtype.isbuiltin == 1 and dtype.isnative:
        dtype = np.dtype(dtype.str)  # long and long long become one object
    elif not is_bfloat16(dtype):
        if not dtype.isnative or dtype.str[1:] not in _CHARACTERS:
            return None
        dtype = _CHARACTERS[dtype.str[1:]]
    return _Layout(dtype, dtype.itemsize, 0, dtype.itemsize, dtype.name)


# By dtype of the array; grows with what arrays bring.
_LAYOUTS = {dtype: layout for dtype in map(np.dtype, "?bhilqBHILQefdgFDG") if (layout := _plain(dtype)) is not None}


@functools.cache
def _basic_datatypes() -> dict[int, _Layout]:
    """Layout by handle of the predefined MPI datatypes with plain elements; asks MPI, hence not before MPI_Init."""
    table = {}
    for name, datatype in vars(MPI).items():
        if isinstance(datatype, MPI.Datatype) and datatype != MPI.DATATYPE_NULL and name not in _QUAD:
            layout = _plain(np.dtype(datatype.typestr))
            if layout is not None and layout.extent == datatype.size == datatype.extent:
                table[MPI._handleof(datatype)] = layout
    return table


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
        layout, flags, count = _LAYOUTS.get(spec.dtype), spec.flags, spec.size
        if layout is not None and flags.c_contiguous and (not writable or flags.writeable) and (nparts == 1 or count % nparts == 0):
            address, readonly = _get_address(spec) if count else 0, not flags.writeable
            return _new_tuple(Resolved, (address, count, layout[0], spec.nbytes, readonly, spec, None, None, None, None))
    subject = f"rank {rank}: {name}"
    buffer, counts, displs, datatype = _split(spec, subject, vector=nblocks is not None)
    array = memory(buffer, datatype, subject, writable=writable, bare=buffer is spec, stream=stream)
    layout = None if array is None else _layout(array, datatype, subject)
    if array is None or layout is None:
        return None
    gpu = array if isinstance(array, DeviceArray) else None
    if gpu is not None and layout.datatype is not None:
        return None
    place, nblocks = (_place_one, nparts) if nblocks is None else (_place_blocks, nblocks)
    count, offset, sizes, starts = place(counts, displs, array.nbytes, layout=layout, nblocks=nblocks, subject=subject)
    address = 0 if not count else _get_address(array) + offset if gpu is None else gpu.pointer + offset
    readonly = not array.flags.writeable if isinstance(array, np.ndarray) else array.readonly
    return Resolved(address, count, layout.dtype, count * layout.dtype.itemsize, readonly, array, sizes, starts, layout.datatype, gpu)


def _split(spec: Any, subject: str, *, vector: bool) -> tuple[Any, Any, Any, Any]:
    """Buffer, counts, displs and datatype of a spec; None for what it leaves out."""
    if not isinstance(spec, list | tuple):
        return spec, None, None, None
    if not 2 <= len(spec) <= 4:
        raise ArgumentError(f"{subject} needs 2 to 4 items (buffer, count, displacement, datatype), got {len(spec)}")
    buffer, counts, displs, datatype = spec if len(spec) == 4 else (*spec[:2], None, *spec[2:], None)[:4]
    if len(spec) == 2 and isinstance(counts, MPI.Datatype | str):
        counts, datatype = None, counts
    elif len(spec) < 4 and isinstance(counts, tuple if vector else tuple | list):  # for v forms a list is the counts
        if len(counts) != 2:
            raise ArgumentError(f"{subject} needs a pair (count, displacement), got {counts}; several counts are written as a list")
        counts, displs = counts
    return buffer, counts, displs, datatype


def _layout(array: Array | DeviceArray, datatype: object, subject: str) -> _Layout | None:
    """Element layout that the datatype gives, or the array's own; None for one that only the MPI library can walk."""
    if datatype is None:
        layout = _LAYOUTS.get(array.dtype) or _plain(array.dtype)
        if layout is None:
            raise ArgumentError(f"{subject} needs native numbers, got dtype {array.dtype}: convert it or give an MPI datatype")
        _LAYOUTS[array.dtype] = layout
        return layout
    if isinstance(datatype, str):
        with contextlib.suppress(ValueError):  # an unknown code stays a str
            datatype = MPI.Datatype.fromcode(datatype)
    if not isinstance(datatype, MPI.Datatype):
        raise ArgumentError(f"{subject} needs an MPI datatype or a type code, got {datatype!r}")
    layout = _basic_datatypes().get(MPI._handleof(datatype))
    if layout is not None or datatype == MPI.DATATYPE_NULL or datatype.extent <= 0:
        return layout
    lower, true_extent = datatype.Get_true_extent()
    label = datatype.name if datatype.is_named else "a derived datatype"
    return _Layout(np.dtype((np.void, datatype.size)), datatype.extent, lower, lower + true_extent, label, datatype)


def _place_one(counts: object, displs: object, nbytes: int, *, layout: _Layout, nblocks: int, subject: str) -> _Place:
    """All elements as one stretch of memory, nblocks times as many as an explicit count says."""
    first = 0 if displs is None else _integer(displs, subject)
    offset = first * layout.extent
    if not 0 <= offset <= nbytes:
        raise ArgumentError(f"{subject} needs a displacement of 0 to {nbytes // layout.extent}, got {first}")
    count = layout.infer(nbytes - offset, nblocks, subject) if counts is None else _integer(counts, subject) * nblocks
    if count < 0:
        raise ArgumentError(f"{subject} needs a count >= 0, got {count // nblocks}")
    layout.check(first, first + count, nbytes, subject=subject)
    return count, offset, None, None


def _place_blocks(counts: object, displs: object, nbytes: int, *, layout: _Layout, nblocks: int, subject: str) -> _Place:
    """Blocks that each have their own count and displacement."""
    if counts is None:  # an even split, the rest to the first blocks
        base, extra = divmod(layout.infer(nbytes, 1, subject), nblocks)
        sizes = (base + 1,) * extra + (base,) * (nblocks - extra)
    else:
        sizes = _integers(counts, (1,) * nblocks, subject)
    starts = tuple(accumulate(sizes[:-1], initial=0)) if displs is None else _integers(displs, range(nblocks), subject)
    if min(sizes) < 0:
        raise ArgumentError(f"{subject} needs counts >= 0, got {min(sizes)}")
    used = [(start, start + size) for start, size in zip(starts, sizes, strict=True) if size] or [(0, 0)]
    layout.check(min(used)[0], max(end for _, end in used), nbytes, subject=subject)
    return sum(sizes), 0, sizes, starts


def _integer(value: Any, subject: str) -> int:
    """A count or displacement; integral floats pass, since real codes compute counts with NumPy."""
    try:
        return int(value) if isinstance(value, float | np.floating) and value.is_integer() else operator.index(value)
    except TypeError:
        raise ArgumentError(f"{subject} needs integer counts and displacements, got {value!r}") from None


def _integers(values: Any, scale: Sequence[int], subject: str) -> tuple[int, ...]:
    """One integer per block; a lone integer stands for its multiples by scale."""
    try:
        items = tuple(values)
    except TypeError:
        return tuple(_integer(values, subject) * factor for factor in scale)
    if len(items) != len(scale):
        raise ArgumentError(f"{subject} needs {len(scale)} counts or displacements, one per block, got {len(items)}")
    return tuple(_integer(item, subject) for item in items)


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
    array = buffer if isinstance(buffer, np.ndarray) else device_array(buffer)
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
