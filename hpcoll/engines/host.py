"""The host engine: a program bound to a communicator, a kernel and scratch, walked by compiled code. Floor 5."""

from typing import NamedTuple

import numpy as np

from hpcoll.engines import state as at
from hpcoll.engines.entry import RUN, cross
from hpcoll.engines.foreign import function_address
from hpcoll.engines.state import FAILED, PENDING
from hpcoll.errors import TransportError
from hpcoll.program import Code, Program
from hpcoll.transports.mpi import Library
from hpcoll.transports.shm import Stream


class Patience(NamedTuple):
    """How a rank waits: passes without progress that it spins, then passes in which it yields the processor; then it sleeps."""

    spins: int
    yields: int


ALONE = Patience(200, 2000)  # a core of its own
CROWDED = Patience(5, 200)  # more ranks than cores: whoever is waited for may need this core


class HostEngine:
    """A program bound to a communicator, a kernel and scratch: ready to run on any buffers of its sizes.

    Args:
        program: What to run.
        library: The MPI library.
        comm: Handle of the communicator on which the messages travel; nothing else may use it.
        kernel: Address of the reduction kernel, or 0 when the program has no reductions.
        patience: How a rank waits.
        lock, account: See below.
        stream: What carries messages on the node; None when the program has none.
        tag: First of as many tags as the program has places.
        uncached: Whether results are written past the caches, because they would not stay there anyway.

    Attributes:
        lock: int64; 1 while the engine runs. Engines that may not run at once share one.
        account: int64: calls, nanoseconds in them.
    """

    def __init__(
        self, program: Program, library: Library, comm: int, kernel: int, patience: Patience, lock: np.ndarray, account: np.ndarray,
        stream: Stream | None = None, tag: int = 0, uncached: bool = False,
    ) -> None:  # fmt: skip
        nsources = int(program.rows[program.rows[:, 0] == Code.REDUCE, 5].max(initial=0))
        assert stream is None or program.staging_nbytes <= stream.capacity, (program.staging_nbytes, stream.capacity)
        self.state = np.zeros(at.OPERANDS + nsources, np.int64)
        self.program, self.stream, self.lock, self.account = program, stream, lock, account
        self.scratch_nbytes = program.window * program.scratch_nbytes
        self._places = np.zeros(2 * program.window, np.int64)
        self._requests = np.zeros(max(1, program.window * program.nrequests * library.request_nbytes), np.uint8)
        self._landed = np.zeros(program.window * program.nslots, np.int64)
        fields = {
            at.NLANES: len(program.lanes), at.WINDOW: program.window, at.ROWS: program.rows.ctypes.data,
            at.SOURCES: program.sources.ctypes.data, at.LANES: program.lanes.ctypes.data,
            at.PLACES: self._places.ctypes.data, at.REQUESTS: self._requests.ctypes.data,
            at.REQUESTS_PER_LANE: program.nrequests, at.REQUEST_NBYTES: library.request_nbytes,
            at.SCRATCH_PER_LANE: program.scratch_nbytes, at.LANDED: self._landed.ctypes.data, at.SLOTS: program.nslots,
            at.STREAM: stream.address if stream else 0, at.COMM: comm, at.TAG: tag, at.BYTE: library.byte,
            at.STATUS_IGNORE: library.status_ignore, at.ISEND: library.isend, at.IRECV: library.irecv,
            at.TEST: library.test, at.KERNEL: kernel, at.MEMCPY: function_address("memcpy"),
            at.SCHED_YIELD: function_address("sched_yield"), at.USLEEP: function_address("usleep"),
            at.CLOCK_GETTIME: function_address("clock_gettime"), at.STAGING_OF_LANE: program.staging_nbytes,
            at.TRUNCATED: library.truncated, at.LOCK: lock.ctypes.data, at.ACCOUNT: account.ctypes.data,
            at.SPINS: patience.spins, at.YIELDS: patience.spins + patience.yields,
        }  # fmt: skip
        if uncached:
            self._block = np.empty(at.BLOCK_NBYTES + 64, np.uint8)
            fields[at.BLOCK] = -(-self._block.ctypes.data // 64) * 64
        for field, value in fields.items():
            self.state[field] = value
        self.address = self.state.ctypes.data

    def bind_scratch(self, memory: np.ndarray) -> None:
        """Use ``scratch_nbytes + 64`` bytes or more of memory, which engines that never run at once may share."""
        self._scratch = memory
        self.state[at.SCRATCH] = -(-memory.ctypes.data // 64) * 64

    def bind_copy(self, nbytes: int) -> None:
        """Copy so many bytes of INPUT at the start of each run."""
        self._copy = np.empty(nbytes, np.uint8)
        self.state[at.COPY], self.state[at.COPY_NBYTES] = self._copy.ctypes.data, nbytes

    def bind_request(self, cell: int, null: int, stand_in: int, nbytes: int) -> None:
        """Let `hpcoll.engines.progress.start` read and write a persistent request's handle.

        Args:
            cell: Address of the handle.
            null, stand_in: Of no request, and of a completed one.
            nbytes: Size of a handle, 4 or 8.
        """
        values = np.array([cell, null, stand_in], np.uint64).view(np.int64)
        self.state[at.CELL], self.state[at.NULL], self.state[at.STAND_IN] = values
        self.state[at.HANDLE_MASK] = -1 if nbytes == 8 else (1 << 32) - 1

    def go_on(self, status: int) -> None:
        """Run to the end what has begun.

        Args:
            status: What `hpcoll.engines.walk.run` answered, not `DONE`.
        Raises:
            TransportError: the MPI library returned an error; messages may be left under way.
        """
        while status == PENDING:
            status = cross(RUN, self.address, 0, 0, 0)
        if status == FAILED:
            raise TransportError(f"MPI failed with error code {self.error}", code=self.error)

    @property
    def error(self) -> int:
        """The MPI library's error code of a run that failed."""
        return int(self.state[at.ERROR])
