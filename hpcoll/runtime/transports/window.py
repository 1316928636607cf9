"""Windows, memory without a name that processes of one node map, and symmetric memory, which has an array for each of them.

One process opens a file in /dev/shm that never has a name, or of memory alone where the file system makes none (gVisor); the others open
it through its descriptor. It is gone with the last process that maps it, however that ends. Only its mapping is kept, no descriptor. A
mapping lives as long as an object holds it; at the interpreter's end it stays, because the last code may still read it.

All processes that map a window call it by one **number**, in `BASES`. Numbers are the process's, whatever communicators it is in, so that
a process that maps a window understands every message that names it.

Symmetric memory, which other ranks read in place, is kept until the arrays of all processes are gone; `sweep` looks for that. A reader must
have mapped it: so the `AddressRanges` of a communicator's local ranks list the memory that was made on it, or on another that has them all.
"""

import contextlib
import ctypes
import errno
import mmap
import os
import threading
import weakref
from collections.abc import Iterator
from functools import cache

import numpy as np

from hpcoll.base.files import memory_file
from hpcoll.runtime.program.fields import MADV_POPULATE_WRITE, OFFSET_BITS
from hpcoll.runtime.program.opcodes import CACHE_LINE_NBYTES, aligned

FOLDER = "/dev/shm"
# what a file system says that makes no such files
_NONE_NAMELESS = (
    errno.EOPNOTSUPP,
    errno.EISDIR,
    errno.EINVAL,
    errno.ENOSYS,
)
PAGE = mmap.PAGESIZE
MAX_WINDOWS = 4096
BASES = np.zeros(MAX_WINDOWS, np.int64)  # where this process has mapped each window, by number
BASES_AT = BASES.ctypes.data

# of memory asked for at once: a signal makes the system start anew, but only with the step
_STEP_NBYTES = 2 << 20

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_ssize_t
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = _libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

_SKEW_NBYTES = 4096  # addresses that agree in this many bytes hinder each other in the first cache

_lock = threading.RLock()  # for what the communicators of a process share; never held while messages travel
_live: list["Symmetric"] = []  # that any process still has an array in, as far as this one has looked
_tables: "weakref.WeakSet[AddressRanges]" = weakref.WeakSet()

# Plain dictionaries, because what ends a mapping may run in the middle of anything.
_mapped: dict[int, int] = {}  # address -> bytes
_held: dict[int, int] = {}  # number -> id of its holder


def new_file(folder: str = FOLDER) -> tuple[int, bool]:
    """Return the descriptor of a new file without a name, and whether it is of memory alone; an OSError names the folder."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600), False
    except OSError as error:
        if error.errno not in _NONE_NAMELESS:
            raise OSError(f"{folder}: {error.strerror}") from None
    return memory_file("hpcoll"), True


def file_identity(file: int | str) -> tuple[int, int]:
    """Return the two numbers that tell a file from all others."""
    if file == -1:
        return -1, -1
    status = os.stat(file)
    return status.st_dev, status.st_ino % 2**63


def open_theirs(path: str, theirs: tuple[int, int]) -> int:
    """Open a file of another process; refuse another file, which the path may name in another namespace."""
    if file_identity(path) != theirs:
        raise OSError(f"{path} is another file here: the ranks are in containers of their own")
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


@contextlib.contextmanager
def noted() -> Iterator[list[str]]:
    """Catch what the operating system refuses, as text."""
    notes: list[str] = []
    try:
        yield notes
    except (OSError, OverflowError) as error:
        notes.append(str(error))


def whole_pages(nbytes: int) -> int:
    """Return the next multiple of a page."""
    return aligned(nbytes, PAGE)


def mapped_nbytes() -> int:
    """Return the bytes of shared memory that this process maps, of all communicators."""
    return sum(_mapped.copy().values())


def reserve(file: int, first: int, nbytes: int) -> None:
    """Give bytes of a file memory now, near the core that runs this, so that no access fails later; OSError where there is none."""
    for at in range(first, first + nbytes, _STEP_NBYTES):
        os.posix_fallocate(file, at, min(_STEP_NBYTES, first + nbytes - at))


@cache
def populates() -> bool:
    """Say whether the system gives mapped memory pages when asked, or says that it has none (Linux 5.14)."""
    with mmap.mmap(-1, PAGE) as page:
        return (
            _libc.madvise(ctypes.addressof(ctypes.c_char.from_buffer(page)), PAGE, MADV_POPULATE_WRITE) == 0
        )


class Mapping:
    """A file's memory in this process; OSError where the system has no room for it."""

    def __init__(self, file: int, nbytes: int, *, writable: bool = True) -> None:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self.nbytes = nbytes
        self.address: int = _libc.mmap(None, nbytes, protection, mmap.MAP_SHARED, file, 0)
        if self.address == -1:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        # where the system gives shared memory such pages at all
        _libc.madvise(self.address, nbytes, mmap.MADV_HUGEPAGE)
        _mapped[self.address] = nbytes
        weakref.finalize(self, _unmap, self.address, nbytes).atexit = False

    def array(self, offset: int, nbytes: int) -> np.ndarray:
        """Return bytes of it, as an array that keeps it."""
        return np.asarray(Bytes(self, self.address + offset, nbytes))

    def give_back(self, offset: int, nbytes: int) -> None:
        """Give the memory of whole pages back to the system, for all processes; they read zeros there."""
        _libc.madvise(self.address + offset, nbytes, mmap.MADV_REMOVE)

    def freeze(self) -> None:
        """Let this process write to it no more: an attempt ends the process."""
        _libc.mprotect(self.address, self.nbytes, mmap.PROT_READ)


