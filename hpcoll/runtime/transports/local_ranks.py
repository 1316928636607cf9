"""Ranks that share memory: their communicator, and the memory that they make together.

Processes share a window, or a copy that only one may write: a file that local rank 0 opens and the others map
(`hpcoll.runtime.transports.window`).
"""

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import ArgumentError
from hpcoll.base.machine import left_nbytes
from hpcoll.base.text import format_nbytes
from hpcoll.runtime.program.fields import STAGING_SLOTS
from hpcoll.runtime.telemetry.status_page import PAGE_NBYTES, StatusSlots
from hpcoll.runtime.transports import window as windows
from hpcoll.runtime.transports.cross_memory import MOST_RANKS, OwnMemory, ProbeWord, own_memory, refusal
from hpcoll.runtime.transports.mpi import ranks_in, world_ranks
from hpcoll.runtime.transports.rings import CAPACITY_NBYTES, Rings, rings_nbytes
from hpcoll.runtime.transports.window import AddressRanges, Mapping, Window, WindowNumber, sweep, whole_pages

# rings that are made before they are asked for, and bytes of their heads
_MOST_AHEAD, _AHEAD_NBYTES = (
    24,
    4 << 20,
)
_ALL_AT_ONCE = (
    "; before Linux 5.14, or where the system gives no pages when asked, all of it is taken at once"
)

_T = TypeVar("_T")


