"""Symmetric memory: an array for each process of a node that the others read in place, and tables of the addresses of such memory.

Memory is kept until the arrays of all processes are gone; `sweep` looks for that. A reader must have mapped it: so the `AddressRanges` of
a communicator's local ranks list the memory that was made on it, or on another one that has them all.
"""

import os
import threading
import weakref

import numpy as np

from hpcoll.runtime.program.fields import OFFSET_BITS
from hpcoll.runtime.program.opcodes import CACHE_LINE_NBYTES
from hpcoll.runtime.transports.window import MAX_WINDOWS, Bytes, Window

_SKEW_NBYTES = 4096  # addresses that agree in this many bytes hinder each other in the first cache

_lock = threading.RLock()  # for what the communicators of a process share; never held while messages travel
_live: list["Symmetric"] = []  # that any process still has an array in, as far as this one has looked
_tables: "weakref.WeakSet[AddressRanges]" = weakref.WeakSet()


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
            for one in _live:
                self._list(one)

    def _list(self, one: Symmetric) -> None:
        if self._pids and self._pids <= one.pids:
            first = one.window.address + one.offset
            self.add(one.window.number, first, first + one.nbytes, (one.window.number << OFFSET_BITS) + one.offset)

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
        for one in [one for one in _live if one.unused()]:
            for table in list(_tables):
                table.remove(one.window.number)
            _live.remove(one)
