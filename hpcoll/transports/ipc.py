"""GPU memory that ranks of a node map: who exports what, and what is mapped here. Floor 5.

The **directory** is a window of shared memory in which each rank of the node writes what it exports, one slot per allocation:

    generation (8 bytes) | nbytes (8) | name for other processes (64) | free

A message names a slot and an offset in the allocation. Its receiver maps the slot when it first meets it, and again when the
generation has changed, because the owner has freed the memory and exports another in that slot.
"""

import ctypes
import weakref
from collections.abc import Callable

import numpy as np

from hpcoll.engines import fields as f
from hpcoll.engines.fields import FIRST_SLOT, NSLOTS, OFFSET_BITS, SLOT_NBYTES
from hpcoll.errors import DeviceError
from hpcoll.gpu import Gpu, Memory
from hpcoll.transports.cuda import IPC_HANDLE_NBYTES, Attribute
from hpcoll.transports.shm import Node

_NAME = 16  # where it starts in a slot
_OPEN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class Directory:
    """What the ranks of a node export to each other. Made collectively by them; raises ArgumentError as `Node.window`.

    Args:
        node: The ranks.
        gpu: Of this rank.

    Attributes:
        readers: Ranks of the communicator that can map this rank's memory.
        problem: Why something could last not be exported or mapped.
        fields: By field of a GPU engine's table.
    """

    def __init__(self, node: Node, gpu: Gpu) -> None:
        self._node, self._gpu, self.problem = node, gpu, ""
        self._window = node.window(0, NSLOTS * SLOT_NBYTES)
        self._slots = self._window.mapping.array(0, self._window.mapping.nbytes)
        self._mapped = np.zeros((node.nranks, NSLOTS, 2), np.int64)
        self._exported, self._nexported = np.zeros((NSLOTS, 3), np.int64), np.zeros(1, np.int64)
        self._slot_of: dict[int, int] = {}  # by the driver's number of an allocation
        self._free = list(range(NSLOTS - 1, -1, -1))
        self._callback = _OPEN(_weakly(self))
        weakref.finalize(self, _close, gpu, self._mapped).atexit = False
        self.fields = {
            f.EXPORTED: self._exported.ctypes.data, f.NEXPORTED: self._nexported.ctypes.data, f.DIRECTORY: self._window.address,
            f.MAPPED: self._mapped.ctypes.data, f.OPEN: ctypes.cast(self._callback, ctypes.c_void_p).value or 0,
        }  # fmt: skip
        self.readers = self._find_readers()

    def _find_readers(self) -> frozenset[int]:
        """Try it out: each rank maps a little memory of every other."""
        trial = Memory(self._gpu, 1)
        offered = self.export(trial.address)
        self._node.comm.Barrier()
        seen = [local for local in range(self._node.nranks) if local != self._node.rank and self._map(local, 0)]
        found: list[tuple[bool, list[int]]] = self._node.comm.allgather((offered, seen))
        mine = self._node.rank
        readers = frozenset(rank for rank, local in self._node.near.items() if offered and mine in found[local][1])
        for local in seen:
            self._unmap(local, 0)
        self._node.comm.Barrier()  # before the memory is freed
        self._forget(0)
        return readers

    def export(self, pointer: int) -> bool:
        """Let peers map the allocation that a pointer lies in; False where the driver cannot export it."""
        number = self._gpu.driver.attribute(pointer, Attribute.BUFFER_ID)
        if number in self._slot_of:
            return True
        if not self._free:
            self._forget_dead()
        if not self._free:
            self.problem = f"{NSLOTS} allocations are exported already"
            return False
        try:
            base, nbytes = self._gpu.driver.address_range(pointer)
            name = self._gpu.driver.export(base)
        except DeviceError as error:
            self.problem = str(error)
            return False
        self._forget_overlap(base, nbytes)
        slot = self._free.pop()
        words = self._words(self._node.rank, slot)
        start = self._start(self._node.rank, slot)
        self._slots[start + _NAME : start + _NAME + IPC_HANDLE_NBYTES] = np.frombuffer(name, np.uint8)
        words[1] = nbytes
        words[0] += 1  # peers look at it when they are told of the slot, by a message behind this
        self._exported[slot] = base, base + nbytes, (FIRST_SLOT + slot) << OFFSET_BITS
        self._slot_of[number] = slot
        self._nexported[0] = max(self._nexported[0], slot + 1)
        return True

    def share(self, pointer: int) -> None:
        """Export memory and map what the others export here, so that no first use has to; collective, 0 for none."""
        number = self._gpu.driver.attribute(pointer, Attribute.BUFFER_ID) if pointer and self.export(pointer) else 0
        slots: list[int | None] = self._node.comm.allgather(self._slot_of.get(number))
        for rank, local in self._node.near.items():
            slot = slots[local]
            if slot is not None and rank in self.readers:
                self._map(local, slot)

    def _forget_dead(self) -> None:
        """Give back the slots of memory that has been freed."""
        for number, slot in list(self._slot_of.items()):
            if self._gpu.driver.attribute(int(self._exported[slot, 0]), Attribute.BUFFER_ID) != number:
                self._forget(slot)

    def _forget_overlap(self, base: int, nbytes: int) -> None:
        """Memory that lay where this does has been freed."""
        first, end, _ = self._exported.T
        for slot in np.flatnonzero((first < base + nbytes) & (end > base)).tolist():
            self._forget(slot)

    def _forget(self, slot: int) -> None:
        self._exported[slot] = 0
        self._slot_of = {number: one for number, one in self._slot_of.items() if one != slot}
        self._free.append(slot)

    def _start(self, local: int, slot: int) -> int:
        return self._window.part(local) + slot * SLOT_NBYTES

    def _words(self, local: int, slot: int) -> np.ndarray:
        """Generation and size in a slot."""
        start = self._start(local, slot)
        return self._slots[start : start + _NAME].view(np.int64)

    def _map(self, local: int, slot: int) -> int:
        """Map what is in a peer's slot; 1, or 0 with `problem` set. Compiled code calls this from any thread."""
        try:
            generation, start = int(self._words(local, slot)[0]), self._start(local, slot) + _NAME
            if not generation:
                raise DeviceError(f"local rank {local} exports nothing in slot {slot}")
            self._gpu.enter()
            self._unmap(local, slot)
            mapped = self._mapped[local, slot]
            mapped[1] = self._gpu.driver.open(self._slots[start : start + IPC_HANDLE_NBYTES].tobytes())
            mapped[0] = generation
        except DeviceError as error:
            self.problem = str(error)
            return 0
        return 1

    def _unmap(self, local: int, slot: int) -> None:
        mapped = self._mapped[local, slot]
        if mapped[0]:
            mapped[0] = 0
            self._gpu.driver("cuIpcCloseMemHandle", int(mapped[1]))


def _weakly(directory: Directory) -> Callable[[int, int], int]:
    """Its mapping as a function that does not keep it."""
    me = weakref.ref(directory)

    def map_slot(local: int, slot: int) -> int:
        found = me()
        return 0 if found is None else found._map(local, slot)

    return map_slot


def _close(gpu: Gpu, mapped: np.ndarray) -> None:
    """Unmap what is mapped."""
    gpu.enter()
    for generation, address in mapped.reshape(-1, 2).tolist():
        if generation:
            gpu.driver("cuIpcCloseMemHandle", address)
