"""The host engine: a program bound to a communicator, a kernel and scratch, which the interpreter runs."""

from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import HpcollError, TransportError
from hpcoll.base.sizes import Number, Size, Sizes, int_value
from hpcoll.runtime.engine.c_library import function_address
from hpcoll.runtime.engine.entry import RUN, call_compiled
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program.fields import FAILED, GO_ON, PENDING
from hpcoll.runtime.program.opcodes import CACHE_LINE_NBYTES, Code, Program, Symbol, aligned
from hpcoll.runtime.transports.mpi import Library, last_tag
from hpcoll.runtime.transports.rings import Rings


class WaitPolicy(NamedTuple):
    """How a rank waits: passes without progress that it spins, then passes in which it yields the processor; then it sleeps."""

    spins: int
    yields: int


OWN_CORE = WaitPolicy(200, 2000)  # a core of its own
SHARED_CORE = WaitPolicy(5, 200)  # more ranks than cores: whoever is waited for may need this core


class Shape(NamedTuple):
    """The counts that a program was lowered from, and what else depends on them.

    Attributes:
        sizes: The variables.
        elements, nbytes: Of the message, for texts and for the ledger.
        copied: Bytes of INPUT that are copied at the start of each run.
    """

    sizes: Sizes
    elements: Number
    nbytes: Number
    copied: Number = 0


