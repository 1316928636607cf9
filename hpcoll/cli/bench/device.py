"""Arrays in GPU memory for the benchmark, filled and checked through images of them on the host; the rates at which a GPU copies."""

import ctypes
import importlib
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from hpcoll.runtime.gpu.device import Gpu, GpuArray, Memory, gpu_of
from hpcoll.runtime.gpu.local_gpu import local_device

_SCRIBBLE = 0x5A  # content of a host image while the array on the GPU counts
_LINK_NBYTES = 256 << 20  # several times the last cache of any GPU
_LINK_COPIES, _LINK_TRIES = 8, 3


class Images:
    """The two arrays in GPU memory that a call gets, which may be one, and their images in page-locked host memory."""

    def __init__(
        self, gpu: Gpu, source: Any, target: Any, host_source: np.ndarray, host_target: np.ndarray
    ) -> None:
        self._gpu, self.source, self.target = gpu, source, target
        self._pairs = [(source, host_source)] + ([(target, host_target)] if target is not source else [])

    def upload(self) -> None:
        """Fill the arrays from their images, which are then overwritten."""
        for array, image in self._pairs:
            self._copy(address_of(array), image.ctypes.data, image.nbytes)
        self.synchronise()
        for _, image in self._pairs:
            image.view(np.uint8)[:] = _SCRIBBLE

    def download(self) -> None:
        """Read the arrays into their images."""
        for array, image in self._pairs:
            self._copy(image.ctypes.data, address_of(array), image.nbytes)
        self.synchronise()

    def fetch(self, first: int, end: int) -> Callable[[], None]:
        """Return a call that reads elements of the source into its image."""
        return self._part(*self._pairs[0], first, end, from_gpu=True)

    def store(self, first: int, end: int) -> Callable[[], None]:
        """Return a call that writes elements of the target from its image."""
        return self._part(*self._pairs[-1], first, end, from_gpu=False)

    def synchronise(self) -> None:
        """Wait for the default stream."""
        self._gpu.driver("cuStreamSynchronize", 0)

    def _part(
        self, array: Any, image: np.ndarray, first: int, end: int, *, from_gpu: bool
    ) -> Callable[[], None]:
        step, nbytes = image.itemsize, (end - first) * image.itemsize
        there, here = address_of(array) + first * step, image.ctypes.data + first * step

        def part() -> None:
            self._copy(*((here, there) if from_gpu else (there, here)), nbytes)
            self.synchronise()

        return part

    def _copy(self, destination: int, source: int, nbytes: int) -> None:
        if nbytes:
            self._gpu.driver.copy(destination, source, nbytes, 0)


def own_gpu() -> Gpu:
    """Return the GPU that `hpcoll.local_device` gives this rank, made current; DeviceError where there is none."""
    gpu = gpu_of(local_device())
    gpu.enter()
    return gpu


def address_of(array: Any) -> int:
    """Return the address of an array on the GPU."""
    return int(array.__cuda_array_interface__["data"][0])


def gpu_array(gpu: Gpu, count: int, dtype: np.dtype) -> Any:
    """Return an array as a user has it: CuPy's where CuPy is installed and knows the element type."""
    try:
        cupy: Any = importlib.import_module("cupy")
        cupy.cuda.Device(gpu.ordinal).use()
        return cupy.empty(count, dtype)
    except (ImportError, TypeError, ValueError):
        return GpuArray(Memory(gpu, count * dtype.itemsize), (count,), dtype)


def first_elements(array: Any, image: np.ndarray) -> Any:
    """Return the beginning of an array on the GPU, of the size of its image."""
    return (
        array[: image.size]
        if hasattr(array, "__getitem__")
        else GpuArray(array._memory, (image.size,), array.dtype)
    )


def rates(gpu: Gpu, nbytes: int = _LINK_NBYTES) -> dict[str, float]:
    """Measure copies from and to page-locked memory and within the GPU, in GB/s (1e9); of the last, bytes read and written count."""
    one, other = Memory(gpu, nbytes), Memory(gpu, nbytes)
    host = Memory(gpu, nbytes, pinned=True)
    ctypes.memset(host.address, 0, nbytes)
    stream = gpu.driver.stream()

    def rate(destination: Memory, source: Memory) -> float:
        """Return the GB/s of the fastest of some copies."""
        best = float("inf")
        for _ in range(_LINK_TRIES):
            gpu.driver("cuStreamSynchronize", stream)
            start = perf_counter()
            for _ in range(_LINK_COPIES):
                gpu.driver.copy(destination.address, source.address, nbytes, stream)
            gpu.driver("cuStreamSynchronize", stream)
            best = min(best, perf_counter() - start)
        return _LINK_COPIES * nbytes / best / 1e9

    measured = {"to_gpu": rate(one, host), "from_gpu": rate(host, one), "copy": 2 * rate(other, one)}
    gpu.driver("cuStreamDestroy_v2", stream)
    return measured
