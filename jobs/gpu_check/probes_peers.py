"""Probes of two processes and one GPU: a handle of memory opened the first time, again, and after the memory was freed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from driver import Gpu, attempt, say

_NBYTES = 4 << 20
_SMALL = 1000
_OFFSET = 512


class Opener:
    """Another process that opens handles; it answers each order with the result."""

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).with_name("probes.py")), "opener"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ask("start")

    def ask(self, order: str, *arguments: object) -> Any:
        """Give an order, wait, and return its answer: a value, or the text of an error."""
        self.tell(order, *arguments)
        return self.answer()

    def tell(self, order: str, *arguments: object) -> None:
        """Give an order."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps([order, *arguments]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Wait for the answer to an order, and return it."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise OSError(f"the other process ended with status {self._process.wait()}")
        return json.loads(line)

    def end(self) -> None:
        """End the other process."""
        assert self._process.stdin
        self._process.stdin.close()
        say("the other process ended with", self._process.wait())


def shown(found: object) -> str:
    """Return an address in hexadecimal, anything else as it is."""
    return hex(found) if isinstance(found, int) else str(found)


def handles() -> None:
    """Open an allocation once, twice, at an offset; two that share a page; a process's own."""
    gpu, other = Gpu(), Opener()
    one = gpu.allocate(_NBYTES)
    gpu.fill(one, 0x11, _NBYTES)
    handle = attempt("export", lambda: gpu.export(one).hex())
    if handle is None:
        return
    say("exported twice, the same handle", gpu.export(one).hex() == handle)
    first = other.ask("open", handle)
    say("opened", shown(first))
    if not isinstance(first, int):
        other.end()
        return
    say("read (11)", other.ask("read", first))
    opened_again(other, handle, first)
    say("filled by the other process", other.ask("fill", first, 0x22, _NBYTES))
    say("read here (22)", gpu.bytes_at(one, 4).hex())
    inside = attempt("export at an offset", lambda: gpu.export(one + _OFFSET).hex())
    say("closed", other.ask("close", first))
    if inside:
        at = other.ask("open", inside)
        say(
            "the handle at an offset: opened, distance to the first address",
            at - first if isinstance(at, int) else at,
        )
        if isinstance(at, int):
            other.ask("close", at)
    again = other.ask("open", handle)
    say("opened after closing", shown(again))
    say("closed", other.ask("close", again))
    attempt("opened by its own process (201)", lambda: gpu.open(bytes.fromhex(handle)))
    small(gpu, other)
    other.end()


def opened_again(other: Opener, handle: str, first: int) -> None:
    """Open a handle that is open once more."""
    again = other.ask("open", handle)
    say("opened again (208: already mapped)", shown(again))
    if isinstance(again, int):
        say("opened again, the same address", again == first)
        say("the second one closed", other.ask("close", again))
        say("read through the first one (11)", other.ask("read", first))


def small(gpu: Gpu, other: Opener) -> None:
    """Open two small allocations, which may lie in one block of the driver's."""
    one, next_one = gpu.allocate(_SMALL), gpu.allocate(_SMALL)
    say("small: distance", next_one - one, "bytes")
    gpu.fill(one, 0x33, _SMALL)
    gpu.fill(next_one, 0x44, _SMALL)
    found = [other.ask("open", gpu.export(address).hex()) for address in (one, next_one)]
    say("small: both opened", [shown(address) for address in found])
    say(
        "small: read (33, 44)",
        [other.ask("read", address) if isinstance(address, int) else address for address in found],
    )


def stale() -> None:
    """Open a handle whose memory was freed, and memory that is allocated again at the same address."""
    gpu, other = Gpu(), Opener()
    one = gpu.allocate(_NBYTES)
    gpu.fill(one, 0x55, _NBYTES)
    handle = attempt("export", lambda: gpu.export(one).hex())
    if handle is None:
        return
    old = other.ask("open", handle)
    say("opened, read (55)", [shown(old), other.ask("read", old)])
    attempt("freed while the other process has it open", lambda: gpu("cuMemFree_v2", one))
    new = gpu.allocate(_NBYTES)
    say("allocated again, the same address", new == one)
    gpu.fill(new, 0x66, _NBYTES)
    fresh = gpu.export(new).hex()
    say("the new handle equals the old one", fresh == handle)
    second = other.ask("open", fresh)
    say("the new one opened while the old one is open (208)", shown(second))
    if isinstance(second, int):
        say("read through the new one (66)", other.ask("read", second))
        other.ask("close", second)
    say("read through the old one (55 or an error)", other.ask("read", old))
    say("the old one closed", other.ask("close", old))
    late = other.ask("open", handle)
    say("the old handle opened after closing", shown(late))
    if isinstance(late, int):
        say("read through it", other.ask("read", late))
        other.ask("close", late)
    second = other.ask("open", fresh)
    say(
        "the new one opened then, read (66)",
        [shown(second), other.ask("read", second) if isinstance(second, int) else ""],
    )
    other.end()
