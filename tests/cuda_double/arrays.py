"""Arrays in memory of the double, as GPU libraries hand them to others."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import (
    POINTER,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
    py_object,
)
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcoll.runtime.gpu.cuda import LEGACY_STREAM

if TYPE_CHECKING:
    from cuda_double.double import Double

_CODES = {"i": 0, "u": 1, "f": 2, "V": 4, "c": 5, "b": 6}  # of DLPack; V is bfloat16
_DEVICES = {"device": 2, "pooled": 2, "pinned": 3, "managed": 13}


class Array:
    """An array in GPU memory, or a part of one.

    Attributes:
        stream: What its interface says its maker works on; None for none.
        address: Where the GPU sees its first element.
        memory: "device", "managed", "pooled" or "pinned".
    """

    def __init__(
        self,
        double: Double,
        shape: int | tuple[int, ...],
        dtype: Any = np.float32,
        *,
        memory: str = "device",
        ordinal: int = 0,
        stream: int | None = None,
        readonly: bool = False,
    ) -> None:
        shape, dtype = (shape,) if isinstance(shape, int) else shape, np.dtype(dtype)
        nbytes = prod(shape) * dtype.itemsize
        self.base = double.allocate(max(nbytes, 1), memory, ordinal)
        self._set(
            double,
            double.array(self.base, nbytes).view(dtype).reshape(shape),
            memory,
            ordinal,
            stream,
            readonly,
        )

    def _set(
        self, double: Double, seen: np.ndarray, memory: str, ordinal: int, stream: int | None, readonly: bool
    ) -> None:
        self.double, self._seen, self.memory, self.ordinal, self.stream, self.readonly = (
            double,
            seen,
            memory,
            ordinal,
            stream,
            readonly,
        )
        self.shape, self.dtype, self.nbytes, self.strides = seen.shape, seen.dtype, seen.nbytes, seen.strides
        backing = double.array(self.base, 1).ctypes.data
        self.address = self.base + seen.ctypes.data - backing if seen.size else self.base

    def seen_as(self, function: Callable[[np.ndarray], np.ndarray]) -> Array:
        """The same memory in another shape and other strides: those of a view that a function of NumPy's gives."""
        part = object.__new__(Array)
        part.base = self.base
        part._set(self.double, function(self._seen), self.memory, self.ordinal, self.stream, self.readonly)
        return part

    def __getitem__(self, index: Any) -> Array:
        return self.seen_as(lambda seen: seen[index])

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        strides = None if self._seen.flags.c_contiguous else self.strides
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address if self._seen.size else 0, self.readonly),
            "strides": strides,
            "version": 3,
            "stream": self.stream,
        }

    def _touch(self, *, writes: bool) -> None:
        ends = [(length - 1) * stride for length, stride in zip(self.shape, self.strides)]
        if self._seen.size:
            lo, hi = sum(min(end, 0) for end in ends), sum(max(end, 0) for end in ends) + self.dtype.itemsize
            self.double.touch(self.address + lo, hi - lo, writes)

    def fill(self, values: Any) -> Array:
        """Store values at once, as if the caller had waited for it."""
        self._touch(writes=True)
        self._seen[...] = values
        return self

    def get(self) -> np.ndarray:
        """A copy of what is there now; work that is still queued has not happened."""
        self._touch(writes=False)
        return self._seen.copy()

    def free(self) -> None:
        """Give its memory back; parts of it are then nobody's."""
        self.double.release(self.base)


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", c_void_p), ("deleter", c_void_p))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", c_uint32),
        ("minor", c_uint32),
        ("context", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", _Tensor),
    )


_exported: dict[int, tuple[Any, ...]] = {}  # address of what a capsule holds -> that, and what it points at
_NAMES = {_Managed: b"dltensor", _Versioned: b"dltensor_versioned"}  # a consumer renames a capsule
_Python = ctypes.pythonapi
_new_capsule = ctypes.PYFUNCTYPE(py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", _Python))
_is_valid = ctypes.PYFUNCTYPE(c_int, c_void_p, c_char_p)(("PyCapsule_IsValid", _Python))
_pointer = ctypes.PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", _Python))


@ctypes.PYFUNCTYPE(None, c_void_p)
def _delete(managed: int) -> None:
    del _exported[managed]


@ctypes.PYFUNCTYPE(None, c_void_p)
def _destroy(capsule: int) -> None:
    for name in _NAMES.values():
        if _is_valid(capsule, name):  # nobody took what it holds
            del _exported[_pointer(capsule, name)]


class Dlpack:
    """An array that is handed on by DLPack only.

    Attributes:
        streams: The ``stream`` arguments that consumers gave.
        nexported: Exports of the array that no consumer has let go of.
    """

    def __init__(self, array: Array, *, versioned: bool = False) -> None:
        self.array, self.versioned = array, versioned
        self.streams: list[int | None] = []

    @property
    def nexported(self) -> int:
        return sum(array is self.array for *_, array in list(_exported.values()))

    def __dlpack_device__(self) -> tuple[int, int]:
        return _DEVICES[self.array.memory], self.array.ordinal

    def __dlpack__(
        self, *, stream: int | None = None, max_version: tuple[int, int] | None = None, **_: Any
    ) -> object:
        self.streams.append(stream)
        if stream != -1 and self.array.stream is not None:
            self.array.double.order(self.array.stream, LEGACY_STREAM if stream is None else stream)
        array, ndim = self.array, len(self.array.shape)
        shape = (c_int64 * ndim)(*array.shape)
        strides = (c_int64 * ndim)(*(one // array.dtype.itemsize for one in array.strides))
        kind = _Versioned if self.versioned and max_version and max_version[0] >= 1 else _Managed
        managed = kind(deleter=ctypes.cast(_delete, c_void_p).value)
        if isinstance(managed, _Versioned):
            managed.major, managed.flags = 1, int(array.readonly)
        managed.tensor = _Tensor(
            array.address,
            *self.__dlpack_device__(),
            ndim,
            _CODES[array.dtype.kind],
            array.dtype.itemsize * 8,
            1,
            shape,
            strides,
            0,
        )
        address = ctypes.addressof(managed)
        _exported[address] = managed, shape, strides, array
        return _new_capsule(address, _NAMES[kind], ctypes.cast(_destroy, c_void_p))
