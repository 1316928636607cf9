"""Memory that the ranks of a node share, and the messages that travel through it.

A **window** is memory without a name (`hpcoll.runtime.transports.window`). A **rings** is a share of a window in which one collective at a
time travels, cut into staging slots, which the lanes in flight take in turn:

    per staging slot and ordered pair: a ring of RING_SLOTS slots, written by the sender    [number, length | 56 bytes, or where they lie]
    per ordered pair: one line of acknowledgements, written by the receiver    [messages used, per staging slot]
    per rank: STAGING_SLOTS staging slots, written by it

A line's number, and an acknowledgement, only ever grow: there is nothing to reset and no barrier. Every cache line has one writer.
Where a message lies is the number of a window and an offset in it, so that a receiver need not know whether the
sender staged it or let it lie in symmetric memory.
"""

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import ArgumentError
from hpcoll.base.units import format_nbytes
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program.fields import OFFSET_BITS, STAGING_SLOTS
from hpcoll.runtime.program.opcodes import CACHE_LINE_NBYTES
from hpcoll.runtime.transports import window as windows
from hpcoll.runtime.transports.window import MAX_WINDOWS, Mapping, Number, Ranges, Symmetric, Window, whole_pages
from hpcoll.schedules.ir import RING_SLOTS

FOLDER = "/dev/shm"
CAPACITY_NBYTES = 256 << 10  # of one staging slot

_T = TypeVar("_T")
_lock = threading.RLock()  # for what the communicators of a process share; never held while messages travel
_nodes: "weakref.WeakSet[Node]" = weakref.WeakSet()
_symmetric: list[Symmetric] = []  # that any process still has an array in, as far as this one has looked


