"""Page-locked host memory for copies from and to GPUs, kept and used again.

Locking pages costs about as much as copying them a few times, so that memory is never given back to the system. Sizes are powers of two.
"""

import ctypes
import weakref
from functools import cache
from typing import Any

import numpy as np

from hpcoll.base.errors import DeviceError
from hpcoll.runtime.gpu.cuda import Driver

_LEAST_NBYTES = 4096


@cache
def _idle(driver: Driver, size: int) -> list[int]:
    """Return the addresses of unused memory of a size."""
    return []


def pinned(driver: Driver, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return so many bytes, aligned to 64; the memory can be used again when the array and its views are gone.

    Where the system locks no more pages, ordinary memory, which copies reach more slowly.
    """
    size = max(_LEAST_NBYTES, 1 << (nbytes - 1).bit_length())
    idle = _idle(driver, size)
    try:
        address = idle.pop()
    except IndexError:
        try:
            address = driver.allocate_pinned(size)
        except DeviceError:
            return _aligned(nbytes)
    memory: Any = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(memory, idle.append, address).atexit = False
    return np.frombuffer(memory, np.uint8, nbytes)


def _aligned(nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    memory = np.empty(nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + nbytes]
