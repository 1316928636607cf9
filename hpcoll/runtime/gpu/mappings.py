"""Memory of other processes that this one has mapped: one table for the process, because the driver lets it open an allocation once.

Each directory (`hpcoll.runtime.gpu.ipc`) has a table of its own besides, by which compiled code finds addresses.
"""

import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hpcoll.base.errors import DeviceError
from hpcoll.runtime.gpu.cuda import ALREADY_MAPPED, IPC_HANDLE_NBYTES
from hpcoll.runtime.gpu.device import Gpu, release

NAME_WORDS = slice(1, 1 + IPC_HANDLE_NBYTES // 8)  # of a slot of a directory
NUMBER_WORD = NAME_WORDS.stop


class _Exported(NamedTuple):
    """A rank's exported allocation, for a GPU of this process."""

    gpu: Gpu
    pid: int
    name: bytes
    number: int


class Mapped:
    """The mappings of a directory, by a GPU; ``pids`` and ``slots``, as words, are the local ranks'."""

    def __init__(self, gpu: Gpu, pids: Sequence[int], slots: np.ndarray) -> None:
        self.gpu, self.pids, self.slots = gpu, pids, slots
        self.table = np.zeros((*slots.shape[:2], 2), np.int64)  # by rank and slot: generation that is mapped or 0, address
        self.held: dict[tuple[int, int], _Exported] = {}  # by local rank and slot

    def stale(self, pid: int) -> list[tuple[int, int]]:
        """Return local ranks and slots that are mapped here of a process, and forgotten by it."""
        mine = [(local, slot) for local, slot in self.held if self.pids[local] == pid]
        return [(local, slot) for local, slot in mine if self.table[local, slot, 0] != self.slots[local, slot, 0]]


class Mappings:
    """Memory of other processes that this one has open, for all its directories; opened for the first, closed behind the last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # the helper maps, too
        self._open: dict[_Exported, list[int]] = {}  # address, and how many slots of directories hold it
        self._tables: list[Mapped] = []
        self._gone: list[Mapped] = []  # whose directories are; the collector may find that out while the lock is held

    def add(self, table: Mapped) -> None:
        """Add a directory's table."""
        with self._lock:
            self._tables.append(table)
        self._collect()

    def remove(self, table: Mapped) -> None:
        """Let go of all mappings of a directory, now or when the lock is free; from any thread, in the middle of anything."""
        self._gone.append(table)
        self._collect()

    def map(self, table: Mapped, local: int, slot: int) -> None:
        """Map a peer's slot, for a directory.

        Raises:
            DeviceError: it cannot be mapped.
        """
        try:
            with self._lock:
                self._map(table, local, slot)
        finally:
            self._collect()

    def let_go(self, table: Mapped, local: int, slot: int) -> None:
        """Undo one `map`."""
        with self._lock:
            self._let_go(table, local, slot)
        self._collect()

    def _map(self, table: Mapped, local: int, slot: int) -> None:
        words, pid = table.slots[local, slot], table.pids[local]
        generation = int(words[0])
        if not generation:
            raise DeviceError(f"local rank {local} exports nothing in slot {slot}")
        if table.table[local, slot, 0] == generation:  # another thread was faster
            return
        self._close_stale(pid)
        one = _Exported(table.gpu, pid, words[NAME_WORDS].tobytes(), int(words[NUMBER_WORD]))
        found = self._open.get(one)
        if found is None:
            found = self._open[one] = [self._opened(one), 0]
        found[1] += 1
        table.held[local, slot] = one
        table.table[local, slot, 1] = found[0]
        table.table[local, slot, 0] = generation

    def _opened(self, one: _Exported) -> int:
        """Open memory that is open in no directory, and return its address."""
        try:
            return one.gpu.driver.open(one.name)
        except DeviceError as error:
            if error.code != ALREADY_MAPPED:
                raise
        self._close_stale(one.pid)  # what its owner has forgotten meanwhile
        return one.gpu.driver.open(one.name)

    def _close_stale(self, pid: int) -> None:
        for table in self._tables:
            for local, slot in table.stale(pid):
                self._let_go(table, local, slot)

    def _let_go(self, table: Mapped, local: int, slot: int) -> None:
        table.table[local, slot, 0] = 0
        one = table.held.pop((local, slot))
        found = self._open[one]
        found[1] -= 1
        if not found[1]:
            del self._open[one]
            release(one.gpu, "cuIpcCloseMemHandle", [found[0]])

    def _collect(self) -> None:
        while self._gone and self._lock.acquire(blocking=False):
            try:
                table = self._gone.pop()
                self._tables.remove(table)
                for local, slot in list(table.held):
                    self._let_go(table, local, slot)
            finally:
                self._lock.release()


mappings = Mappings()
