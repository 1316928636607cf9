"""Buffer specs of mpi4py: the parts of one, counts and displacements that it leaves out, and how its elements lie in memory."""

import contextlib
import functools
import operator
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from mpi4py import MPI

from hpcoll.base.dtypes import is_bfloat16, opaque
from hpcoll.base.errors import ArgumentBufferError, ArgumentError, ArgumentKeyError, ArgumentTypeError
from hpcoll.base.text import printable, quoted
from hpcoll.comm.arguments.datatypes import layout_of_datatype, made_of, table_of
from hpcoll.comm.arguments.memory import Array, surroundings
from hpcoll.runtime.gpu.arrays import DeviceArray
from hpcoll.runtime.program.layouts import Map, Words

# elements in total, byte offset, counts, displs
_Place: TypeAlias = tuple[int, int, tuple[int, ...] | None, tuple[int, ...] | None]
_QUAD = ("REAL16", "COMPLEX32")  # binary128 in Fortran, though mpi4py's type string says long double
_CHARACTERS = {"S1": opaque(np.dtype("u1")), "U1": opaque(np.dtype("u4"))}
_NO_NUMBERS = ("PACKED", "LOGICAL", "F_BOOL")  # though mpi4py's type string says integer or bool
_MAX_ITEMSIZE = 2**31 - 1  # of a NumPy dtype, and what MPI_Pack of Open MPI 5 can count


class Derived(NamedTuple):
    """A derived datatype as an element type.

    Attributes:
        name: Its MPI name, or "derived".
        of: NumPy's name of the type of all numbers in it; empty where they have several types, or none that NumPy has.
    """

    name: str
    of: str

    def __str__(self) -> str:
        return self.name


Element: TypeAlias = np.dtype[Any] | Derived | str


