"""Cross memory attach: processes of a node that read each other's memory, with Linux's ``process_vm_readv``.

Where they can, the receiver of a message copies it from where it lies. That is one copy instead of two, but the kernel makes it, page by
page; it pays where cores share no cache. `hpcoll.runtime.engine.compiled.local_ops` is the compiled side.
"""

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hpcoll.analysis.cost import NEVER
from hpcoll.base.text import format_nbytes

STAGED, CMA = COPIES = ("staged", "cma")
LEAST_NBYTES = (
    4096  # shorter messages are staged always: a call of the system costs more than copying them twice
)
SLOW_NBYTES = 64 << 10  # from here on it pays where writes to shared memory are slow
MOST_RANKS = 256  # of a node: with more, the pieces of a reduction were too short

_PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
_SET_PTRACER, _ANY = 0x59616D61, -1  # for prctl: any process of this user may read this one's memory

_libc = ctypes.CDLL(None, use_errno=True)


class ProbeWord(NamedTuple):
    """A word in a process's memory that others try to read."""

    pid: int
    address: int
    value: int


class OwnMemory(NamedTuple):
    """The messages that ranks of a node read in their sender's own memory."""

    pids: np.ndarray  # int64, process of each local rank
    usually: int  # bytes of a message from which on they do
    slow: int  # the same while a core's writes to shared memory are slow

    def __str__(self) -> str:
        if self.usually < NEVER:
            return f"read where they lie from {format_nbytes(self.usually)} on"
        return (
            "staged"
            if self.slow == NEVER
            else f"staged; from {format_nbytes(self.slow)} on read where they lie if that is faster"
        )


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def ptrace_scope() -> str:
    """Return Yama's limit on reading a process's memory: ``"0"`` all of one user may, ``"1"`` whom it allows; empty: no Yama."""
    try:
        return _PTRACE_SCOPE.read_text().strip()
    except OSError:
        return ""


@cache
def _word(pid: int) -> ProbeWord:
    kept = np.frombuffer(os.urandom(8), np.int64).copy()
    _kept.append(kept)
    if ptrace_scope() == "1":
        _libc.prctl(
            ctypes.c_int(_SET_PTRACER),
            ctypes.c_ulong(_ANY % 2**64),
            ctypes.c_ulong(0),
            ctypes.c_ulong(0),
            ctypes.c_ulong(0),
        )
    return ProbeWord(pid, kept.ctypes.data, int(kept[0]))


_kept: list[np.ndarray] = []


def word() -> ProbeWord:
    """Return this process's word; from now on others of its user may read its memory where Yama asks for leave."""
    return _word(os.getpid())


def refusal(theirs: ProbeWord) -> str:
    """Return why this process cannot read another one's memory; the empty string when it can."""
    seen = np.zeros(1, np.int64)
    here, there = _Vector(seen.ctypes.data, seen.nbytes), _Vector(theirs.address, seen.nbytes)
    try:
        read = _libc.process_vm_readv
    except AttributeError:
        return "the system has no process_vm_readv"
    arguments = (
        ctypes.byref(here),
        ctypes.c_ulong(1),
        ctypes.byref(there),
        ctypes.c_ulong(1),
        ctypes.c_ulong(0),
    )
    read.restype = ctypes.c_ssize_t
    if read(ctypes.c_int(theirs.pid), *arguments) != seen.nbytes:
        return f"process_vm_readv: {os.strerror(ctypes.get_errno())}"
    return (
        ""
        if seen[0] == theirs.value
        else f"process {theirs.pid} is another one here: the ranks are in containers of their own"
    )


def own_memory(words: Sequence[ProbeWord], copy: str | None, measured: int | None) -> OwnMemory:
    """Return which messages local ranks with these words read in each other's memory: by `CMA` all long ones, else where it pays.

    ``measured``: bytes from which on it was found to pay, `NEVER` where it did not; None: it was not measured.
    """
    pids = np.array([mine.pid for mine in words], np.int64)
    if copy != CMA and measured is None:
        return OwnMemory(pids, NEVER, SLOW_NBYTES)
    usually = LEAST_NBYTES if copy == CMA else max(measured or 0, LEAST_NBYTES)
    return OwnMemory(pids, usually, usually)
