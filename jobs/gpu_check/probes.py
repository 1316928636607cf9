"""Probes of the CUDA driver: ``probes.py NAME`` prints its findings, a line of JSON each, as soon as it has them.

symbols     functions that the driver has         handles     two processes and a handle of memory
context     GPUs, their attributes, a context     stale       the same after memory was freed and allocated again
kernel      a kernel from its text, its result    rates       copies between host and GPU and within it
memory      kinds of memory and their export      peer-rates  copies from another process's memory
registered  shared memory that GPUs reach         switches    two processes with small kernels
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t
from functools import partial

import probes_memory
import probes_peers
import probes_speed
from driver import (
    DEVICE_ATTRIBUTES,
    DEVICE_MAP,
    FUNCTIONS,
    PORTABLE,
    THREADS,
    VECTOR_ADD,
    WORD,
    Driver,
    DriverError,
    Gpu,
    attempt,
    say,
)

COUNT = 100_000
Words = ctypes.Array[ctypes.c_uint32]


def timed(call: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def symbols() -> None:
    """Look for the functions of the driver; hpcoll needs most of them."""
    missing = attempt("driver starts", lambda: Driver().missing)
    say("functions that are missing", missing)
    say("functions that were looked for", len(FUNCTIONS))
    sys.exit(1 if missing is None else 0)


def context() -> None:
    """Print GPUs, their attributes, and the time to make a context."""
    driver = Driver()
    attempt("CUDA that the driver serves", lambda: driver.value(c_int, "cuDriverGetVersion"))
    count = attempt("GPUs", lambda: driver.value(c_int, "cuDeviceGetCount"))
    for ordinal in range(count or 0):
        device, text = driver.value(c_int, "cuDeviceGet", ordinal), ctypes.create_string_buffer(256)
        for what, name in (("name", "cuDeviceGetName"), ("bus id", "cuDeviceGetPCIBusId")):
            driver(name, ctypes.addressof(text), len(text), device)
            say(f"{what} of GPU {ordinal}", text.value.decode())
        attempt(
            f"memory of GPU {ordinal}",
            partial(driver.value, c_size_t, "cuDeviceTotalMem_v2", device),
            "bytes",
        )
        for peer in range(count):
            if peer != ordinal:
                reaches = partial(driver.value, c_int, "cuDeviceCanAccessPeer", device, peer)
                attempt(f"GPU {ordinal} reaches {peer}", reaches)
        if ordinal == 0:
            for what, number in DEVICE_ATTRIBUTES.items():
                attempt(what, lambda: driver.value(c_int, "cuDeviceGetAttribute", number, device))  # noqa: B023
    say("context", timed(Gpu) * 1e3, "ms")
    free, total = c_size_t(), c_size_t()
    attempt("memory", lambda: Gpu()("cuMemGetInfo_v2", byref(free), byref(total)))
    say("free memory with a context", free.value, "bytes")


def filled(gpu: Gpu, count: int, first: int, step: int) -> int:
    """Return memory of a GPU with numbers that grow by a step."""
    values, address = (
        (ctypes.c_uint32 * count)(*(first + step * i for i in range(count))),
        gpu.allocate(count * WORD),
    )
    gpu.copy(address, ctypes.addressof(values), count * WORD)
    return address


def words_at(gpu: Gpu, address: int, count: int) -> Words:
    """Return numbers in memory that a GPU reaches."""
    return (ctypes.c_uint32 * count).from_buffer_copy(gpu.bytes_at(address, count * WORD))


def kernel() -> None:
    """Run a kernel whose text the driver compiles, check its result, and time a launch."""
    gpu = Gpu()
    loaded: list[int] = []
    say("module and function", timed(lambda: loaded.append(gpu.kernel(VECTOR_ADD, "vector_add"))) * 1e3, "ms")
    one, other, out = filled(gpu, COUNT, 1, 1), filled(gpu, COUNT, 7, 2), gpu.allocate(COUNT * WORD)
    gpu.launch(loaded[0], -(-COUNT // THREADS), THREADS, out, one, other, COUNT)
    gpu("cuStreamSynchronize", None)
    wrong = sum(found != 8 + 3 * i for i, found in enumerate(words_at(gpu, out, COUNT)))
    say("wrong elements", wrong)

    def once() -> None:
        gpu.launch(loaded[0], 1, THREADS, out, one, other, THREADS)
        gpu("cuStreamSynchronize", None)

    say("launch and wait, best of 50", min(timed(once) for _ in range(50)) * 1e6, "us")
    sys.exit(1 if wrong else 0)


def registered() -> None:
    """Page-lock shared memory of a node, reach it by copies and kernels, and time that."""
    gpu = Gpu()
    add = gpu.kernel(VECTOR_ADD, "vector_add")
    for what, file in (
        ("file in /dev/shm", _shm_file),
        ("file without a name", lambda: os.memfd_create("check")),
        ("no file", lambda: -1),
    ):
        for nbytes in (1 << 16, 1 << 20, 1 << 26):
            if attempt(f"{what}, {nbytes} bytes", lambda: _register(gpu, add, file(), nbytes)) is None:  # noqa: B023
                break


def _shm_file() -> int:
    """Return a file in /dev/shm that is gone when nobody has it open."""
    file, name = tempfile.mkstemp(dir="/dev/shm")
    os.unlink(name)
    return file


def _register(gpu: Gpu, add: int, file: int, nbytes: int) -> dict[str, object]:
    """Map a file, register it, reach it by copies and by a kernel, and undo that."""
    if file >= 0:
        os.ftruncate(file, nbytes)
    memory = mmap.mmap(file, nbytes)
    array = (ctypes.c_uint32 * (nbytes // WORD)).from_buffer(memory)
    address = ctypes.addressof(array)
    ctypes.memset(address, 1, nbytes)
    seconds = timed(lambda: gpu("cuMemHostRegister_v2", address, nbytes, PORTABLE | DEVICE_MAP))
    there = gpu.value(ctypes.c_uint64, "cuMemHostGetDevicePointer_v2", address, 0)
    found: dict[str, object] = {"register us": round(seconds * 1e6), "same address": there == address}
    memory_of_gpu, count = gpu.allocate(nbytes), min(nbytes // WORD, 10_000)
    gpu.copy(memory_of_gpu, address, nbytes)
    found["copied to the GPU"] = gpu.bytes_at(memory_of_gpu, nbytes) == b"\1" * nbytes
    gpu.fill(memory_of_gpu, 2, nbytes)
    gpu.copy(address, memory_of_gpu, nbytes)
    found["copied from the GPU"] = memory[:4096] == b"\2" * 4096
    try:
        gpu.launch(add, -(-count // THREADS), THREADS, there, there, memory_of_gpu, count)
        gpu("cuStreamSynchronize", None)
        found["a kernel reads and writes it"] = list(array[:count]) == [0x04040404] * count
    except DriverError as error:
        found["a kernel reads and writes it"] = str(error)
    found["unregister us"] = round(timed(lambda: gpu("cuMemHostUnregister", address)) * 1e6)
    gpu("cuMemFree_v2", memory_of_gpu)
    if file >= 0:
        os.close(file)
    return found


def opener() -> None:
    """Be the other process of `probes_peers.Opener`: do the orders on the input, a line each."""
    gpu = Gpu()
    known: dict[str, Callable[..., object]] = {
        "start": lambda: None,
        "open": lambda handle: gpu.open(bytes.fromhex(handle)),
        "close": lambda at: gpu("cuIpcCloseMemHandle", at),
        "read": lambda at, nbytes=4: gpu.bytes_at(at, nbytes).hex(),
        "fill": lambda at, byte, nbytes: gpu.fill(at, byte, nbytes),
        **probes_speed.orders(gpu),
    }
    for line in sys.stdin:
        order, *arguments = json.loads(line)
        try:
            answer = known[order](*arguments)
            answer = "ok" if answer is None else answer
        except Exception as error:  # whatever it is, the one who asked reports it
            answer = str(error) if isinstance(error, DriverError) else f"{type(error).__name__}: {error}"
        print(json.dumps(answer), flush=True)


def main(name: str) -> None:
    """Run a probe."""
    known = {
        "symbols": symbols,
        "context": context,
        "kernel": kernel,
        "registered": registered,
        "memory": probes_memory.memory,
        "handles": probes_peers.handles,
        "stale": probes_peers.stale,
        "opener": opener,
        "rates": probes_speed.rates,
        "peer-rates": probes_speed.peer_rates,
        "switches": probes_speed.switches,
    }
    known[name]()


if __name__ == "__main__":
    main(sys.argv[1])