class HostEngine:
    """A program bound to a communicator, a kernel and scratch: ready to run on any buffers of its sizes.

    Args:
        program: What to run.
        library: The MPI library.
        comm: Handle of the communicator on which the messages travel; nothing else may use it.
        kernel: Address of the reduction kernel, or 0 when the program has no reductions.
        wait_policy: How a rank waits.
        lock, account: See below.
        rings: What carries messages to local peers; None when the program has none.
        tag: First of as many tags as the program has window slots.
        uncached: Whether results are written past the caches, because they would not stay there anyway.
        shape: Of a program that was lowered from symbolic sizes; None: there are no others.

    Attributes:
        scratch_nbytes: Memory that `bind_scratch` takes, by now.
        lock: int64; 1 while the engine runs. Engines that may not run at once share one.
        account: int64: calls, nanoseconds in them, bytes.
    """

    def __init__(
        self, program: Program, library: Library, comm: int, kernel: int, wait_policy: WaitPolicy, lock: np.ndarray, account: np.ndarray,
        rings: Rings | None = None, tag: int = 0, uncached: bool = False, shape: Shape | None = None,
    ) -> None:  # fmt: skip
        nsources = int(program.rows[program.rows[:, f.CODE] == Code.REDUCE, f.NSOURCES].max(initial=0))
        assert rings is None or int_value(program.staging_nbytes) <= rings.capacity, (program.staging_nbytes, rings.capacity)
        self.state = np.zeros(f.OPERANDS + nsources, np.int64)
        self.program, self.rings, self.lock, self.account = program, rings, lock, account
        self._window_slots = np.zeros(2 * program.window, np.int64)
        request = np.dtype(f"u{library.request_nbytes}")
        self._requests = np.full(max(1, program.window * program.nrequests), library.request_null, request)
        self._landed = np.zeros(program.window * program.nmessages, np.int64)
        fields = {
            f.NLANES: len(program.lanes), f.WINDOW: program.window, f.ROWS: program.rows.ctypes.data,
            f.SOURCES: program.sources.ctypes.data, f.LANES: program.lanes.ctypes.data,
            f.WINDOW_SLOTS: self._window_slots.ctypes.data, f.REQUESTS: self._requests.ctypes.data,
            f.REQUESTS_PER_LANE: program.nrequests, f.REQUEST_NBYTES: library.request_nbytes,
            f.SCRATCH_PER_LANE: int_value(program.scratch_nbytes), f.LANDED: self._landed.ctypes.data, f.NMESSAGES: program.nmessages,
            f.RINGS: rings.address if rings else 0, f.COMM: comm, f.TAG: tag, f.BYTE: library.byte,
            f.STATUS_IGNORE: library.status_ignore, f.ISEND: library.isend, f.IRECV: library.irecv,
            f.TEST: library.test, f.IPROBE: library.iprobe, f.LAST_TAG: last_tag(), f.KERNEL: kernel,
            f.MEMCPY: function_address("memcpy"), f.MADVISE: function_address("madvise"),
            f.SCHED_YIELD: function_address("sched_yield"), f.USLEEP: function_address("usleep"),
            f.CLOCK_GETTIME: function_address("clock_gettime"), f.STAGING_OF_LANE: int_value(program.staging_nbytes),
            f.TRUNCATED: library.truncated, f.LOCK: lock.ctypes.data, f.ACCOUNT: account.ctypes.data,
            f.SPINS: wait_policy.spins, f.YIELDS: wait_policy.spins + wait_policy.yields,
        }  # fmt: skip
        if uncached:
            self._block = np.empty(f.BLOCK_NBYTES + CACHE_LINE_NBYTES, np.uint8)
            fields[f.BLOCK] = aligned(self._block.ctypes.data)
        for field, value in fields.items():
            self.state[field] = value
        self.address = self.state.ctypes.data
        self._shape = shape
        if shape is not None:
            self._bind_shape(shape)

    def _bind_shape(self, shape: Shape) -> None:
        """Let `hpcoll.runtime.engine.resize` write what depends on counts."""
        program, state, address = self.program, self.state, self.address
        needed = program.window * program.scratch_nbytes + CACHE_LINE_NBYTES
        fields = {
            f.SCRATCH_PER_LANE: program.scratch_nbytes, f.STAGING_OF_LANE: program.staging_nbytes, f.ELEMENTS: shape.elements,
            f.LEDGER_NBYTES: shape.nbytes, f.COPY_NBYTES: shape.copied,
        }  # fmt: skip
        symbols = [*program.symbols, *(Symbol(size, address + 8 * field) for field, size in fields.items() if isinstance(size, Size))]
        for field, size in fields.items():
            state[field] = int_value(size)
        self._records = shape.sizes.code([(needed, address + 8 * f.ROOM), (shape.copied, address + 8 * f.COPY_ROOM)], symbols)
        self._counts = np.array(shape.sizes.values, np.int64)
        state[f.COUNTS], state[f.NCOUNTS] = self._counts.ctypes.data, len(shape.sizes.given)
        state[f.RECORDS] = self._records.ctypes.data
        state[f.RECORDS_END] = state[f.RECORDS] + self._records.nbytes
        self.bind_copy(int(state[f.COPY_NBYTES]))

    @property
    def scratch_nbytes(self) -> int:
        return int(self.program.window * self.state[f.SCRATCH_PER_LANE]) + CACHE_LINE_NBYTES

    def bind_counts(self, elements: int, nbytes: int, copied: int) -> None:
        """What `Shape` says, of a program that is for one call's counts."""
        self.state[f.ELEMENTS], self.state[f.LEDGER_NBYTES] = elements, nbytes
        self.bind_copy(copied)

    def make_room(self) -> int:
        """After `NO_ROOM`: see to the copy of INPUT; returns bytes of scratch that are needed now, or 0."""
        needed = int(self.state[f.NEEDED])
        if needed <= self.state[f.ROOM]:
            self.bind_copy(needed)
            return 0
        return needed

    @property
    def elements(self) -> int:
        """Of the message of the latest call."""
        return int(self.state[f.ELEMENTS])

    @property
    def ledger_nbytes(self) -> int:
        """Of that message, for the ledger."""
        return int(self.state[f.LEDGER_NBYTES])

    def take(self, taken: bool = True) -> None:
        """Note whether a request has it."""
        self.state[f.HELD] = taken

    def fresh(self, nbytes: int) -> Any:
        """New memory for `bind_scratch`."""
        return np.empty(nbytes, np.uint8)

    def bind_scratch(self, memory: np.ndarray) -> None:
        """Use ``scratch_nbytes`` or more of memory, which engines that never run at once may share."""
        self.scratch = memory
        self.state[f.SCRATCH], self.state[f.ROOM] = aligned(memory.ctypes.data), memory.nbytes

    def bind_copy(self, nbytes: int) -> None:
        """Have room to copy so many bytes of INPUT at the start of each run."""
        self._copy = np.empty(nbytes, np.uint8)
        self.state[f.COPY], self.state[f.COPY_ROOM], self.state[f.COPY_NBYTES] = self._copy.ctypes.data, nbytes, nbytes

    def bind_request(self, cell: int, null: int, stand_in: int, nbytes: int) -> None:
        """Let `hpcoll.runtime.engine.progress.start` read and write a persistent request's handle.

        Args:
            cell: Address of the handle.
            null, stand_in: Of no request, and of a completed one.
            nbytes: Size of a handle, 4 or 8.
        """
        values = np.array([cell, null, stand_in], np.uint64).view(np.int64)
        self.state[f.CELL], self.state[f.NULL], self.state[f.STAND_IN] = values
        self.state[f.HANDLE_MASK] = -1 if nbytes == 8 else (1 << 32) - 1

    def bind_watched(self, request: int, status: int) -> None:
        """Let the program's WAIT 0 be for a request made elsewhere; addresses of its handle and of what is told of it."""
        self.state[f.REQUESTS], self.state[f.STATUS_IGNORE] = request, status

    def go_on(self, status: int) -> None:
        """Run to the end what has begun.

        Args:
            status: What `hpcoll.runtime.engine.interpreter.run` answered, not `DONE`.
        Raises:
            TransportError: the MPI library returned an error; messages may be left under way.
            DeviceError: the GPU failed; likewise.
        """
        while status == PENDING:
            status = call_compiled(RUN, self.address, 0, 0, GO_ON)
        if status == FAILED:
            raise self.failure()

    def failure(self) -> HpcollError:
        """What a run that failed is to raise."""
        if self.error == f.FULL:
            return TransportError("the system has no more shared memory for messages between ranks of a node (/dev/shm)", code=self.error)
        came, awaited = int(self.state[f.CAME]), int(self.state[f.AWAITED])
        lengths = f"; from another rank of the node came {came} bytes, expected {awaited}" if came != awaited else ""
        return TransportError(MPI.Get_error_string(self.error) + lengths, code=self.error)

    @property
    def error(self) -> int:
        """The MPI library's error code of a run that failed."""
        return int(self.state[f.ERROR])
