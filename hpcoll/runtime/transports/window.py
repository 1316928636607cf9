"""Memory without a name that processes of one node map, and what stands for it in messages and in compiled code.

A file in /dev/shm that never had a name is gone when the last process that maps it is, however that process ends. Only its mapping is
kept, no descriptor. A mapping lives as long as anybody in this process holds it; at the interpreter's end it stays, because what
runs last may still read it.

A window has a **number**, by which all processes that map it call it in `BASES`. Numbers are the process's, whatever communicators it
is in, so that whoever maps a window understands every message that names it.
"""

import ctypes
import mmap
import os
import weakref

import numpy as np

from hpcoll.runtime.program.opcodes import CACHE_LINE_NBYTES, aligned

PAGE = mmap.PAGESIZE
MAX_WINDOWS = 4096
BASES = np.zeros(MAX_WINDOWS, np.int64)  # where this process has mapped each window, by number

_STEP_NBYTES = 2 << 20  # of memory asked for at once: a signal makes the system start anew, but only with the step
_SKEW_NBYTES = 4096  # addresses that agree in this many bytes hinder each other in the first cache

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_ssize_t
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = _libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

# Plain dictionaries, because what ends a mapping may run in the middle of anything.
_mapped: dict[int, int] = {}  # address -> bytes
_held: dict[int, int] = {}  # number -> id of its holder


def whole_pages(nbytes: int) -> int:
    """The next multiple of a page."""
    return aligned(nbytes, PAGE)


def mapped_nbytes() -> int:
    """Shared memory that this process maps, of all communicators."""
    return sum(_mapped.copy().values())


def reserve(file: int, first: int, nbytes: int) -> None:
    """Give bytes of a file memory now, near the core that runs this, so that no access fails later.

    Raises:
        OSError: there is none.
    """
    for at in range(first, first + nbytes, _STEP_NBYTES):
        os.posix_fallocate(file, at, min(_STEP_NBYTES, first + nbytes - at))


class Mapping:
    """A file's memory in this process.

    Attributes:
        address, nbytes: Where it is.
    Raises:
        OSError: the system has no room for it.
    """

    def __init__(self, file: int, nbytes: int, *, writable: bool = True) -> None:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self.nbytes = nbytes
        self.address: int = _libc.mmap(None, nbytes, protection, mmap.MAP_SHARED, file, 0)
        if self.address == -1:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        _libc.madvise(self.address, nbytes, mmap.MADV_HUGEPAGE)  # where the system gives shared memory such pages at all
        _mapped[self.address] = nbytes
        weakref.finalize(self, _unmap, self.address, nbytes).atexit = False

    def array(self, offset: int, nbytes: int) -> np.ndarray:
        """Bytes of it, as an array that keeps it."""
        return np.asarray(_Bytes(self, self.address + offset, nbytes))

    def freeze(self) -> None:
        """Let this process write to it no more: who tries is killed."""
        _libc.mprotect(self.address, self.nbytes, mmap.PROT_READ)


def _unmap(address: int, nbytes: int) -> None:
    del _mapped[address]  # before another thread is given the same address
    _libc.munmap(address, nbytes)


