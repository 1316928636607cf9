"""Arrays in GPU memory that are nobody's: with the CUDA array interface and no more, and parts of symmetric ones."""

from typing import Any

import numpy as np
from gpu_cases import address_of

from hpcoll.runtime.gpu.device import Gpu, Memory


class Plain:
    """An array with nothing but the CUDA array interface."""

    def __init__(self, memory: object, address: int, count: int, dtype: np.dtype) -> None:
        # the memory is kept alive
        self._memory, self._address, self.size, self.dtype = (
            memory,
            address,
            count,
            dtype,
        )

    def __getitem__(self, part: slice) -> "Plain":
        first, end, _ = part.indices(self.size)
        return Plain(
            self._memory, self._address + first * self.dtype.itemsize, max(0, end - first), self.dtype
        )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": (self.size,),
            "typestr": self.dtype.str,
            "data": (self._address, False),
            "strides": None,
            "version": 3,
        }


class Symmetric:
    """Hands out parts of one symmetric array in turn, so that ranks need not ask for equal sizes."""

    def __init__(self, comm: Any, count: int) -> None:
        pool = comm.empty(count, np.float64, device="cuda")
        self._pool, self._count, self._next = (
            Plain(pool, address_of(pool), count, np.dtype(np.float64)),
            count,
            0,
        )

    def __call__(self, count: int, dtype: Any) -> Any:
        assert np.dtype(dtype) == np.float64
        first = self._next if self._next + count <= self._count else 0
        self._next = first + -(-count // 32) * 32
        return self._pool[first : first + count]


def plain(gpu: Gpu, count: int, dtype: np.dtype) -> Plain:
    memory = Memory(gpu, count * dtype.itemsize)
    return Plain(memory, memory.address, count, dtype)
