"""The GPU that this process uses: its context, memory, streams and kernels; and page-locked host memory for copies."""

import ctypes
import math
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from typing import Any

import numpy as np

from hpcoll.base.errors import DeviceError, KernelError
from hpcoll.runtime.gpu.cuda import OUT_OF_MEMORY, DeviceAttribute, Driver, driver

_BLOCKS_PER_MULTIPROCESSOR = 8  # enough to keep the memory busy
_LEAST_NBYTES = 4096  # of temporary and of page-locked memory
_SLAB_NBYTES = 32 << 20  # allocated at once for many pieces of it, because peers map allocations
_PIECE_NBYTES = _SLAB_NBYTES // 8  # the largest piece
_IDLE_SHARE = 64  # part of the GPU's memory that stays allocated for temporary memory while nobody uses it
_STREAMS = 3  # enough for one lane's copies while another's kernel runs; more only take each other's turns
_TABLES = 256  # of numbers in its memory that are kept
_STREAM_SETS = 16  # message contexts from there on share them: that delays work, but never for something that comes behind it


class Memory:
    """Memory of a GPU, or page-locked host memory; freed with the object."""

    def __init__(self, gpu: "Gpu", nbytes: int, *, pinned: bool = False) -> None:
        gpu.enter()
        self.nbytes, self._gpu = nbytes, gpu
        self.address = gpu.driver.allocate_pinned(max(1, nbytes)) if pinned else gpu.allocate(max(1, nbytes))
        weakref.finalize(
            self, release, gpu, "cuMemFreeHost" if pinned else "cuMemFree_v2", [self.address]
        ).atexit = False


def release(gpu: "Gpu", function: str, handles: Iterable[int]) -> None:
    """Give handles back when their owner is gone, in any thread; errors are ignored, for nobody waits for them."""
    with suppress(DeviceError), gpu.entered():
        for handle in handles:
            gpu.driver(function, handle)


class Temporary:
    """GPU memory that the next call may use when the object is gone; work on it must have ended by then."""

    def __init__(self, gpu: "Gpu", address: int, nbytes: int) -> None:
        self.gpu, self.address, self.nbytes = gpu, address, nbytes
        weakref.finalize(self, gpu.keep, address, nbytes).atexit = False


