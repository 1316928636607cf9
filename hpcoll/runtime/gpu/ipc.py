"""GPU memory that local peers map: the directory of exported memory, and the mappings of this rank.

The **directory** of a communicator is a window of shared memory in which each local rank writes what it exports, one slot per allocation:

    generation (8 bytes) | name for other processes (64) | number of the allocation in its process (8) | free

A message names a slot and an offset in the allocation. Its receiver maps the slot when it first meets it, and again when the generation has
changed, because the owner has freed the memory and exports another in that slot. Freed memory stays occupied for as long as a peer maps it,
and hinders new memory at its address. So a rank that exports memory first forgets freed memory in all directories of its process, and one
that maps a peer's memory first lets go of all that the peer has forgotten. Mappings are the process's, because the driver lets it open an
allocation once.
"""

import ctypes
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from hpcoll.base.errors import DeviceError
from hpcoll.runtime.gpu.cuda import ALREADY_MAPPED, IPC_HANDLE_NBYTES, Attribute
from hpcoll.runtime.gpu.device import Gpu, Memory, release
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program.fields import NSLOTS, SLOT_NBYTES
from hpcoll.runtime.transports.local_ranks import LocalRanks

_RESERVED = 128  # slots that only hpcoll's own memory may take
_NAME_WORDS = slice(1, 1 + IPC_HANDLE_NBYTES // 8)  # of a slot of a directory
_NUMBER_WORD = _NAME_WORDS.stop
_OPEN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64, ctypes.c_int64)

_directories: "weakref.WeakSet[Directory]" = weakref.WeakSet()
_exporting = threading.Lock()  # held while any directory of the process changes what it exports


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
        # by rank and slot: generation that is mapped or 0, address
        self.table = np.zeros((*slots.shape[:2], 2), np.int64)
        self.held: dict[tuple[int, int], _Exported] = {}  # by local rank and slot

    def stale(self, pid: int) -> list[tuple[int, int]]:
        """Return local ranks and slots that are mapped here of a process, and forgotten by it."""
        mine = [(local, slot) for local, slot in self.held if self.pids[local] == pid]
        return [
            (local, slot) for local, slot in mine if self.table[local, slot, 0] != self.slots[local, slot, 0]
        ]


class Mappings:
    """Memory of other processes that this one has open, for all its directories; opened for the first, closed behind the last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # the progress thread maps, too
        self._open: dict[_Exported, list[int]] = {}  # address, and how many slots of directories hold it
        self._tables: list[Mapped] = []
        self._gone: list[
            Mapped
        ] = []  # whose directories are; the collector may find that out while the lock is held

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
        """Map a peer's slot, for a directory; DeviceError where it cannot be mapped."""
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
        one = _Exported(table.gpu, pid, words[_NAME_WORDS].tobytes(), int(words[_NUMBER_WORD]))
        opened = self._open.get(one)
        if opened is None:
            opened = self._open[one] = [self._opened(one), 0]
        opened[1] += 1
        table.held[local, slot] = one
        table.table[local, slot, 1] = opened[0]
        table.table[local, slot, 0] = generation

    def _opened(self, exported: _Exported) -> int:
        """Open memory that is open in no directory, and return its address."""
        try:
            return exported.gpu.driver.open(exported.name)
        except DeviceError as error:
            if error.code != ALREADY_MAPPED:
                raise
        self._close_stale(exported.pid)  # what its owner has forgotten meanwhile
        return exported.gpu.driver.open(exported.name)

    def _close_stale(self, pid: int) -> None:
        for table in self._tables:
            for local, slot in table.stale(pid):
                self._let_go(table, local, slot)

    def _let_go(self, table: Mapped, local: int, slot: int) -> None:
        table.table[local, slot, 0] = 0
        one = table.held.pop((local, slot))
        opened = self._open[one]
        opened[1] -= 1
        if not opened[1]:
            del self._open[one]
            release(one.gpu, "cuIpcCloseMemHandle", [opened[0]])

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


