"""Memory behind objects that export it: the buffer protocol, DLPack, the CUDA array interface. Floor 5."""

import contextlib
import ctypes
import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
from mpi4py import MPI

_HOST_DEVICES = (1, 3, 11, 13)  # DLPack: CPU, pinned by CUDA, pinned by ROCm, CUDA managed
_NO_DEVICE_MEMORY = (1, 3, 34, 100)  # CUresult: pointer never seen, driver never started, stub library, no device


def host_array(buffer: Any) -> np.ndarray[Any, np.dtype[Any]] | None:
    """NumPy array over an exporter's memory, asked in mpi4py's order: buffer protocol, DLPack, CUDA array interface."""
    if isinstance(buffer, np.ndarray):
        return np.asarray(buffer)
    if buffer is MPI.BOTTOM or buffer is MPI.IN_PLACE:  # these export an empty buffer
        return None
    with contextlib.suppress(TypeError, ValueError, BufferError):
        return np.asarray(memoryview(buffer))
    if is_device_array(buffer):
        raise BufferError("GPU arrays are not supported yet")
    if hasattr(buffer, "__dlpack__"):
        array: np.ndarray[Any, np.dtype[Any]] = np.from_dlpack(buffer)
        if not array.flags.writeable:  # NumPy calls every capsule older than DLPack 1.0 read-only, mpi4py calls it writable
            with contextlib.suppress(BufferError):
                memory: Any = MPI.buffer.frombuffer(buffer)
                array = np.ndarray(array.shape, array.dtype, memory, 0, array.strides)
        return array
    if not hasattr(buffer, "__cuda_array_interface__"):
        return None
    interface = buffer.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise BufferError("masked arrays cannot be sent")
    return np.asarray(SimpleNamespace(__array_interface__=interface | {"version": 3}, owner=buffer))


@functools.cache
def _cuda_driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def is_device_array(buffer: Any) -> bool:
    """Whether a buffer lies in GPU memory: the seam where device support branches off.

    A ``__cuda_array_interface__`` alone proves nothing, real clients wrap host memory in one: the driver is asked.
    """
    if hasattr(buffer, "__dlpack_device__"):
        return buffer.__dlpack_device__()[0] not in _HOST_DEVICES
    interface = getattr(buffer, "__cuda_array_interface__", None)
    if interface is None or (driver := _cuda_driver()) is None:
        return False
    kind = ctypes.c_uint(0)
    status = driver.cuPointerGetAttribute(ctypes.byref(kind), 2, ctypes.c_uint64(interface["data"][0] or 0))  # 2: memory type
    return status not in _NO_DEVICE_MEMORY and (status != 0 or kind.value == 2)  # 2: device
