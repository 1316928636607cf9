"""The layout of objects of CPython, NumPy and mpi4py, as compiled code reads them; tried on known objects when this is imported.

Arrays are laid out by NumPy's binary interface. Objects of other types hold memory, too: a bytearray, a memoryview, an ``array.array``.
"""

import ctypes
import os
import sys
from array import ArrayType
from typing import Any, NamedTuple

import mpi4py
import numpy as np
from mpi4py import MPI

from hpcoll.runtime.program import call_fields
from hpcoll.runtime.program import call_fields as c

_RELEASED, _C_CONTIGUOUS = 1, 2  # flags of a memoryview
_HEAD_NBYTES = object.__basicsize__
# whose callers remove arguments, so that a C function may be given more than it has (`compiled.mpi_ops`)
_MACHINES = (
    "x86_64",
    "aarch64",
)


class Holder(NamedTuple):
    """The words in which an object that is no array describes its memory, as in `hpcoll.runtime.program.call_fields`."""

    data_at: int
    nitems_at: int
    readonly_at: int
    check_at: int
    mask: int
    value: int
    format_at: int = -1
    format: int = 0


def _words(address: int, n: int) -> tuple[int, ...]:
    memory: Any = MPI.buffer.fromaddress(address, 8 * n)
    return tuple(memoryview(memory).cast("q"))


def is_supported(c: Any = call_fields) -> bool:
    """Say whether known arrays, lists, tuples, NumPy scalars and handles lie in memory as compiled code expects."""
    if (
        os.uname().machine not in _MACHINES
        or sys.implementation.name != "cpython"
        or object.__basicsize__ != 16
    ):
        return False
    if (_words(id(MPI.SUM), HANDLE_AT + 1)[HANDLE_AT] ^ MPI._handleof(MPI.SUM)) & HANDLE_BITS:
        return False
    for array in (np.zeros((3, 5), np.float32), np.zeros((4, 6), np.int64)[1:3], np.zeros((), np.float64)):
        fields = _words(id(array), 9)
        expected = id(np.ndarray), array.ctypes.data, array.ndim, id(array.dtype)
        if (fields[c.TYPE_OF], fields[c.DATA], fields[c.NDIM] & 0xFFFFFFFF, fields[c.DESCR]) != expected:
            return False
        dimensions, strides = (
            _words(fields[at], array.ndim) if array.ndim else () for at in (c.DIMENSIONS, c.STRIDES)
        )
        flags = fields[c.FLAGS] & (c.CONTIGUOUS | c.ALIGNED | c.WRITEABLE)
        if (
            dimensions != array.shape
            or strides != array.strides
            or flags != c.CONTIGUOUS | c.ALIGNED | c.WRITEABLE
        ):
            return False
    scalar = np.int64(1 << 40)
    return (
        all(_reads_items(spec, c) for spec in ([scalar, 7], (scalar, 7)))
        and _words(id(scalar), 3)[c.SCALAR] == scalar
    )


def _reads_items(spec: Any, c: Any) -> bool:
    fields = _words(id(spec), 4)
    items = fields[c.ITEMS] if isinstance(spec, list) else id(spec) + 8 * c.FIRST_ITEM
    return (
        fields[c.TYPE_OF] == id(type(spec))
        and fields[c.SIZE] == 2
        and _words(items, 2) == (id(spec[0]), id(spec[1]))
    )


def _holders() -> dict[type[Any], Holder]:
    """Return the types whose known objects describe their memory in the expected words."""
    holders: dict[type[Any], Holder] = {}
    samples: tuple[tuple[Any, Holder], ...] = (
        (bytearray(40), Holder(5, 2, -1, -1, 0, 0)),
        (MPI.buffer(bytearray(40)), Holder(2, 4, 6, -1, 0, 0)),
        (memoryview(bytearray(40)), Holder(7, 9, 11, 5, _RELEASED | _C_CONTIGUOUS, _C_CONTIGUOUS, 12)),
        (ArrayType("b", bytes(40)), Holder(3, 2, -1, 5, 0, 0)),
        ((ctypes.c_double * 5)(), Holder(2, 5, -1, 5, 0, 0)),
        (bytes(bytearray(40)), Holder(1 - bytes.__basicsize__, 2, -1, -1, 0, 0)),
    )
    for sample, holder in samples:
        words = _words(id(sample), 1 + max(*holder[:4], holder.format_at))
        expected = np.asarray(memoryview(sample)).ctypes.data, 40, True, True
        readonly = holder.readonly_at >= 0 and words[holder.readonly_at] & 0xFFFFFFFF != 0
        checked = holder.check_at < 0 or words[holder.check_at] & holder.mask == holder.value
        data = words[holder.data_at] if holder.data_at >= 0 else id(sample) - holder.data_at
        if (data, words[holder.nitems_at], not readonly, checked) == expected and _tells_format(
            words, holder
        ):
            holders[ctypes.Array if isinstance(sample, ctypes.Array) else type(sample)] = holder
    if len({_words(id(ArrayType(code)), 6)[5] for code in "bd"} | {_words(id(ArrayType("d")), 6)[5]}) != 2:
        holders.pop(ArrayType, None)  # it does not say there what its elements are
    for number in map(
        np.dtype, "?bBhHiIlLqQfdFD"
    ):  # NumPy's scalars, such as a sum: the number is behind the type
        scalar: np.generic = np.frombuffer(b"any sixteen byte", number)[0]
        memory: Any = MPI.buffer.fromaddress(id(scalar) + _HEAD_NBYTES, number.itemsize)
        if bytes(memory) == scalar.tobytes():
            holders[number.type] = Holder(-_HEAD_NBYTES, -1, -1, -1, 0, 0)
    return holders