class LocalRanks:
    """The ranks of a communicator that share memory with this one. Made collectively.

    Attributes:
        comm: Private communicator of those ranks; where they are all there are, the one that this was made of.
        ranks: Their ranks in the communicator; ``pids``: their processes.
        local_peers: Local rank of each of the others, by its rank in the communicator.
        refused: Why there are no rings; the empty string while there are.
        memory_alone: On local rank 0: the folder makes no files without names, so that ours are of memory alone.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        node: MPI.Comm,
        limit: int | None,
        most: int | None,
        pids: Sequence[int] | np.ndarray,
    ) -> None:
        """Take them from all ranks, whose processes are ``pids``.

        ``node`` is what `of_node` has returned for them, and is theirs. All communicators of the node share at most ``limit`` bytes; None:
        half of what others leave. At most ``most`` neighbours share memory; None: all of a node.
        """
        self.comm = node
        if most and node.size > most:
            self.comm = node.Split(node.rank // most, node.rank)
            if node is not comm:
                node.Free()
        self._own = self.comm is not comm
        self.rank, self.nranks = self.comm.rank, self.comm.size
        self.refused, self._limit, self.memory_alone = "", limit, False
        self.status_slots: StatusSlots | None = None
        self.own_memory: OwnMemory | None = None
        self._ahead, self._nasked = list[Rings](), 0
        self.ranks = list(ranks_in(comm, self.comm)) if self._own else list(range(self.nranks))
        self.pids = tuple(int(pids[rank]) for rank in self.ranks)
        self.local_peers = {rank: local for local, rank in enumerate(self.ranks) if rank != comm.rank}
        self.ranges = AddressRanges(frozenset(self.pids))

    def read_own_memory(self, mine: Sequence[ProbeWord], copy: str | None, measured: int | None) -> str:
        """Let messages be read in their senders' own memory, if all these ranks can; collective; arguments as `own_memory`.

        Return why some rank cannot, on every rank; the empty string when all can.
        """
        problem = f"{self.nranks} ranks are more than {MOST_RANKS}" if self.nranks > MOST_RANKS else ""
        if not problem:
            me, known = (
                f"rank {self.ranks[self.rank]} not that of rank",
                any(known.issuperset(mine) for known in list(_reading)),
            )
            refusals = () if known else ((rank, refusal(process)) for rank, process in zip(self.ranks, mine))
            problem = next((f"{me} {rank}: {text}" for rank, text in refusals if text), "")
            # others may not know, where several threads find it out
            fails = np.array([bool(problem)], np.uint8)
            self.comm.Allreduce(MPI.IN_PLACE, fails, MPI.MAX)
            problem = next(filter(None, self.comm.allgather(problem))) if fails[0] else ""
            _reading.extend([] if problem or known else [frozenset(mine)])
        if not problem:
            self.own_memory = own_memory(mine, copy, measured)
        return problem

    def symmetric(self, nbytes: int) -> np.ndarray:
        """Return this rank's array of zeros, as long on every rank, which the others read in place; collective.

        The memory goes back to the system with the array and its views.

        Raises:
            ArgumentError: on every rank of the node, when one of them cannot have it; says which and why.
        """
        sweep()
        window = self.window(8 * self.nranks, windows.Symmetric.room(nbytes))
        return windows.symmetric_array(window, frozenset(self.pids), self.rank, nbytes)

    def copy(self, nbytes: int, writer: int) -> Mapping:
        """Return memory that one local rank may write and the others only read; collective, raises as `symmetric`."""

        def mine(file: int) -> Mapping:
            if self.rank == writer:
                windows.reserve(file, 0, nbytes)
            return Mapping(file, nbytes, writable=self.rank == writer)

        sweep()
        return self._shared(nbytes, mine, max(self.comm.allgather(windows.mapped_nbytes())))

    def window(self, head_nbytes: int, part_nbytes: int, *, reserved: bool = True) -> Window:
        """Return a new window, zeros; collective, raises as `symmetric`. Unless all of it is reserved, only the head has memory yet."""
        head_nbytes, part_nbytes = whole_pages(head_nbytes), whole_pages(part_nbytes)
        number, mapped = self._number()

        def mine(file: int) -> Window:
            if self.rank == 0:
                windows.reserve(file, 0, head_nbytes)
            if reserved:
                windows.reserve(file, head_nbytes + self.rank * part_nbytes, part_nbytes)
            return Window(
                number, Mapping(file, head_nbytes + self.nranks * part_nbytes), head_nbytes, part_nbytes
            )

        problem = (
            f"there are {windows.MAX_WINDOWS} windows already" if number.value == windows.MAX_WINDOWS else ""
        )
        return self._shared(head_nbytes + self.nranks * part_nbytes, mine, mapped, problem)

    def _number(self) -> tuple[WindowNumber, int]:
        """Return a number that was free on all ranks, and the most bytes that any of them has mapped; collective.

        Each takes its lowest number; where these differ, all go on from the highest.
        """
        first = 0
        while True:
            number = WindowNumber(first)
            most = np.array([number.value, -number.value, windows.mapped_nbytes()], np.int64)
            self.comm.Allreduce(MPI.IN_PLACE, most, MPI.MAX)
            first, negative_least, mapped = most.tolist()
            if first == -negative_least:
                return number, mapped
            del number  # so that it may be the next one, too

    def _shared(self, nbytes: int, mine: Callable[[int], _T], mapped: int, problem: str = "") -> _T:
        """Return ``mine(file)`` for the descriptor of a new file of zeros; collective. ``mapped`` bytes are in use.

        Raises:
            ArgumentError: on every rank, when ``problem`` is not empty or anything fails on any; nothing remains of it then.
        """
        file, made = -1, None
        try:
            if self.rank == 0 and not problem:
                with windows.noted() as notes:
                    file, self.memory_alone = windows.new_file()
                    problem = self._no_room(nbytes, mapped)
                    os.ftruncate(file, 0 if problem else nbytes)
                problem = problem or "".join(notes)
            told = np.array([bool(problem), os.getpid(), file, *windows.file_identity(file)], np.int64)
            self.comm.Bcast(told)
            failed, pid, number, device, inode = told.tolist()
            if not failed:
                with windows.noted() as notes:
                    if self.rank:
                        file = windows.open_theirs(f"/proc/{pid}/fd/{number}", (device, inode))
                    made = mine(file)
                problem = "".join(notes)
            told[0] = failed or bool(problem)
            self.comm.Allreduce(MPI.IN_PLACE, told[:1], MPI.MAX)
            problems = [
                (rank, text)
                for rank, text in zip(self.ranks, self.comm.allgather(problem) if told[0] else ())
                if text
            ]
        finally:
            if file >= 0:
                os.close(file)
        if problems or made is None:
            made = None  # the traceback must not keep it
            rank, text = problems[0]
            raise ArgumentError(
                f"rank {rank}: {format_nbytes(nbytes)} of shared memory cannot be had: {text}"
            )
        return made

    def _no_room(self, nbytes: int, mapped: int) -> str:
        """Return why there is no room for so many bytes more; the empty string where there is."""
        if self.memory_alone:
            where, free = "the machine or its control group", left_nbytes()
        else:
            room = os.statvfs(windows.FOLDER)
            where, free = windows.FOLDER, room.f_bavail * room.f_frsize
        limit = self._limit if self._limit is not None else (free + mapped) // 2
        if nbytes > limit - mapped:
            return f"{format_nbytes(mapped)} are in use, the limit is {format_nbytes(limit)} (HPCOLL_SHM)"
        return f"{where} has {format_nbytes(free)} left" if nbytes > free else ""

    def rings(self, n: int, capacity: int) -> list[Rings] | None:
        """Return rings as `make_rings`, always of one capacity; some are made ahead, because all ranks spend time on a window."""
        missing, self._nasked = n - len(self._ahead), self._nasked + n
        if missing > 0:
            most = min((self._nasked - n) // 2, _MOST_AHEAD, _AHEAD_NBYTES // rings_nbytes(self.nranks))
            more = most if windows.populates() and not self.refused else 0
            made = self.make_rings(missing + more, capacity)
            if made is None and more:
                self.refused = ""
                made = self.make_rings(missing, capacity)
            if made is None:
                return None
            self._ahead += made
        rings, self._ahead = self._ahead[:n], self._ahead[n:]
        return rings

    def drop_ahead(self) -> None:
        """Let go of rings that were made ahead, on all ranks alike."""
        self._ahead.clear()

    def make_rings(self, n: int, capacity: int = CAPACITY_NBYTES) -> list[Rings] | None:
        """Return ``n`` rings in one window; None on every rank, with ``refused`` set, where it cannot be had. Collective.

        Where the system can be asked for pages of mapped memory, staging slots have none until messages need them: most communicators
        send little, and 2 MB for each cost milliseconds. ``capacity``: bytes of a staging slot, whole cache lines.
        """
        head, part, reserved = rings_nbytes(self.nranks), STAGING_SLOTS * capacity, not windows.populates()
        noted = 0 if self.status_slots else self.nranks * PAGE_NBYTES
        try:
            window = self.window(n * head + noted, n * part, reserved=reserved)
        except ArgumentError as error:
            self.refused = str(error) + (_ALL_AT_ONCE if reserved else "")
            return None
        if noted:
            self.status_slots = StatusSlots(window.mapping.array(n * head, noted), self.rank)
        mine = window.part(self.rank)
        each = [(i * head, mine + i * part, reserved, self.own_memory) for i in range(n)]
        return [Rings(self.rank, self.local_peers, self.ranges, window, capacity, *memory) for memory in each]

    def free(self) -> None:
        """Free the communicator; memory that was made stays as long as an object holds it."""
        self.status_slots = None
        self.drop_ahead()
        sweep()
        if self._own:
            self.comm.Free()


_sharing: list[
    frozenset[int]
] = []  # ranks of COMM_WORLD that are known to share memory, this process among them
_reading: list[
    frozenset[ProbeWord]
] = []  # processes that are known to read each other's memory, this one among them


def of_node(comm: MPI.Intracomm) -> tuple[MPI.Comm, int]:
    """Return the communicator of the ranks that can share memory with this one, and the lowest of them; collective.

    It is ``comm`` itself where that has no others.
    """
    node = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank)
    if node.size < comm.size:
        return node, ranks_in(comm, node)[0]
    node.Free()
    _sharing.append(frozenset(world_ranks(comm)))
    return comm, 0


def known_to_share(ranks: tuple[int, ...]) -> bool:
    """Say whether this rank knows that some ranks of COMM_WORLD share memory, itself among them."""
    everyone = frozenset(ranks)
    return any(everyone <= known for known in list(_sharing)) and MPI.UNDEFINED not in everyone