class Directory:
    """The directory of memory that local ranks export to each other. Made collectively; raises ArgumentError as `LocalRanks.window`.

    ``readers`` are the ranks of the communicator that can map this rank's memory; ``problem`` says why memory could last not be exported or
    mapped; ``fields`` are of a GPU engine's table.
    """

    def __init__(self, ranks: LocalRanks, gpu: Gpu) -> None:
        self._ranks, self._gpu, self.problem = ranks, gpu, ""
        self._window = ranks.window(0, NSLOTS * SLOT_NBYTES)
        words = self._window.mapping.array(0, ranks.nranks * NSLOTS * SLOT_NBYTES).view(np.int64)
        self._slots = words.reshape(ranks.nranks, NSLOTS, SLOT_NBYTES // 8)
        self._mapped = Mapped(gpu, ranks.pids, self._slots)
        self._exported, self._nexported = np.zeros((NSLOTS, 3), np.int64), np.zeros(1, np.int64)
        self._slot_of: dict[int, int] = {}  # by the driver's number of an allocation
        self._free = list(range(NSLOTS - 1, -1, -1))
        self._callback = _OPEN(_weakly(self))
        mappings.add(self._mapped)
        weakref.finalize(self, mappings.remove, self._mapped).atexit = False
        _directories.add(self)
        self.fields = {
            f.EXPORTED: self._exported.ctypes.data,
            f.NEXPORTED: self._nexported.ctypes.data,
            f.DIRECTORY: self._window.address,
            f.MAPPED: self._mapped.table.ctypes.data,
            f.OPEN: ctypes.cast(self._callback, ctypes.c_void_p).value or 0,
        }
        self.readers = self._find_readers()

    def _find_readers(self) -> frozenset[int]:
        """Try it out: each rank maps a little memory of every other."""
        comm, mine, offered = self._ranks.comm, self._ranks.rank, False
        with suppress(DeviceError):
            trial = Memory(self._gpu, 1)
            offered = self.export(trial.address)
        why = self.problem
        comm.Barrier()
        seen = {local for local in range(self._ranks.nranks) if local != mine and self._map(local, 0)}
        everyone: list[tuple[bool, set[int], str]] = comm.allgather((offered, seen, self.problem))
        readers = frozenset(
            rank for rank, local in self._ranks.local_peers.items() if offered and mine in everyone[local][1]
        )
        theirs = (
            text for local, (_, mapped, text) in enumerate(everyone) if local != mine and mine not in mapped
        )
        self.problem = next(theirs, "") if offered else why
        for local in seen:
            mappings.let_go(self._mapped, local, 0)
        comm.Barrier()  # before the memory is freed
        if offered:
            with _exporting:
                self._forget(0)
        return readers

    def export(self, pointer: int, nbytes: int = 1, *, reserved: bool = False) -> bool:
        """Let peers map the allocation of some memory; False, with `problem` set, where that is not one, or cannot be exported.

        ``reserved``: it is hpcoll's own, for which there are slots when the caller's memory has no more.
        """
        number = self._gpu.driver.attribute(pointer, Attribute.BUFFER_ID)
        with _exporting:
            slot = self._slot_of.get(number)
            if slot is None:
                slot = self._fill(number, pointer, 0 if reserved else _RESERVED)
        if slot is None:
            return False
        if pointer + nbytes > self._exported[slot, 1]:
            self.problem = f"{nbytes} bytes at {pointer:#x} are not of one allocation"
            return False
        return True

    def _fill(self, number: int, pointer: int, nleft: int) -> int | None:
        """Export an allocation, and return its slot; None where fewer than ``nleft`` slots would be left."""
        if not self._gpu.driver.attribute(pointer, Attribute.CAN_BE_EXPORTED):
            self.problem = f"memory at {pointer:#x} is of a kind that cannot be exported"
            return None
        try:
            base, nbytes = self._gpu.driver.address_range(pointer)
            name = self._gpu.driver.export(base)
        except DeviceError as error:
            self.problem = str(error)
            return None
        for directory in list(_directories):
            directory._forget_freed()
        if len(self._free) <= nleft:
            self.problem = f"{len(self._slot_of)} allocations are exported already"
            return None
        slot = self._free.pop()
        words = self._slots[self._ranks.rank, slot]
        words[_NAME_WORDS], words[_NUMBER_WORD] = np.frombuffer(name, np.int64), number
        words[0] += 1  # peers look at it when they are told of the slot, by a message behind this
        self._exported[slot] = base, base + nbytes, (f.FIRST_SLOT + slot) << f.OFFSET_BITS
        self._slot_of[number] = slot
        self._nexported[0] = max(self._nexported[0], slot + 1)
        return slot

    def share(self, pointer: int) -> list[int]:
        """Export memory and map what the others export here, so that no first use has to; collective, 0 for none.

        Returns:
            Addresses in this process of what was given here, by local rank; 0 where there is none, or it is not mapped.
        """
        number = (
            self._gpu.driver.attribute(pointer, Attribute.BUFFER_ID)
            if pointer and self.export(pointer)
            else 0
        )
        slots: list[int | None] = self._ranks.comm.allgather(self._slot_of.get(number))
        addresses = [0] * len(slots)
        addresses[self._ranks.rank] = pointer if number else 0
        for rank, local in self._ranks.local_peers.items():
            slot = slots[local]
            if slot is not None and rank in self.readers and self._map(local, slot):
                addresses[local] = int(self._mapped.table[local, slot, 1])
        return addresses

    def _forget_freed(self) -> None:
        """Give back the slots of memory that has been freed."""
        for number, slot in list(self._slot_of.items()):
            if self._gpu.driver.attribute(int(self._exported[slot, 0]), Attribute.BUFFER_ID) != number:
                self._forget(slot)

    def _forget(self, slot: int) -> None:
        self._exported[slot] = 0
        self._slots[self._ranks.rank, slot, 0] += 1
        self._slot_of = {number: its_slot for number, its_slot in self._slot_of.items() if its_slot != slot}
        self._free.append(slot)

    def _map(self, local: int, slot: int) -> int:
        """Map a peer's slot; 1, or 0 with `problem` set. Compiled code calls this from any thread."""
        try:
            with self._gpu.entered():
                mappings.map(self._mapped, local, slot)
        except BaseException as error:  # nothing may be raised through compiled code
            self.problem = str(error) or type(error).__name__
            return 0
        return 1


def _weakly(directory: Directory) -> Callable[[int, int], int]:
    """Return `Directory._map` as a function that does not keep the directory."""
    me = weakref.ref(directory)

    def map_slot(local: int, slot: int) -> int:
        mapper = me()
        return 0 if mapper is None else mapper._map(local, slot)

    return map_slot