def _tells_format(words: tuple[int, ...], holder: Holder) -> bool:
    """Say whether a view of bytes has its format where compiled code reads it."""
    text: Any = MPI.buffer.fromaddress(words[holder.format_at], 2) if holder.format_at >= 0 else b"B\0"
    return bytes(memoryview(text)) == b"B\0"


def _structures_alike() -> bool:
    """Say whether structured types tell their sizes and objects where compiled code reads them."""
    samples = [np.dtype(text) for text in ("d,i", "i,S99", "i8,O", "f8")]
    words = [_words(id(one), c.DESCR_NBYTES + 1) for one in samples]
    kinds = [one[c.DESCR_KIND] for one in words]
    told = [(one[c.DESCR_NBYTES], bool(one[c.DESCR_FLAGS] & c.HAS_OBJECTS)) for one in words]
    return (
        told == [(one.itemsize, one.hasobject) for one in samples]
        and kinds[:-1] != kinds[1:]
        and kinds[0] == kinds[1]
    )


def _bytes_length_at() -> int | None:
    """Return how far behind the start of a ``bytes`` object its length is; None where it is not followed by the hash and the bytes.

    The hash is -1 until somebody asks for it.
    """
    at, sample = bytes.__basicsize__ - 17, bytes(bytearray(b"sixteen and more"))
    words = _words(id(sample) + at, 4)
    laid_out = (
        sys.implementation.name == "cpython"
        and words[:2] == (len(sample), -1)
        and bytes(np.array(words[2:])) == sample
    )
    return at if laid_out else None


def _reads_floats() -> bool:
    """Say whether a float has its number where compiled code reads those of lists."""
    return (
        SUPPORTED and float(np.array(_words(id(sample := 1.5**40), 3)).view(np.float64)[c.SCALAR]) == sample
    )


def is_holder(thing: Any) -> bool:
    """Say whether an object is of a type that has a `Holder`."""
    return type(thing) in HOLDERS or (isinstance(thing, ctypes.Array) and ctypes.Array in HOLDERS)


def holder_of(thing: Any, bare: bool) -> Holder:
    """Return the `Holder` of an object of a known type. Of one that stands ``bare``, without a datatype, it also tells the elements.

    That of an ``array.array`` always does; the type of a ctypes array tells them, and the length that its instances have.
    """
    if isinstance(thing, ctypes.Array):
        return HOLDERS[ctypes.Array]._replace(mask=-1, value=ctypes.sizeof(type(thing)))
    holder = HOLDERS[type(thing)]
    if type(thing) is memoryview and bare:
        return holder._replace(format=int.from_bytes(thing.format.encode(), "little"))
    return (
        holder._replace(mask=-1, value=_words(id(thing), holder.check_at + 1)[-1])
        if type(thing) is ArrayType
        else holder
    )


def structure_of(dtype: np.dtype[Any]) -> int:
    """Return the word by which structured types are known; 0 where they cannot be, or for another type."""
    return _words(id(dtype), c.DESCR_KIND + 1)[-1] if dtype.kind == "V" and STRUCTURES_SUPPORTED else 0


def unit_of(thing: Any) -> int:
    """Return the bytes in which an object that holds memory counts its length."""
    return thing.itemsize if isinstance(thing, ArrayType | np.generic) else 1


for _name in ("_addressof", "_handleof", "_sizeof"):
    if not hasattr(MPI, _name):
        raise ImportError(
            f"mpi4py {mpi4py.__version__} has no MPI.{_name}, which tells hpcoll handles: install an older release of mpi4py"
        )
HANDLE_AT = (MPI._addressof(MPI.BYTE) - id(MPI.BYTE)) // 8  # alike in datatypes and operators
HANDLE_BITS = -1 if MPI._sizeof(MPI.BYTE) == 8 else (1 << 8 * MPI._sizeof(MPI.BYTE)) - 1
HOLDERS = _holders() if sys.implementation.name == "cpython" else {}
SUPPORTED = is_supported()
BYTES_LENGTH_AT = _bytes_length_at()
FLOATS_SUPPORTED = _reads_floats()
STRUCTURES_SUPPORTED = SUPPORTED and _structures_alike()