class BufferLayout(NamedTuple):
    """The memory of an element: its extent and true bounds in bytes. Trusted elements may reach beyond the memory that a spec names.

    Attributes:
        derived: Element type where that is a derived datatype.
        table: Table of its layout, and ``map`` one of any number of elements; None where these are contiguous bytes.
    """

    dtype: np.dtype[Any]
    extent: int
    lower: int
    upper: int
    label: str
    datatype: MPI.Datatype | None = None
    trusted: bool = False
    derived: Derived | None = None
    table: Words | None = None
    map: Map | None = None

    @property
    def element(self) -> Element:
        """Element type as the caller gave it, as in `hpcoll.comm.arguments.call.Call`."""
        return self.derived or self.dtype

    def infer(self, nbytes: int, nparts: int, subject: str) -> int:
        """Return how many elements some bytes hold; these must fill equal parts."""
        count, rest = divmod(nbytes, self.extent)
        if rest or count % nparts:
            needs = f"whole elements of {self.label}" if rest else f"{nparts} equal blocks of {self.label}"
            raise ArgumentError(
                f"{subject} needs {needs}, got {nbytes} bytes ({self.extent} per element): give the count"
            )
        return count

    def check(self, first: int, end: int, array: Array | DeviceArray, *, subject: str) -> None:
        """Refuse elements [first, end) that reach outside an array; those of a derived datatype, outside what it is a view of."""
        before, behind = (
            -first * self.extent - self.lower,
            (end - 1) * self.extent + self.upper - array.nbytes,
        )
        if self.trusted or first >= end or (before <= 0 and behind <= 0):
            return
        needs, got = (
            f"elements {first} to {end}" if first < 0 else f"{end} elements",
            str(array.nbytes // self.extent),
        )
        if self.datatype is not None:
            room = surroundings(array)
            missing = [(before - room[0], "before"), (behind - room[1], "behind")]
            lacks = " and ".join(f"{nbytes} bytes {where} it" for nbytes, where in missing if nbytes > 0)
            if not lacks:
                return
            got = f"memory that lacks {lacks}"
        raise ArgumentError(f"{subject} needs {needs} of {self.label}, got {got}")


def derived_layout(datatype: MPI.Datatype) -> BufferLayout | None:
    """Return the layout of a derived datatype, or of a predefined one with several numbers; None where only MPI can walk it.

    It is read once, and hangs on the datatype as an attribute, which its duplicates inherit and which goes when that is freed.
    """
    if datatype.is_predefined:
        key = MPI._handleof(datatype)
        if key not in _STRUCTURES:
            _STRUCTURES[key] = _read(datatype)
        return _STRUCTURES[key]
    known: Any = datatype.Get_attr(_keyval())
    found: BufferLayout | None = known or _read(datatype)
    if known is None and found is not None:
        datatype.Set_attr(_keyval(), found)
    return found


@functools.cache
def _keyval() -> int:
    return MPI.Datatype.Create_keyval(copy_fn=lambda datatype, keyval, value: value)


def _read(datatype: MPI.Datatype) -> BufferLayout | None:
    extent, (lower, true_extent) = datatype.extent, datatype.Get_true_extent()
    if extent <= 0 or datatype.size > _MAX_ITEMSIZE or (layout := layout_of_datatype(datatype)) is None:
        return None
    numbers, label = _types(datatype), datatype.name if datatype.is_named else "a derived datatype"
    derived = Derived(printable(datatype.name) or "derived", numbers.pop() if len(numbers) == 1 else "")
    table, every = table_of(layout, extent)
    dtype = np.dtype((np.void, layout.size))
    return BufferLayout(
        dtype, extent, lower, lower + true_extent, label, datatype, False, derived, table, every
    )


def _types(datatype: MPI.Datatype) -> set[str]:
    """Return NumPy's names of the types of all numbers in a datatype; the empty string stands for types that NumPy lacks."""
    if datatype.is_predefined:
        layout = plain_layout(datatype)
        return {"" if layout is None else layout.label}
    with made_of(datatype) as (_, datatypes):
        return set[str]().union(*map(_types, datatypes))


def _plain(dtype: np.dtype[Any]) -> BufferLayout | None:
    """Return the layout of plain elements of a dtype; None for a dtype that no collective takes."""
    if dtype.kind in "biufc" and dtype.isbuiltin == 1 and dtype.isnative:
        dtype = np.dtype(dtype.str)  # long and long long become one object
    elif not is_bfloat16(dtype):
        if not dtype.isnative or dtype.str[1:] not in _CHARACTERS:
            return None
        dtype = _CHARACTERS[dtype.str[1:]]
    return BufferLayout(dtype, dtype.itemsize, 0, dtype.itemsize, dtype.name)


# By dtype of the array; grows with what arrays bring.
LAYOUTS = {
    dtype: layout for dtype in map(np.dtype, "?bhilqBHILQefdgFDG") if (layout := _plain(dtype)) is not None
}


_STRUCTURES: dict[
    int, BufferLayout | None
] = {}  # of predefined datatypes with several numbers (DOUBLE_INT), by handle


def _is_of_numpy(typestr: str) -> bool:
    """Say whether NumPy has such elements: it has no integers of 16 bytes, which libraries with the MPI ABI have."""
    try:
        return np.dtype(typestr) is not None
    except TypeError:
        return False


@functools.cache
def _basic_names() -> dict[int, str]:
    """Return the names of predefined MPI datatypes that may have plain elements, by handle; of those that the library lacks, too."""
    every = [
        (name, one)
        for name, one in vars(MPI).items()
        if isinstance(one, MPI.Datatype) and one != MPI.DATATYPE_NULL
    ]
    return {
        MPI._handleof(one): name for name, one in every if name not in _QUAD and _is_of_numpy(one.typestr)
    }


@functools.cache
def _layout_named(name: str) -> BufferLayout | None:
    """Return the layout of a predefined datatype, if its elements are plain. MPI is asked, hence not before MPI_Init."""
    datatype = getattr(MPI, name)
    layout = _plain(np.dtype(datatype.typestr))
    if layout is not None and name.startswith(_NO_NUMBERS):
        layout = layout._replace(dtype=opaque(layout.dtype))
    return layout if layout is not None and layout.extent == datatype.size == datatype.extent else None


def plain_layout(datatype: MPI.Datatype) -> BufferLayout | None:
    """Return the layout of a predefined datatype with plain elements; None for others.

    The library is asked of this datatype alone: of those that it lacks, Open MPI 4.1 refuses to tell the size, and Intel MPI ends the job.
    """
    name = _basic_names().get(MPI._handleof(datatype))
    return _layout_named(name) if name else None


def split(spec: Any, subject: str, *, vector: bool) -> tuple[Any, Any, Any, Any]:
    """Return buffer, counts, displs and datatype of a spec; None for parts that it leaves out."""
    if not isinstance(spec, list | tuple):
        return spec, None, None, None
    if not 2 <= len(spec) <= 4:
        raise ArgumentError(
            f"{subject} needs 2 to 4 items (buffer, count, displacement, datatype), got {len(spec)}"
        )
    buffer, counts, displs, datatype = spec if len(spec) == 4 else (*spec[:2], None, *spec[2:], None)[:4]
    if len(spec) == 2 and isinstance(counts, MPI.Datatype | str):
        counts, datatype = None, counts
    elif len(spec) < 4 and isinstance(
        counts, tuple if vector else tuple | list
    ):  # for v forms a list is the counts
        if len(counts) != 2:
            raise ArgumentError(
                f"{subject} needs a pair (count, displacement), got {counts}; several counts are written as a list"
            )
        counts, displs = counts
    return buffer, counts, displs, datatype


def layout_of(array: Array | DeviceArray, datatype: object, subject: str) -> BufferLayout | None:
    """Return the layout that the datatype gives, or the array's own; None for one that only the MPI library can walk."""
    if datatype is None:
        layout = LAYOUTS.get(array.dtype) or _plain(array.dtype)
        if layout is None:
            kind = (
                ArgumentKeyError
                if array.dtype.isnative and array.dtype.kind not in "mM"
                else ArgumentBufferError
            )
            raise kind(
                f"{subject} needs native numbers, got dtype {array.dtype}: convert it or give an MPI datatype"
            )
        LAYOUTS[array.dtype] = layout
        return layout
    if isinstance(datatype, str):
        with contextlib.suppress(ValueError):  # an unknown code stays a str
            datatype = MPI.Datatype.fromcode(datatype)
    if not isinstance(datatype, MPI.Datatype):
        raise ArgumentKeyError(f"{subject} needs an MPI datatype or a type code, got {quoted(datatype)}")
    layout = plain_layout(datatype)
    return layout if layout is not None or datatype == MPI.DATATYPE_NULL else derived_layout(datatype)


def place_one(
    counts: object,
    displs: object,
    array: Array | DeviceArray,
    *,
    layout: BufferLayout,
    nblocks: int,
    subject: str,
) -> _Place:
    """Place all elements in one stretch of memory, nblocks times as many as an explicit count says."""
    nbytes, first = array.nbytes, 0 if displs is None else _integer(displs, subject)
    offset = first * layout.extent
    if not 0 <= offset <= nbytes:
        raise ArgumentError(f"{subject} needs a displacement of 0 to {nbytes // layout.extent}, got {first}")
    count = (
        layout.infer(nbytes - offset, nblocks, subject)
        if counts is None
        else _integer(counts, subject) * nblocks
    )
    if count < 0:
        raise ArgumentError(f"{subject} needs a count >= 0, got {count // nblocks}")
    layout.check(first, first + count, array, subject=subject)
    return count, offset, None, None


def place_blocks(
    counts: object,
    displs: object,
    array: Array | DeviceArray,
    *,
    layout: BufferLayout,
    nblocks: int,
    subject: str,
) -> _Place:
    """Place blocks that each have their own count and displacement."""
    if counts is None:  # an even split, the rest to the first blocks
        base, extra = divmod(layout.infer(array.nbytes, 1, subject), nblocks)
        sizes = (base + 1,) * extra + (base,) * (nblocks - extra)
    else:
        sizes = integers(counts, (1,) * nblocks, subject)
    if min(sizes) < 0:
        raise ArgumentError(f"{subject} needs counts >= 0, got {min(sizes)}")
    total = sum(sizes)
    if displs is None:
        starts = tuple(accumulate(sizes[:-1], initial=0))
        first, end = 0, total
    else:
        starts = integers(displs, range(nblocks), subject)
        used = [(start, start + size) for start, size in zip(starts, sizes, strict=True) if size] or [(0, 0)]
        first, end = min(used)[0], max(end for _, end in used)
    layout.check(first, end, array, subject=subject)
    return total, 0, sizes, starts


def _integer(value: Any, subject: str) -> int:
    """Return a count or displacement; integral floats pass, since real codes compute counts with NumPy."""
    try:
        return (
            int(value)
            if isinstance(value, float | np.floating) and value.is_integer()
            else operator.index(value)
        )
    except TypeError:
        raise ArgumentTypeError(
            f"{subject} needs integer counts and displacements, got {quoted(value)}"
        ) from None


def integers(values: Any, scale: Sequence[int], subject: str) -> tuple[int, ...]:
    """Return an integer per block; a lone integer stands for its multiples by scale."""
    if (
        type(values) is np.ndarray
        and values.dtype.kind in "iu"
        and values.ndim == 1
        and values.size == len(scale)
    ):
        return tuple(values.tolist())
    try:
        items = tuple(values)
    except TypeError:
        return tuple(_integer(values, subject) * factor for factor in scale)
    if len(items) != len(scale):
        raise ArgumentError(
            f"{subject} needs {len(scale)} counts or displacements, one per block, got {len(items)}"
        )
    return (
        items
        if all(type(item) is int for item in items)
        else tuple(_integer(item, subject) for item in items)
    )