def _unmap(address: int, nbytes: int) -> None:
    del _mapped[address]  # before another thread is given the same address
    _libc.munmap(address, nbytes)


class Bytes:
    """An array's base over memory that NumPy does not own; it keeps the owner."""

    def __init__(self, owner: object, address: int, nbytes: int) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
        }


class WindowNumber:
    """A window's number, the lowest from ``first`` on that was free in this process, or `MAX_WINDOWS`; in use while the object lives."""

    def __init__(self, first: int) -> None:
        self.value = MAX_WINDOWS
        for value in range(first, MAX_WINDOWS):
            # another thread may be faster
            if value not in _held and _held.setdefault(value, id(self)) == id(self):
                self.value = value
                weakref.finalize(self, _held.pop, value).atexit = False
                return


class Window:
    """Memory that ranks of a node map for writing: a common head, then one part for each of them, all of whole pages."""

    def __init__(self, number: WindowNumber, mapping: Mapping, head_nbytes: int, part_nbytes: int) -> None:
        self.number, self._number = number.value, number
        self.mapping, self.address, self.nbytes = mapping, mapping.address, mapping.nbytes
        self.head_nbytes, self.part_nbytes = head_nbytes, part_nbytes
        BASES[self.number] = mapping.address

    def part(self, local_rank: int) -> int:
        """Return the offset of a rank's part."""
        return self.head_nbytes + local_rank * self.part_nbytes


class Symmetric:
    """A window in which each process has one array; it is needed until all of them are gone.

    A process whose array is gone gives the memory back at once, says so in the head, and keeps the window: others may still name it in
    their messages. An array starts a cache line, in another place of the page than those of other ranks and windows.
    The window's head has a word for each of ``len(pids)`` processes, its parts have room for `room`.
    """

    def __init__(self, window: Window, pids: frozenset[int], local_rank: int, nbytes: int) -> None:
        self.window, self.pids, self.nbytes = window, pids, nbytes
        self._part, self._local_rank = window.part(local_rank), local_rank
        self.offset = self._part + (7 * local_rank + 27 * window.number) * CACHE_LINE_NBYTES % _SKEW_NBYTES
        self._gone = window.mapping.array(0, 8 * len(pids)).view(np.int64)  # one writer each
        self._left = False

    @staticmethod
    def room(nbytes: int) -> int:
        """Return the bytes that a part needs for an array."""
        return nbytes + _SKEW_NBYTES

    def array(self) -> np.ndarray:
        """Return this rank's array, as bytes, once; it is gone with the last of its views."""
        memory = Bytes(self, self.window.address + self.offset, self.nbytes)
        weakref.finalize(memory, self._leave, os.getpid()).atexit = False
        return np.asarray(memory)

    def _leave(self, pid: int) -> None:
        if os.getpid() == pid:  # a fork has the array too, but it is its parent's
            self.window.mapping.give_back(self._part, self.window.part_nbytes)
            self._gone[self._local_rank] = 1
            self._left = True

    def unused(self) -> bool:
        """Say whether the arrays of all processes are gone."""
        return self._left and bool(self._gone.all())


class AddressRanges:
    """The addresses of symmetric memory that a set of processes map, for compiled code.

    A thread may read a row while another changes it, and find its old start with its new end. So a row that was used is given only to
    memory that starts no higher than the one before: nothing else lies between the old start and the new end.
    """

    def __init__(self, pids: frozenset[int] = frozenset()) -> None:
        self._pids = pids
        # Rows: first address, last + 1 or 0 when the row is free, number and offset of the first; and how many rows may be in use.
        self.table, self.nrows = np.zeros((MAX_WINDOWS, 3), np.int64), np.zeros(1, np.int64)
        self.addresses = self.nrows.ctypes.data, self.table.ctypes.data
        self._touched = 0  # rows that were ever used
        self._rows: dict[int, int] = {}  # by number
        with _lock:
            _tables.add(self)
            for array in _live:
                self._list(array)

    def _list(self, array: Symmetric) -> None:
        if self._pids and self._pids <= array.pids:
            first = array.window.address + array.offset
            self.add(
                array.window.number,
                first,
                first + array.nbytes,
                (array.window.number << OFFSET_BITS) + array.offset,
            )

    def add(self, number: int, first: int, end: int, where: int) -> None:
        """Let memory be read in place; after very many changes there may be no row for it, and it is not."""
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
        """Let memory be read in place no more."""
        row = self._rows.pop(number, None)
        if row is not None:
            self.table[row, 1] = 0
            self._count()

    def _count(self) -> None:
        self.nrows[0] = max(self._rows.values(), default=-1) + 1


def symmetric_array(window: Window, pids: frozenset[int], local_rank: int, nbytes: int) -> np.ndarray:
    """Return this process's array in a symmetric window, zeros, which is listed in the tables; arguments as `Symmetric`."""
    one = Symmetric(window, pids, local_rank, nbytes)
    with _lock:
        _live.append(one)
        for table in list(_tables):
            table._list(one)
    return one.array()


def sweep() -> None:
    """Let go of symmetric memory whose arrays are gone in all processes."""
    with _lock:
        for array in [array for array in _live if array.unused()]:
            for table in list(_tables):
                table.remove(array.window.number)
            _live.remove(array)