class _Bytes:
    """What an array over memory that NumPy does not own holds on to."""

    def __init__(self, owner: object, address: int, nbytes: int) -> None:
        self.owner = owner
        self.__array_interface__ = {"version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (address, False)}


class Number:
    """A window's number, in use for as long as anybody holds the object.

    Attributes:
        value: The lowest from ``first`` on that was free in this process; `MAX_WINDOWS` where there was none.
    """

    def __init__(self, first: int) -> None:
        self.value = MAX_WINDOWS
        for value in range(first, MAX_WINDOWS):
            if value not in _held and _held.setdefault(value, id(self)) == id(self):  # another thread may be faster
                self.value = value
                weakref.finalize(self, _held.pop, value).atexit = False
                return


class Window:
    """Memory that ranks of a node map for writing: a common head, then one part for each of them.

    Attributes:
        number: By which they call it.
        address, nbytes: Where this process has mapped it, and how much that is in all.
        head_nbytes, part_nbytes: Sizes, whole pages.
    """

    def __init__(self, number: Number, mapping: Mapping, head_nbytes: int, part_nbytes: int) -> None:
        self.number, self._number = number.value, number
        self.mapping, self.address, self.nbytes = mapping, mapping.address, mapping.nbytes
        self.head_nbytes, self.part_nbytes = head_nbytes, part_nbytes
        BASES[self.number] = mapping.address

    def part(self, local_rank: int) -> int:
        """Offset of a rank's part."""
        return self.head_nbytes + local_rank * self.part_nbytes


class Symmetric:
    """A window in which each process has one array; it is needed until all of them are gone.

    A process whose array is gone gives the memory back at once, says so in the head, and keeps the window: others may still
    name it in their messages.

    Args:
        window: Its head has a word for each of ``len(pids)`` processes, its parts room for `room`.
        pids: Processes that map it.
        local_rank: Of this one.
        nbytes: Of its array.
    Attributes:
        offset: Of this rank's array: it starts a cache line, in another place of the page than those of other ranks and windows.
    """

    def __init__(self, window: Window, pids: frozenset[int], local_rank: int, nbytes: int) -> None:
        self.window, self.pids, self.nbytes = window, pids, nbytes
        self._part, self._local_rank = window.part(local_rank), local_rank
        self.offset = self._part + (7 * local_rank + 27 * window.number) * CACHE_LINE_NBYTES % _SKEW_NBYTES
        self._gone = window.mapping.array(0, 8 * len(pids)).view(np.int64)  # one writer each
        self._left = False

    @staticmethod
    def room(nbytes: int) -> int:
        """Bytes that a part needs for an array."""
        return nbytes + _SKEW_NBYTES

    def array(self) -> np.ndarray:
        """This rank's array, as bytes, to be asked for once; it is gone with the last of its views."""
        memory = _Bytes(self, self.window.address + self.offset, self.nbytes)
        weakref.finalize(memory, self._leave, os.getpid()).atexit = False
        return np.asarray(memory)

    def _leave(self, pid: int) -> None:
        if os.getpid() == pid:  # a fork has the array too, but it is its parent's
            _libc.madvise(self.window.address + self._part, self.window.part_nbytes, mmap.MADV_REMOVE)
            self._gone[self._local_rank] = 1
            self._left = True

    def unused(self) -> bool:
        """Whether the arrays of all processes are gone."""
        return self._left and bool(self._gone.all())


class Ranges:
    """Addresses of memory that all ranks of a node map, as compiled code reads them.

    A thread may be reading while another changes them, and find a row's start as it was and its end as it is. So a row that was used
    is given only to memory that starts no higher than what it was for: nothing else lies between the old start and the new end.

    Attributes:
        table: int64 ``(MAX_WINDOWS, 3)``: first address, last + 1 or 0 when the row is free, number and offset of the first.
        nrows: int64 ``(1,)``: rows that may be in use.
    """

    def __init__(self) -> None:
        self.table, self.nrows = np.zeros((MAX_WINDOWS, 3), np.int64), np.zeros(1, np.int64)
        self._touched = 0  # rows that were ever used
        self._rows: dict[int, int] = {}  # by number

    def add(self, number: int, first: int, end: int, where: int) -> None:
        """Let memory be read in place; with very many changes there may be no row for it, and it is not."""
        starts, ends, _ = self.table[: self._touched].T
        fit = np.flatnonzero((ends == 0) & (starts >= first))
        row = int(fit[starts[fit].argmin()]) if fit.size else self._touched
        if row == MAX_WINDOWS:
            return
        self._touched = max(self._touched, row + 1)
        self._rows[number] = row
        self.table[row, 2] = where
        self.table[row, 0] = first
        self.table[row, 1] = end
        self._count()

    def remove(self, number: int) -> None:
        """Let it be read in place no more."""
        row = self._rows.pop(number, None)
        if row is not None:
            self.table[row, 1] = 0
            self._count()

    def _count(self) -> None:
        self.nrows[0] = max(self._rows.values(), default=-1) + 1
