"""Calls to the driver and to what stands for it, objects that export its memory, and calls on mirrors of its arrays."""

import ctypes
from typing import Any

import numpy as np
from cuda_double import Double
from mpi4py import MPI

from hpcoll.comm.gpu.mirror import mirror_of
from hpcoll.runtime.gpu import cuda
from hpcoll.runtime.gpu.arrays import DeviceArray, device_array
from hpcoll.runtime.gpu.cuda import Driver

N = 1000  # bytes or elements


def driver() -> Driver:
    found = cuda.driver()
    assert found is not None
    return found


def recorded(stream: int) -> int:
    event = driver().event()
    driver()("cuEventRecord", event, stream)
    return event


def wait(double: Double, event: int) -> int:
    """Asks until an event has happened; how often it had not."""
    times = 0
    while code := double.library.cuEventQuery(event):
        assert code == cuda.NOT_READY
        times += 1
    return times


def filled(double: Double, value: int, memory: str = "device") -> int:
    address = double.allocate(N, memory)
    double.array(address, N)[:] = value
    return address


def ptx(*entries: str) -> bytes:
    return (
        ".version 8.0\n.target sm_80\n"
        + "\n".join(f".visible .entry {name}()\n{{ ret; }}" for name in entries)
    ).encode()


def queue(double: Double, kernel: str, *values: int | float, text: bytes = b"", block: int = 32) -> int:
    """Queues a kernel on a new stream; the error code."""
    words = [
        ctypes.c_double(value) if isinstance(value, float) else ctypes.c_int64(value) for value in values
    ]
    parameters = (ctypes.c_void_p * len(words))(*(ctypes.addressof(word) for word in words))
    function = driver().function(text or ptx(kernel), kernel)
    grid = (1, 1, 1, block, 1, 1, 0)
    code: int = double.library.cuLaunchKernel(function, *grid, driver().stream(), parameters, None)
    return code


def launch(double: Double, kernel: str, *values: int | float, text: bytes = b"", block: int = 32) -> int:
    """The same, done."""
    code = queue(double, kernel, *values, text=text, block=block)
    double.finish()
    return code


class Cai:
    """Exports any memory through the CUDA array interface only."""

    def __init__(self, pointer: int, shape: tuple[int, ...], typestr: str = "<f4", **changes: Any) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": typestr,
            "data": (pointer, False),
            "version": 3,
        } | changes


def on_gpu(buffer: Any, stream: int | None = None) -> DeviceArray:
    array = device_array(buffer, stream)
    assert array is not None
    return array


OP = MPI.SUM


def mirrored(
    method: str, arguments: tuple[Any, ...], stream: Any, rank: int
) -> tuple[tuple[Any, ...], Any] | None:
    """Arguments with filled mirrors of the GPU arrays of a call, and what brings their results home."""
    mirror = mirror_of(method, arguments, stream, rank)
    if mirror is None:
        return None
    mirror.fetch()
    return mirror.arguments, mirror.store


def both(
    method: str, arguments: tuple[Any, ...], stream: Any = None, rank: int = 0
) -> tuple[tuple[Any, ...], Any]:
    found = mirrored(method, arguments, stream, rank)
    assert found is not None
    return found


def arrays(double: Double) -> tuple[Any, Any]:
    return double.Array(6).fill(np.arange(6)), double.Array(6).fill(-1)


def copies(double: Double) -> int:
    return double.calls["cuMemcpyAsync"]


def address(array: Any) -> int:
    return int(array.ctypes.data)