class Node:
    """The ranks of a communicator that share memory with this one. Made collectively.

    Attributes:
        comm: Private communicator of those ranks.
        rank, nranks: In it.
        first: Lowest of those ranks in the communicator.
        local_peers: Local rank of each of the others, by its rank in the communicator.
        ranges: Memory that all of them map: on a communicator of some of the ranks of another, also what was made on that.
        refused: Why there is no rings; the empty string while there is.
    """

    def __init__(self, comm: MPI.Intracomm, limit: int | None, most: int | None = None) -> None:
        """``limit``: most bytes of shared memory on the node for all communicators, None for half of what others leave in /dev/shm;
        ``most``: ranks that share memory, in groups of neighbours.
        """
        whole = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank)
        self.comm = whole.Split(whole.rank // (most or whole.size), whole.rank)
        whole.Free()
        self.rank, self.nranks = self.comm.rank, self.comm.size
        self.refused, self._limit = "", limit
        found = self.comm.allgather((comm.rank, os.getpid()))
        self._ranks = [rank for rank, _ in found]
        self.first = self._ranks[0]
        self._pids = frozenset(pid for _, pid in found)
        self.local_peers = {rank: local for local, rank in enumerate(self._ranks) if rank != comm.rank}
        self.ranges = Ranges()
        with _lock:
            _nodes.add(self)
            for one in _symmetric:
                self._read_in_place(one)

    def _read_in_place(self, one: Symmetric) -> None:
        """Whoever is asked to read an array where it lies must have mapped it."""
        if self._pids <= one.pids:
            first = one.window.address + one.offset
            self.ranges.add(one.window.number, first, first + one.nbytes, (one.window.number << OFFSET_BITS) + one.offset)

    def symmetric(self, nbytes: int) -> np.ndarray:
        """This rank's one of equally many bytes for each rank, zeros, which the others read in place; collective.

        The memory goes back to the system with the array and its views.

        Raises:
            ArgumentError: on every rank of the node, when one of them cannot have it; says which and why.
        """
        sweep()
        one = Symmetric(self.window(8 * self.nranks, Symmetric.room(nbytes)), self._pids, self.rank, nbytes)
        with _lock:
            _symmetric.append(one)
            for node in list(_nodes):
                node._read_in_place(one)
        return one.array()

    def copy(self, nbytes: int, writer: int) -> Mapping:
        """Memory that one local rank may write and the others only read; collective, raises as `symmetric`."""

        def mine(file: int) -> Mapping:
            if self.rank == writer:
                windows.reserve(file, 0, nbytes)
            return Mapping(file, nbytes, writable=self.rank == writer)

        sweep()
        return self._shared(nbytes, mine, max(self.comm.allgather(windows.mapped_nbytes())))

    def window(self, head_nbytes: int, part_nbytes: int) -> Window:
        """A new window, zeros; collective, raises as `symmetric`."""
        head_nbytes, part_nbytes = whole_pages(head_nbytes), whole_pages(part_nbytes)
        number, mapped = self._number()

        def mine(file: int) -> Window:
            if self.rank == 0:
                windows.reserve(file, 0, head_nbytes)
            windows.reserve(file, head_nbytes + self.rank * part_nbytes, part_nbytes)
            return Window(number, Mapping(file, head_nbytes + self.nranks * part_nbytes), head_nbytes, part_nbytes)

        problem = f"there are {MAX_WINDOWS} windows already" if number.value == MAX_WINDOWS else ""
        return self._shared(head_nbytes + self.nranks * part_nbytes, mine, mapped, problem)

    def _number(self) -> tuple[Number, int]:
        """A number that was free on all ranks, and most bytes that any of them has mapped; collective.

        Each takes its lowest number; where these differ, all go on from the highest.
        """
        first = 0
        while True:
            number = Number(first)
            found = self.comm.allgather((number.value, windows.mapped_nbytes()))
            first = max(value for value, _ in found)
            if first == min(value for value, _ in found):
                return number, max(nbytes for _, nbytes in found)
            del number  # so that it may be the next one, too

    def _shared(self, nbytes: int, mine: Callable[[int], _T], mapped: int, problem: str = "") -> _T:
        """What ``mine`` makes of the descriptor of a new file, zeros, on each rank; collective. ``mapped`` bytes are in use.

        Raises:
            ArgumentError: on every rank, when ``problem`` is not empty or anything fails on any; nothing remains of it then.
        """
        file, made = -1, None
        try:
            if self.rank == 0 and not problem:
                problem = self._no_room(nbytes, mapped)
            if self.rank == 0 and not problem:
                with _noted() as notes:
                    file = os.open(FOLDER, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
                    os.ftruncate(file, nbytes)
                problem = "".join(notes)
            problem, path, identity = self.comm.bcast((problem, f"/proc/{os.getpid()}/fd/{file}", _identity(file)))
            if not problem:
                with _noted() as notes:
                    if self.rank:
                        file = _open_theirs(path, identity)
                    made = mine(file)
                problem = "".join(notes)
            found = [(rank, text) for rank, text in zip(self._ranks, self.comm.allgather(problem)) if text]
        finally:
            if file >= 0:
                os.close(file)
        if found or made is None:
            made = None  # the traceback must not keep it
            rank, text = found[0]
            raise ArgumentError(f"rank {rank}: {format_nbytes(nbytes)} of shared memory cannot be had: {text}")
        return made

    def _no_room(self, nbytes: int, mapped: int) -> str:
        try:
            room = os.statvfs(FOLDER)
        except OSError as error:
            return f"{FOLDER}: {error.strerror}"
        free = room.f_bavail * room.f_frsize
        limit = self._limit if self._limit is not None else (free + mapped) // 2
        if nbytes > limit - mapped:
            return f"{format_nbytes(mapped)} are in use, the limit is {format_nbytes(limit)} (HPCOLL_SHM)"
        return f"{FOLDER} has {format_nbytes(free)} left" if nbytes > free else ""

    def free(self) -> None:
        """Free the communicator; what was made stays as long as somebody holds it."""
        sweep()
        self.comm.Free()


def sweep() -> None:
    """Let go of symmetric memory whose arrays are gone on all ranks."""
    with _lock:
        for one in [one for one in _symmetric if one.unused()]:
            for node in list(_nodes):
                node.ranges.remove(one.window.number)
            _symmetric.remove(one)


def _identity(file: int | str) -> tuple[int, int]:
    """What tells a file from all others."""
    if file == -1:
        return -1, -1
    found = os.stat(file)
    return found.st_dev, found.st_ino


def _open_theirs(path: str, identity: tuple[int, int]) -> int:
    """Open a file of another process; in another namespace its number may be that of a stranger, whose files are none of ours."""
    if _identity(path) != identity:
        raise OSError(f"{path} is another file here: the ranks are in containers of their own")
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


@contextlib.contextmanager
def _noted() -> Iterator[list[str]]:
    """Catch what the operating system refuses, as text."""
    notes: list[str] = []
    try:
        yield notes
    except (OSError, OverflowError) as error:
        notes.append(str(error))


class Rings:
    """Counters and addresses through which one collective at a time travels on a node.

    Attributes:
        address: Of the fields that compiled code reads.
        capacity: Bytes of a staging slot.
        local_peers: As in `Node`.
        window: Memory of all its ranks, which other rings may have a share in.

    Args:
        lines, staging: Offsets in the window: of the lines, and of this rank's staging memory.
    """

    def __init__(self, node: Node, window: Window, capacity: int, slots: int, staging: int) -> None:
        nlocal, me = node.nranks, node.rank
        self.local_peers, self.capacity, self.window = node.local_peers, capacity, window
        self._node = node  # keeps its ranges up to date
        self._counters, self._used = np.zeros((3, STAGING_SLOTS, nlocal), np.int64), np.zeros((STAGING_SLOTS, 2), np.int64)
        self.fields = np.zeros(f.RINGS_NFIELDS, np.int64)
        values = {
            f.SLOTS_AT: window.address + slots, f.ACKS_AT: window.address + slots + rings_nbytes(nlocal),
            f.STAGING_AT: window.address + staging, f.STAGING_WHERE: (window.number << OFFSET_BITS) + staging,
            f.CAPACITY: capacity, f.NLOCAL: nlocal, f.LOCAL_RANK: me, f.SENT: self._counters[0].ctypes.data,
            f.TAKEN: self._counters[1].ctypes.data, f.ACKED: self._counters[2].ctypes.data, f.USED: self._used.ctypes.data,
            f.BASES: windows.BASES.ctypes.data, f.NRANGES: node.ranges.nrows.ctypes.data,
            f.RANGES: node.ranges.table.ctypes.data,
        }  # fmt: skip
        for field, value in values.items():
            self.fields[field] = value
        self.address = self.fields.ctypes.data


def rings_nbytes(nlocal: int) -> int:
    """Bytes of a rings's lines."""
    return STAGING_SLOTS * nlocal * nlocal * RING_SLOTS * CACHE_LINE_NBYTES


def make_rings(node: Node, n: int, capacity: int = CAPACITY_NBYTES) -> list[Rings] | None:
    """``n`` rings in one window; None on every rank, with ``node.refused`` set, where it cannot be had. Collective.

    Args:
        capacity: Bytes of a staging slot, whole cache lines.
    """
    head, part = rings_nbytes(node.nranks) + node.nranks**2 * CACHE_LINE_NBYTES, STAGING_SLOTS * capacity
    try:
        window = node.window(n * head, n * part)
    except ArgumentError as error:
        node.refused = str(error)
        return None
    return [Rings(node, window, capacity, i * head, window.part(node.rank) + i * part) for i in range(n)]