class Gpu:
    """A GPU, by the context that all CUDA libraries of the process share; ``stream`` is for work that is waited for at once."""

    has_mps = False  # processes share it by MPS; older drivers do not say

    def __init__(self, driver: Driver, ordinal: int) -> None:
        self.driver, self.ordinal = driver, ordinal
        self.context = driver.primary_context(ordinal)
        self.cc = (
            driver.device_attribute(ordinal, DeviceAttribute.MAJOR),
            driver.device_attribute(ordinal, DeviceAttribute.MINOR),
        )
        self.most_blocks = _BLOCKS_PER_MULTIPROCESSOR * driver.device_attribute(
            ordinal, DeviceAttribute.MULTIPROCESSORS
        )
        with suppress(DeviceError):
            self.has_mps = bool(driver.device_attribute(ordinal, DeviceAttribute.HAS_MPS))
        self._functions: dict[str, int] = {}
        self._tables: dict[object, tuple[Memory, Any]] = {}
        self._streams: dict[int, list[int]] = {}
        self.enter()
        self.stream = driver.stream()
        self._events: list[int] = []  # that nobody uses
        self._idle: dict[int, list[int]] = {}  # addresses of temporary memory by size
        self._most_idle = driver.device_nbytes(ordinal) // _IDLE_SHARE
        self._slab = (0, 0)  # what is left of the last one: address and bytes
        self._lock = threading.Lock()

    def enter(self) -> None:
        """Make the context current in this thread."""
        self.driver("cuCtxSetCurrent", self.context)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make the context current in this thread; afterwards the earlier one."""
        before = self.driver.current_context()
        if before == self.context:
            yield
            return
        self.enter()
        try:
            yield
        finally:
            self.driver("cuCtxSetCurrent", before)

    def function(self, kernel: Any) -> int:
        """Return the handle of a kernel of `hpcoll.kernels.device`, loaded when first asked for."""
        function = self._functions.get(kernel.name)
        if function is None:
            self.enter()
            function = self._functions[kernel.name] = self.driver.function(kernel.ptx, kernel.name)
        return function

    def temporary(self, nbytes: int) -> Temporary:
        """Return memory for a call. It stays allocated within limits, so that peers need map it only once."""
        size = max(_LEAST_NBYTES, 1 << max(0, nbytes - 1).bit_length())
        with self._lock:
            idle = self._idle.setdefault(size, [])
            return Temporary(self, idle.pop() if idle else self._piece(size), size)

    def keep(self, address: int, size: int) -> None:
        """Keep temporary memory for the next call, or free it where it is large and enough is kept; from any thread, without a lock."""
        kept = sum(nbytes * len(idle) for nbytes, idle in self._idle.copy().items() if nbytes > _PIECE_NBYTES)
        if size > _PIECE_NBYTES and kept + size > self._most_idle:
            release(self, "cuMemFree_v2", [address])
        else:
            self._idle[size].append(address)

    def _piece(self, size: int) -> int:
        """Return new memory: of a slab, which is never freed, or an allocation of its own when it is large."""
        self.enter()
        if size > _PIECE_NBYTES:
            return self.allocate(size)
        address, left = self._slab
        if left < size:
            address, left = self.allocate(_SLAB_NBYTES), _SLAB_NBYTES
        self._slab = address + size, left - size
        return address

    def allocate(self, nbytes: int) -> int:
        """Return new memory, while the context is current; where there is none, unused temporary memory is freed first."""
        try:
            return self.driver.allocate(nbytes)
        except DeviceError as error:
            if error.code != OUT_OF_MEMORY or not self._free_idle():
                raise
        return self.driver.allocate(nbytes)

    def _free_idle(self) -> bool:
        """Free unused temporary memory, except that of slabs; say whether there was any."""
        streams = list[int]()
        for idle in [idle for size, idle in self._idle.copy().items() if size > _PIECE_NBYTES]:
            with suppress(IndexError):  # other threads may take some meanwhile
                while True:
                    streams.append(idle.pop())
        release(self, "cuMemFree_v2", streams)
        return bool(streams)

    def table(self, words: np.ndarray[Any, np.dtype[np.int64]]) -> Memory:
        """Return numbers in GPU memory; they are there still where they have been asked for before."""
        words = np.ascontiguousarray(words)
        key: object = (
            words.tobytes() if words.nbytes <= _LEAST_NBYTES else id(words)
        )  # long ones are told by identity
        if key not in self._tables:
            if len(self._tables) >= _TABLES:
                self._tables.clear()
            memory = Memory(self, words.nbytes)
            self.driver.copy(memory.address, words.ctypes.data, words.nbytes, self.stream)
            self.finish(self.stream)
            self._tables[key] = memory, words
        return self._tables[key][0]

    def streams(self, message_context: int, nlanes: int) -> list[int]:
        """Return the streams of a message context, by its number, for so many lanes at once, which take them in turn."""
        self.enter()
        with self._lock:
            streams, n = self._streams.setdefault(message_context % _STREAM_SETS, []), min(nlanes, _STREAMS)
            streams += [self.driver.urgent_stream() for _ in range(n - len(streams))]
            return streams[:n]

    def launch(self, function: int, values: list[int], blocks: int, threads: int, stream: int) -> None:
        """Launch a kernel whose parameters are 8 bytes each; floating-point ones as their bits."""
        cells = (ctypes.c_uint64 * len(values))(*(value & (1 << 64) - 1 for value in values))
        pointers = (ctypes.c_void_p * len(values))(
            *(ctypes.addressof(cells) + 8 * i for i in range(len(values)))
        )
        grid = max(1, min(blocks, self.most_blocks))
        self.driver(
            "cuLaunchKernel", function, grid, 1, 1, threads, 1, 1, 0, stream, ctypes.addressof(pointers), None
        )

    def pin(self, owner: object, address: int, nbytes: int) -> None:
        """Page-lock host memory for as long as its owner lives, so that kernels read and write it."""
        self.enter()
        if not self.driver.device_attribute(self.ordinal, DeviceAttribute.CAN_USE_HOST_POINTER):
            raise DeviceError(
                f"kernels of GPU {self.ordinal} do not reach host memory at the host's addresses"
            )
        self.driver.register(address, nbytes)
        weakref.finalize(owner, release, self, "cuMemHostUnregister", [address]).atexit = False

    @contextmanager
    def _reached(self, stream: int) -> Iterator[int]:
        """Give an event behind the work that is on a stream by now, to be used at once."""
        with self._lock:
            event = self._events.pop() if self._events else self.driver.event()
        self.driver("cuEventRecord", event, stream)
        yield event
        self._events.append(event)

    def order(self, stream: int, earlier: int) -> None:
        """Let later work on a stream wait for the work that is on another by now."""
        with self._reached(earlier) as event:
            self.driver("cuStreamWaitEvent", stream, event, 0)

    def finish(self, stream: int) -> None:
        """Wait for the work that is on a stream by now."""
        with self._reached(stream) as event:
            self.driver("cuEventSynchronize", event)


@lru_cache
def gpu_of(ordinal: int) -> Gpu:
    """Return the GPU of that number; there must be one."""
    cuda = driver()
    assert cuda is not None
    return Gpu(cuda, ordinal)


def kernels() -> Any:
    """Return the module with the kernels, which takes a second to import; KernelError where numba-cuda is not installed."""
    try:
        from hpcoll.kernels import device
    except ImportError as error:
        raise KernelError(
            f"kernels for GPU arrays need numba-cuda (pip install 'hpcoll[cuda13]' or '[cuda12]'): {error}"
        ) from error
    return device


class _Lent:
    """Page-locked memory of an array, given back to the unused with the array's last view."""

    __slots__ = ("__array_interface__", "_address", "_idle")

    def __init__(self, address: int, nbytes: int, idle: list[int]) -> None:
        self.__array_interface__ = {
            "version": 3,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
        }
        self._address, self._idle = address, idle

    def __del__(self) -> None:
        self._idle.append(self._address)


