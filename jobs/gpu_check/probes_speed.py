"""Probes of speed: copies of several sizes between host, GPU and another process's memory, and two processes that share a GPU."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from driver import DEVICE_MAP, PORTABLE, THREADS, VECTOR_ADD, WORD, DriverError, Gpu, attempt, say
from probes_peers import Opener

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_TRIES, _LEAST_S, _MAX_COPIES = 3, 2e-3, 200
_TURNS = 200  # of two processes


def sizes() -> list[int]:
    """Return the bytes of copies, from the variable COPY_SIZES."""
    words = os.environ.get("COPY_SIZES", "64K 1M 64M").split()
    return [int(word.rstrip("KMG")) * _UNITS.get(word[-1], 1) for word in words]


def rate(gpu: Gpu, target: int, source: int, nbytes: int) -> float:
    """Return GB/s (1e9) of copies that follow each other, the best of a few tries."""

    def seconds(copies: int) -> float:
        start = time.perf_counter()
        for _ in range(copies):
            gpu("cuMemcpyAsync", target, source, nbytes, None)
        gpu("cuStreamSynchronize", None)
        return time.perf_counter() - start

    copies = max(1, min(_MAX_COPIES, int(_LEAST_S / max(seconds(1), 1e-6))))
    return copies * nbytes / min(seconds(copies) for _ in range(_TRIES)) / 1e9


def latency(gpu: Gpu, target: int, source: int) -> float:
    """Return the microseconds of one copy of 4 bytes and waiting for it."""
    found = []
    for _ in range(50):
        start = time.perf_counter()
        gpu.copy(target, source, WORD)
        found.append(time.perf_counter() - start)
    return median(found) * 1e6


def rates() -> None:
    """Measure copies within the GPU, and between it and pinned, registered, managed and ordinary host memory."""
    gpu, most = Gpu(), max(sizes())
    one, other = gpu.allocate(most), gpu.allocate(most)
    ordinary, shared = mmap.mmap(-1, most), mmap.mmap(-1, most)
    places = {"pinned": gpu.pinned(most), "ordinary": ctypes.addressof(ctypes.c_ubyte.from_buffer(ordinary))}
    registered = ctypes.addressof(ctypes.c_ubyte.from_buffer(shared))
    for address in (*places.values(), registered):
        ctypes.memset(address, 1, most)
    if (
        attempt(
            "register: error code",
            lambda: gpu.code("cuMemHostRegister_v2", registered, most, PORTABLE | DEVICE_MAP),
        )
        == 0
    ):
        places["registered"] = registered
    for nbytes in sizes():
        say(f"within the GPU, {nbytes} bytes", rate(gpu, other, one, nbytes), "GB/s")
        for name, address in places.items():
            attempt(f"{name} to the GPU, {nbytes} bytes", lambda: rate(gpu, one, address, nbytes), "GB/s")  # noqa: B023
            attempt(f"the GPU to {name}, {nbytes} bytes", lambda: rate(gpu, address, one, nbytes), "GB/s")  # noqa: B023
    for name, address in places.items():
        say(f"4 bytes, {name} to the GPU", latency(gpu, one, address), "us")
        say(f"4 bytes, the GPU to {name}", latency(gpu, address, one), "us")
    say("4 bytes, within the GPU", latency(gpu, other, one), "us")


def orders(gpu: Gpu) -> dict[str, Callable[..., Any]]:
    """Return functions of the other process by the order for each."""
    held: list[int] = []

    def own(nbytes: int) -> int:
        held.append(gpu.allocate(nbytes))
        return held[-1]

    def turn() -> None:
        small_kernel(gpu, held)()

    def busy(seconds: float) -> float:
        return us_per_kernel(gpu, held, seconds)

    return {
        "own": own,
        "rate": lambda target, source, nbytes: rate(gpu, target, source, nbytes),
        "turn": turn,
        "busy": busy,
        "nothing": lambda: None,
    }


def peer_rates() -> None:
    """Measure copies between this process's memory and the other one's, which does them."""
    gpu, other, most = Gpu(), Opener(), max(sizes())
    mine = gpu.allocate(most)
    gpu.fill(mine, 1, most)
    handle = attempt("export", lambda: gpu.export(mine).hex())
    if handle is None:
        return
    start = time.perf_counter()
    there = other.ask("open", handle)
    say("opening", (time.perf_counter() - start) * 1e6, "us")
    if not isinstance(there, int):
        say("opened", there)
        return
    own = other.ask("own", most)
    for nbytes in sizes():
        say(f"out of another process's memory, {nbytes} bytes", other.ask("rate", own, there, nbytes), "GB/s")
        say(f"into another process's memory, {nbytes} bytes", other.ask("rate", there, own, nbytes), "GB/s")
    say("closed", other.ask("close", there))
    other.end()


def small_kernel(gpu: Gpu, held: list[int]) -> Callable[[], None]:
    """Return a call that runs a small kernel and waits for it; made once, of one block's memory."""
    if len(held) < 2:
        held[:] = [gpu.kernel(VECTOR_ADD, "vector_add"), gpu.allocate(THREADS * WORD)]
        gpu.fill(held[1], 0, THREADS * WORD)
    add, address = held[:2]

    def once() -> None:
        gpu.launch(add, 1, THREADS, address, address, address, THREADS)
        gpu("cuStreamSynchronize", None)

    return once


def us_per_kernel(gpu: Gpu, held: list[int], seconds: float) -> float:
    """Return the microseconds per kernel while kernels follow each other."""
    once, count, start = small_kernel(gpu, held), 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        once()
        count += 1
    return (time.perf_counter() - start) / count * 1e6


def switches() -> None:
    """Measure small kernels of one process, of two in turn, and of two at once."""
    gpu, other = Gpu(), Opener()
    held: list[int] = []
    once = small_kernel(gpu, held)
    once()
    other.ask("turn")
    say("a kernel alone", us_per_kernel(gpu, held, 0.3), "us")
    say("a kernel alone, in the other process", other.ask("busy", 0.3), "us")

    def per_turn(order: str, mine: Callable[[], None]) -> float:
        start = time.perf_counter()
        for _ in range(_TURNS):
            mine()
            other.ask(order)
        return (time.perf_counter() - start) / _TURNS * 1e6

    try:
        pipe, both = per_turn("nothing", lambda: None), per_turn("turn", once)
        say("a message and its answer", pipe, "us")
        say("a kernel here, then one in the other process", both, "us")
        say("the same, less the message", both - pipe, "us")
        other.tell("busy", 0.5)
        say("a kernel while the other process runs its own", us_per_kernel(gpu, held, 0.5), "us")
        say("the same, in the other process", other.answer(), "us")
    except DriverError as error:
        say("two processes", str(error))
    other.end()
