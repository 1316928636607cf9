"""DLPack capsules, read by their published layout and not consumed, so that they keep the memory alive."""

import ctypes
from typing import Any, NamedTuple

import numpy as np

_LETTERS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}  # by type code
_FLOAT, _BFLOAT, _COMPLEX = 2, 4, 5
_READ_ONLY = 1  # flag of versioned capsules
_NEWEST = (1, 0)


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_uint64),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


class Tensor(NamedTuple):
    """The tensor that a capsule describes."""

    pointer: int  # to the first element
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None  # bytes per axis; None in C order without gaps
    dtype: np.dtype[Any]
    readonly: bool  # capsules older than DLPack 1.0 cannot say so
    capsule: (
        object  # keeps the memory alive: its own destructor gives it back, because nobody has consumed it
    )


_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_has_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)


def export(buffer: Any, stream: int | None = None) -> Tensor:
    """Ask an object for its memory.

    Args:
        buffer: Has ``__dlpack__``.
        stream: Handle of the CUDA stream that the producer lets wait for its own work; None for host memory, which has none.

    Raises:
        BufferError: an element type that NumPy and ml_dtypes do not have, or a capsule of another major version.
    """
    options = {} if stream is None else {"stream": stream}
    try:
        capsule = buffer.__dlpack__(**options, max_version=_NEWEST)
    except TypeError:  # a producer older than DLPack 1.0
        capsule = buffer.__dlpack__(**options)
    if _has_name(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_pointer_of(capsule, b"dltensor_versioned"))
        if managed.major != _NEWEST[0]:
            raise BufferError(f"DLPack {managed.major}.{managed.minor} is not known here, only 1.x")
        return _read(managed.tensor, bool(managed.flags & _READ_ONLY), capsule)
    if not _has_name(capsule, b"dltensor"):
        raise BufferError(f"__dlpack__ gave no unused DLPack capsule, but {capsule!r}")
    return _read(_Tensor.from_address(_pointer_of(capsule, b"dltensor")), False, capsule)


def _read(tensor: _Tensor, readonly: bool, capsule: object) -> Tensor:
    dtype, ndim = _dtype(tensor.code, tensor.bits, tensor.lanes), tensor.ndim
    shape = tuple(tensor.shape[:ndim]) if ndim else ()
    strides = (
        tuple(step * dtype.itemsize for step in tensor.strides[:ndim]) if ndim and tensor.strides else None
    )
    return Tensor(
        tensor.data + tensor.byte_offset if tensor.data else 0, shape, strides, dtype, readonly, capsule
    )


def _dtype(code: int, bits: int, lanes: int) -> np.dtype[Any]:
    if (code, lanes) == (_FLOAT, 2):  # complex long double, whose bits are more than the field holds
        code, bits, lanes = _COMPLEX, 2 * bits, 1
    if (code, bits, lanes) == (_BFLOAT, 16, 1):
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    try:
        if lanes == 1 and bits % 8 == 0:
            return np.dtype(f"{_LETTERS[code]}{bits // 8}")
    except (KeyError, TypeError):
        pass
    raise BufferError(f"DLPack type code {code} of {bits} bits and {lanes} lanes is not supported")
