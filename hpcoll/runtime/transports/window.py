"""Windows: memory without a name that processes of one node map, by numbers that stand for it in messages and in compiled code.

One process opens a file in /dev/shm that never has a name, or of memory alone where the file system makes none (gVisor); the others open
it through its descriptor. It is gone with the last process that maps it, however that ends. Only its mapping is kept, no descriptor. A
mapping lives as long as an object holds it; at the interpreter's end it stays, because the last code may still read it.

All processes that map a window call it by one **number**, in `BASES`. Numbers are the process's, whatever communicators it is in, so that
a process that maps a window understands every message that names it.
"""

import contextlib
import ctypes
import errno
import mmap
import os
import weakref
from collections.abc import Iterator
from functools import cache

import numpy as np

from hpcoll.base.files import memory_file
from hpcoll.runtime.program.fields import MADV_POPULATE_WRITE
from hpcoll.runtime.program.opcodes import aligned

FOLDER = "/dev/shm"
_NONE_NAMELESS = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS)  # what a file system says that makes no such files
PAGE = mmap.PAGESIZE
MAX_WINDOWS = 4096
BASES = np.zeros(MAX_WINDOWS, np.int64)  # where this process has mapped each window, by number
BASES_AT = BASES.ctypes.data

_STEP_NBYTES = 2 << 20  # of memory asked for at once: a signal makes the system start anew, but only with the step

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_ssize_t
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = _libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

# Plain dictionaries, because what ends a mapping may run in the middle of anything.
_mapped: dict[int, int] = {}  # address -> bytes
_held: dict[int, int] = {}  # number -> id of its holder


def new_file() -> tuple[int, bool]:
    """Return the descriptor of a new file without a name, and whether it is of memory alone; an OSError names the folder."""
    try:
        return os.open(FOLDER, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600), False
    except OSError as error:
        if error.errno not in _NONE_NAMELESS:
            raise OSError(f"{FOLDER}: {error.strerror}") from None
    return memory_file("hpcoll"), True


def file_identity(file: int | str) -> tuple[int, int]:
    """Return the two numbers that tell a file from all others."""
    if file == -1:
        return -1, -1
    found = os.stat(file)
    return found.st_dev, found.st_ino % 2**63


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
        return _libc.madvise(ctypes.addressof(ctypes.c_char.from_buffer(page)), PAGE, MADV_POPULATE_WRITE) == 0


class Mapping:
    """A file's memory in this process; OSError where the system has no room for it."""

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
        self.__array_interface__ = {"version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (address, False)}


class WindowNumber:
    """A window's number, the lowest from ``first`` on that was free in this process, or `MAX_WINDOWS`; in use while the object lives."""

    def __init__(self, first: int) -> None:
        self.value = MAX_WINDOWS
        for value in range(first, MAX_WINDOWS):
            if value not in _held and _held.setdefault(value, id(self)) == id(self):  # another thread may be faster
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
