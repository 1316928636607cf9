"""A process's GPUs that do not exist, and what tests ask of them."""

import gc
import threading
from collections import Counter
from functools import partial
from typing import Any

import numpy as np

from cuda_double.arrays import Array, Dlpack
from cuda_double.library import Library
from cuda_double.memory import Memory
from cuda_double.streams import Streams
from hpcoll.runtime.gpu import cuda


class _Lock:
    """Held by whoever calls the double; the collector waits, because what it collects may call the double too."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._collects: list[bool] = []

    def __enter__(self) -> None:
        self._lock.acquire()
        self._collects.append(gc.isenabled())
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._collects.pop():
            gc.enable()
        self._lock.release()


class Double:
    """GPUs of a process, made by `install`.

    Attributes:
        library: The C functions.
        races: Pairs of operations, or of the host and an operation, that touch the same bytes in no order.
        calls: How often each function was called.
        failures: What calls failed with, and why; not that the driver was asked about a pointer that it does not know.
        version: Of CUDA, that the driver is for.
        Array: Makes an array: ``double.Array(shape, dtype)``.
    """

    def __init__(self, memory: Memory, ipc: bool, mps: bool) -> None:
        self.memory, self.streams, self.ipc, self.mps = memory, Streams(), ipc, mps
        self.version = 13, 0
        self.lock = _Lock()
        self.calls: Counter[str] = Counter()
        self.failures: list[str] = []
        self.failing: dict[str, tuple[int, int]] = {}
        self.races = self.streams.races
        self.Array = partial(Array, self)
        self._contexts: dict[int, int | None] = {}  # by thread
        self.library: Any = Library(self)
        self._before = list(cuda._library)

    def uninstall(self) -> None:
        """Let the driver be what it was before; whoever still has memory of the double finds zeros there."""
        self.memory.empty()
        cuda._library[:] = self._before
        cuda.driver.cache_clear()

    def current(self) -> int | None:
        """The GPU of this thread's context."""
        return self._contexts.get(threading.get_native_id())

    def make_current(self, ordinal: int | None) -> None:
        """Give this thread a GPU's context, as GPU libraries do, or none."""
        self._contexts[threading.get_native_id()] = ordinal

    def fail(self, name: str, code: int, after: int = 0) -> None:
        """Let one call of a function fail and do nothing, after so many that do not."""
        self.failing[name] = after, code

    def allocate(self, nbytes: int, memory: str = "device", ordinal: int = 0) -> int:
        """Memory of a kind: "device", "managed", "pooled" (as of cudaMallocAsync) or "pinned" (of the host)."""
        with self.lock:
            if memory == "pinned":
                return self.memory.pin(nbytes, ordinal).address
            return self.memory.allocate(
                nbytes, ordinal, managed=memory == "managed", pooled=memory == "pooled"
            ).address

    def release(self, address: int) -> None:
        """Free what `allocate` gave."""
        self("cuMemFreeHost" if self.memory.base(address, 1).pinned else "cuMemFree_v2", address)

    def managed(self, nbytes: int) -> int:
        """Memory that host and GPU both touch."""
        return self.allocate(nbytes, "managed")

    def pooled(self, nbytes: int) -> int:
        """Memory that cannot be exported."""
        return self.allocate(nbytes, "pooled")

    def array(self, address: int, nbytes: int) -> np.ndarray:
        """Bytes as they are now, to read and to write: a view, valid until the memory is freed."""
        with self.lock:
            return self.memory.view(address, nbytes)

    def touch(self, address: int, nbytes: int, writes: bool) -> None:
        """Say that the host reads or writes bytes now: a race if work that it has not waited for touches them."""
        with self.lock:
            self.streams.touch(address, address + nbytes, writes=writes)

    def stream(self, *, blocking: bool = False, ordinal: int = 0) -> int:
        """A caller's stream."""
        return self.streams.create(ordinal, blocking)

    def capture(self, stream: int, capturing: bool = True) -> None:
        """Begin or end capturing a stream; of work that is queued on it meanwhile, a graph takes launches alone."""
        one = self.streams.get(stream, self.current() or 0)
        one.capturing = capturing
        if capturing:
            one.graph.clear()

    def replay(self, stream: int) -> None:
        """Launch the graph that was captured last on a stream, there."""
        with self.lock:
            for launch in self.streams.get(stream, self.current() or 0).graph:
                launch()

    def later(self, stream: int, address: int, values: np.ndarray, ordinal: int = 0) -> None:
        """Queue work of the caller's that stores an array's bytes."""
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8).copy()
        span = address, address + data.size
        with self.lock:
            target = self.streams.get(stream, ordinal)
            self.streams.put(
                target,
                "the caller's work",
                lambda: np.copyto(self.memory.view(address, data.size), data),
                writes=(span,),
            )

    def order(self, first: int, second: int) -> None:
        """Let a stream wait for what another has, as a GPU library's events do."""
        ordinal = self.current() or 0
        with self.lock:
            mark = self.streams.put(self.streams.get(first, ordinal), "an event")
            self.streams.put(self.streams.get(second, ordinal), "a wait", behind=mark)

    def finish(self, stream: int | None = None) -> None:
        """Wait for a stream's work, or for all."""
        with self.lock:
            if stream is None:
                self.streams.finish_all()
            else:
                self.streams.finish(self.streams.get(stream, self.current() or 0).last)

    def pending(self) -> list[str]:
        """Names of the work that is not done."""
        with self.lock:
            return self.streams.pending()

    def dlpack(self, array: Array, *, versioned: bool = False) -> Dlpack:
        """An array that is handed on by DLPack only; ``versioned`` ones are told so to consumers that know version 1."""
        return Dlpack(array, versioned=versioned)

    def __call__(self, name: str, *arguments: Any) -> None:
        """Call a function of the library that must succeed."""
        code = getattr(self.library, name)(*arguments)
        assert code == 0, f"{name}: {code}: {self.failures[-1:]}"


def install(
    ordinal_count: int = 1,
    *,
    gpus: tuple[int, ...] | None = None,
    current: int | None = 0,
    readable: bool = False,
    ipc: bool = True,
    mps: bool = True,
    peer_access: bool = True,
    host_pointers: bool = True,
    memory_nbytes: int = 1 << 30,
) -> Double:
    """Let a double stand for the driver in this process.

    Args:
        ordinal_count: GPUs that this process sees.
        gpus: Which they are, by a number that all processes of the node agree on; default: the first ones.
        current: GPU of the calling thread's context, or None for no context.
        readable: Whether the host may touch GPU memory, as an MPI library that knows CUDA does.
        ipc: Whether memory can be exported and opened.
        mps: Whether processes share a GPU by MPS.
        peer_access: Whether GPUs reach memory of other GPUs.
        host_pointers: Whether GPUs reach registered host memory at the host's addresses.
        memory_nbytes: Of each GPU.
    """
    memory = Memory(gpus or tuple(range(ordinal_count)), memory_nbytes, readable, peer_access, host_pointers)
    double = Double(memory, ipc, mps)
    double.make_current(current)
    cuda.use(double.library)
    return double
