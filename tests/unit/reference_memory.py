"""Memory of the ranks that `reference_engine` runs: their own, with guards and owners, and what ranks of a node share.

Every byte knows how many messages still read or write it. A message lives from POST to ACK: in its ring slot, or where its sender
staged or left it. What may be overwritten is overwritten at once: a ring slot when its message is acknowledged, staging memory when
it is handed out anew, a caller's buffers when his call returns.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hpcoll.runtime.program.opcodes import INLINE_NBYTES
from hpcoll.schedules.ir import RING_SLOTS

GUARD = 64
STAGING_SLOTS = 8  # of a rank


class Memory:
    """Buffers of the given sizes in one arena, guards around each; one of size None must not be touched.

    Attributes:
        granted: Per byte one more than the rank that alone may read and write it, or 0.
        shared: Of a rank's own memory: whether ranks of the node read its INPUT and its OUTPUT in place.
        returned: The arena as its owner found it when his call returned.
    """

    def __init__(
        self,
        nbytes: Sequence[int | None],
        rng: np.random.Generator,
        shared: tuple[bool, bool] = (False, False),
    ) -> None:
        bases = np.cumsum([GUARD, *(-(-(n or 0) // GUARD) * GUARD + GUARD for n in nbytes)]).tolist()
        self.arena = rng.integers(0, 256, bases[-1], np.uint8)
        self.spans = [(base, base + n) if n is not None else None for base, n in zip(bases, nbytes)]
        # messages per byte
        self.read_by, self.written_by = (
            np.zeros(bases[-1], np.int16),
            np.zeros(bases[-1], np.int16),
        )
        self.granted = np.zeros(bases[-1], np.int16)
        # operations on streams
        self.queued_read, self.queued_write = (
            np.zeros(bases[-1], np.int16),
            np.zeros(bases[-1], np.int16),
        )
        self.shared = shared
        self.returned: np.ndarray | None = None

    def area(self, index: int) -> "Area":
        """A whole buffer."""
        span = self.spans[index]
        assert span is not None, f"touches buffer {index}, which this call does not have"
        return Area(self, *span)

    def buffer(self, index: int) -> np.ndarray:
        """The bytes of a buffer."""
        return self.arena[self.area(index).span]


class Area(NamedTuple):
    """A run of bytes of a memory."""

    memory: Memory
    lo: int
    hi: int

    @property
    def nbytes(self) -> int:
        return self.hi - self.lo

    @property
    def span(self) -> slice:
        return slice(self.lo, self.hi)

    def part(self, displ: int, nbytes: int, name: str) -> "Area":
        assert 0 <= displ <= displ + nbytes <= self.nbytes, (
            f"leaves {name}: bytes {displ} to {displ + nbytes} of {self.nbytes}"
        )
        return Area(self.memory, self.lo + displ, self.lo + displ + nbytes)

    def apart(self, other: "Area") -> bool:
        return self.memory is not other.memory or self.hi <= other.lo or other.hi <= self.lo

    def check_free(self, *, to_write: bool, by: int = -1) -> None:
        """Nobody may read what a receive will write, nor write what a message is still read from, nor touch what another was granted."""
        granted = self.memory.granted[self.span]
        assert not self.memory.written_by[self.span].any(), (
            "touches memory of a receive that was not waited for"
        )
        assert not ((granted != 0) & (granted != 1 + by)).any(), (
            "touches memory that another rank was let write"
        )
        read = self.memory.read_by[self.span] * (granted == 0)
        assert not (to_write and read.any()), "writes memory of a message that may still be read"

    def read(self, by: int = -1) -> np.ndarray:
        self.check_free(to_write=False, by=by)
        return self.memory.arena[self.span]

    def write(self, data: np.ndarray, by: int = -1) -> None:
        self.check_free(to_write=True, by=by)
        self.memory.arena[self.span] = data

    def spoil(self) -> None:
        """Nobody needs what is here any more."""
        self.write(self.memory.arena[self.span] ^ 0xA5)


class Message:
    """From POST to ACK: where it lies, whether that is its ring slot, and whether it is memory that its receiver may write."""

    def __init__(self, area: Area, inline: bool, granted: bool) -> None:
        self.area, self.inline, self.granted, self.used = area, inline, granted, False
        self.queued = 0  # operations on streams that work on it
        area.memory.read_by[area.span] += not granted

    def use(self) -> Area:
        assert not self.used, "reads a message that it has acknowledged"
        return self.area

    def end(self) -> None:
        self.area.memory.read_by[self.area.span] -= not self.granted
        self.used = True
        if self.inline:
            self.area.spoil()


class Ring:
    """Messages from one rank to another in one staging slot, in order."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.slots = Memory([INLINE_NBYTES] * RING_SLOTS, rng)
        self.number = 0
        self.posted: deque[Message] = deque()
        self.awaited: deque[Message] = deque()

    def unread(self) -> int:
        return len(self.posted) + len(self.awaited)

    def post(self, area: Area, *, inline: bool = True, granted: bool = False) -> bool:
        """Announce a message; False while no ring slot is free."""
        if self.unread() == RING_SLOTS:
            return False
        inline = inline and area.nbytes <= INLINE_NBYTES
        if inline:
            data, area = (
                area.read(),
                self.slots.area(self.number % RING_SLOTS).part(0, area.nbytes, "its ring slot"),
            )
            area.write(data)
        self.posted.append(Message(area, inline, granted))
        self.number += 1
        return True

    def take(self, nbytes: int) -> Message | None:
        """The next message, or None while there is none."""
        if not self.posted:
            return None
        assert self.posted[0].area.nbytes == nbytes, (
            f"awaits {nbytes} bytes and gets {self.posted[0].area.nbytes}"
        )
        self.awaited.append(self.posted.popleft())
        return self.awaited[-1]

    def acknowledge(self) -> None:
        assert self.awaited, "acknowledges a message that it has not awaited"
        self.awaited.popleft().end()


class SharedMemory:
    """Rings and staging memory of all nodes; ``nodes`` says on which each rank is, ``capacity`` is bytes of a staging slot."""

    def __init__(self, nodes: Sequence[int], capacity: int, rng: np.random.Generator) -> None:
        # of a rank's node, by local rank
        self.ranks = [[rank for rank, node in enumerate(nodes) if node == mine] for mine in nodes]
        # source, destination, staging slot
        self.rings: dict[tuple[int, int, int], Ring] = defaultdict(lambda: Ring(rng))
        self.staging = [Memory([capacity] * STAGING_SLOTS, rng) for _ in nodes]
        self.capacity = capacity
        self.handed_out: dict[tuple[int, int], int] = defaultdict(int)  # rank, staging slot -> bytes

    def reserve(self, rank: int, slot: int, nbytes: int) -> Area | None:
        """A lane's staging memory; None while there is none. As in the engine: from the start only when all was used."""
        first = self.handed_out[rank, slot]
        assert nbytes <= self.capacity, f"needs {nbytes} bytes of staging memory, a slot has {self.capacity}"
        if first + nbytes > self.capacity:
            if any(self.rings[rank, peer, slot].unread() for peer in self.ranks[rank]):
                return None
            self.staging[rank].area(slot).spoil()
            first = 0
        self.handed_out[rank, slot] = first + nbytes
        return self.staging[rank].area(slot).part(first, nbytes, "its staging slot")