@cache
def _idle_pinned(driver: Driver, size: int) -> list[int]:
    """Return the addresses of unused page-locked memory of a size; it stays locked, because locking costs as much as some copies."""
    return []


def pinned(driver: Driver, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return so many bytes of page-locked memory, aligned to 64; it can be used again when the array and its views are gone.

    Where the system locks no more pages, ordinary memory, which copies reach more slowly.
    """
    size = max(_LEAST_NBYTES, 1 << (nbytes - 1).bit_length())
    idle = _idle_pinned(driver, size)
    try:
        address = idle.pop()
    except IndexError:
        try:
            address = driver.allocate_pinned(size)
        except DeviceError:
            return _aligned(nbytes)
    return np.asarray(_Lent(address, nbytes, idle))


def _aligned(nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    memory = np.empty(nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + nbytes]


class GpuArray:
    """An array in GPU memory, in C order, for programs without CuPy: any library with the CUDA array interface takes it."""

    def __init__(self, memory: Memory, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._memory, self.shape, self.dtype = memory, shape, dtype
        self.nbytes = math.prod(shape) * dtype.itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The array for other libraries."""
        data = (self._memory.address if self.nbytes else 0, False)
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": data,
            "strides": None,
            "stream": None,
        }


def array_over(memory: Memory, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """Return memory as an array of CuPy where that is installed, else as a `GpuArray`."""
    try:
        import cupy
    except ImportError:
        return GpuArray(memory, shape, dtype)
    owned = cupy.cuda.UnownedMemory(memory.address, memory.nbytes, memory)
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(owned, 0))
