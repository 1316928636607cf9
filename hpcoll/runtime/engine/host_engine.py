"""The host engine: a program bound to a communicator, a kernel and scratch, which the interpreter runs."""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import HpcollError, TransportError
from hpcoll.base.sizes import Multiples, Number, Size, Sizes, int_value
from hpcoll.runtime.engine.entry import advance_address, advance_noting_address, call_compiled
from hpcoll.runtime.engine.wait_policy import WaitPolicy
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program.layouts import UNMAPPED, Maps, addresses
from hpcoll.runtime.program.opcodes import CACHE_LINE_NBYTES, Code, Program, Traffic, aligned, memory_traffic
from hpcoll.runtime.telemetry.call_log import CallLog
from hpcoll.runtime.transports.mpi import Library, Tags, cancel, function_address, last_tag
from hpcoll.runtime.transports.rings import Rings


class Shape(NamedTuple):
    """The counts that a program was lowered from, and numbers that depend on them."""

    sizes: Sizes
    elements: Number  # of the message, for texts
    nbytes: Number  # for the ledger
    counted: Number  # one number for all counts, by which ranks compare them
    copied: Number = 0  # bytes of INPUT that are copied at the start of each run


_PLACES = np.array(
    [f.ROWS, f.SOURCES, f.LANES, f.WINDOW_SLOTS, f.LANDED, f.REQUESTS, f.COUNTS, f.RECORDS, f.RECORDS_END]
)
_ANY = 1 << 62  # bytes of scratch that are as good as there


def _sized(program: Program, shape: Shape | None) -> dict[int, Number]:
    """Return the fields of an engine's state that depend on counts."""
    fields = {f.SCRATCH_PER_LANE: program.scratch_nbytes, f.STAGING_OF_LANE: program.staging_nbytes}
    if shape is None:
        return fields
    return fields | {
        f.NCOUNTS: len(shape.sizes.given),
        f.ELEMENTS: shape.elements,
        f.LEDGER_NBYTES: shape.nbytes,
        f.COUNTED: shape.counted,
        f.COPY_NBYTES: shape.copied,
    }


class Binding(NamedTuple):
    """The communicator, kernel and memory to which a program is bound: engines of one program differ in them."""

    comm: int  # handle of the communicator on which the messages travel; nothing else may use it
    lock: np.ndarray  # int64; 1 while the engine runs. Engines that may not run at once share one
    account: np.ndarray  # int64, as `hpcoll.comm.plans.ledger.Account.sums`
    kernel: int = 0  # address of the reduction kernel, or 0 when the program has no reductions
    rings: Rings | None = None  # for messages to local peers
    log: CallLog | None = None  # of the calls on its message context; None: they are not noted
    tags: Tags = Tags()  # of that message context
    uncached: bool = False  # results are written past the caches, because they would not stay there anyway


class HostEngine:
    """A program bound to a communicator, a kernel and scratch; ``shape`` is None where it is for the counts of one call."""

    def __init__(
        self,
        program: Program,
        library: Library,
        wait_policy: WaitPolicy,
        binding: Binding,
        shape: Shape | None = None,
    ) -> None:
        nsources = int(program.rows[program.rows[:, f.CODE] == Code.REDUCE, f.NSOURCES].max(initial=0))
        if binding.rings is not None:
            assert int_value(program.staging_nbytes) <= binding.rings.capacity, (
                program.staging_nbytes,
                binding.rings.capacity,
            )
        self.wait_policy = wait_policy
        self.program, self._nstate = program, f.OPERANDS + nsources
        self._bind_words(self._laid_out(library, shape))
        fields = {
            f.NLANES: len(program.lanes),
            f.WINDOW: program.window,
            f.REQUESTS_PER_LANE: program.nrequests,
            f.REQUEST_NBYTES: library.request_nbytes,
            f.NMESSAGES: program.nmessages,
            f.BYTE: library.byte,
            f.ISEND: library.isend,
            f.IRECV: library.irecv,
            f.TEST: library.test,
            f.IPROBE: library.iprobe,
            f.GET_COUNT: library.get_count,
            f.LAST_TAG: last_tag(),
            f.MEMCPY: function_address("memcpy"),
            f.MADVISE: function_address("madvise"),
            f.SCHED_YIELD: function_address("sched_yield"),
            f.USLEEP: function_address("usleep"),
            f.CLOCK_GETTIME: function_address("clock_gettime"),
            f.TRUNCATED: library.truncated,
            f.PROCESS_VM_READV: function_address("process_vm_readv"),
            f.ERRNO_LOCATION: function_address("__errno_location"),
            f.SPINS: wait_policy.spins,
            f.STAYS: wait_policy.stays,
            f.YIELDS: wait_policy.stays + wait_policy.yields,
            f.LINGERS: wait_policy.lingers,
        }
        for field, value in (fields | _sized(program, shape)).items():
            self.state[field] = int_value(value)
        self._bind(binding)

    def _laid_out(self, library: Library, shape: Shape | None) -> np.ndarray:
        """Return its memory: the state and behind it its tables, whose places count from the state's start on."""
        program, window = self.program, self.program.window
        request = np.dtype(f"u{library.request_nbytes}")
        nrequests = aligned(max(1, window * program.nrequests), 8 // request.itemsize)
        parts = {
            f.ROWS: program.rows,
            f.SOURCES: program.sources,
            f.LANES: program.lanes,
            f.WINDOW_SLOTS: np.zeros(2 * window, np.int64),
            f.LANDED: np.zeros(window * program.nmessages, np.int64),
            f.REQUESTS: np.full(nrequests, library.request_null, request).view(np.int64),
            f.COUNTS: np.array(shape.sizes.values if shape else [], np.int64),
            f.RECORDS: self._records(shape),
        }
        words = np.concatenate([np.zeros(self._nstate, np.int64), *(part.ravel() for part in parts.values())])
        words[[*parts, f.RECORDS_END]] = 8 * np.cumsum(
            [self._nstate, *(part.size for part in parts.values())]
        )
        return words

    def _records(self, shape: Shape | None) -> np.ndarray:
        """Return the records of `hpcoll.base.sizes` for `interpreter.resize`; none where the program is for one call's counts."""
        program = self.program
        if shape is None:
            return np.zeros(0, np.int64)
        needed = program.window * program.scratch_nbytes + CACHE_LINE_NBYTES
        sizes = [
            *((size, self._nstate + at) for size, at in program.symbols),
            *((size, at) for at, size in _sized(program, shape).items()),
        ]
        stores = [(size, 8 * at) for size, at in sizes if isinstance(size, (Size, Multiples))]
        return np.array(
            shape.sizes.code([(needed, 8 * f.ROOM), (shape.copied, 8 * f.COPY_ROOM)], stores), np.int64
        )

    def _bind_words(self, words: np.ndarray) -> None:
        """Use memory that is laid out, and turn its places, which count from its start, into addresses."""
        self._words, self.state, self.address = words, words[: self._nstate], words.ctypes.data
        words[_PLACES] += self.address

    def _bind(self, binding: Binding) -> None:
        self.lock, self.account, self.rings, state = binding.lock, binding.account, binding.rings, self.state
        state[f.COMM], state[f.LOCK], state[f.ACCOUNT] = (
            binding.comm,
            self.lock.ctypes.data,
            self.account.ctypes.data,
        )
        state[f.KERNEL], state[f.RINGS] = binding.kernel, self.rings.address if self.rings else 0
        self.log, state[f.LOG] = binding.log, binding.log.address if binding.log else 0
        state[f.ADVANCE] = (
            advance_noting_address() if binding.log and binding.log.steps is not None else advance_address
        )
        state[f.TAG], state[f.TAG_STEP], state[f.TAG_CHECKS] = binding.tags
        state[f.CHECKED_TAG], state[f.STATUS_AT] = state[f.TAG], self.address + 8 * f.STATUS
        self._block = np.empty(f.BLOCK_NBYTES + CACHE_LINE_NBYTES, np.uint8) if binding.uncached else None
        state[f.BLOCK] = 0 if self._block is None else aligned(self._block.ctypes.data)
        self.bind_copy(int(state[f.COPY_NBYTES]))

    def another(self, counts: int, binding: Binding) -> "HostEngine | None":
        """Return an engine of the same program for counts at an address; None where it does not hold for them. This one has not run."""
        made = type(self).__new__(type(self))
        vars(made).update(vars(self))
        words = self._words.copy()
        words[_PLACES] -= self.address
        made._bind_words(words)
        made.state[f.ROOM] = made.state[f.COPY_ROOM] = _ANY
        if call_compiled(f.RESIZE, made.address, counts, 0, 0) != f.DONE:
            return None
        made._bind(binding)
        return made

    @property
    def scratch_nbytes(self) -> int:
        """Bytes of scratch that `bind_scratch` needs by now."""
        return int(self.program.window * self.state[f.SCRATCH_PER_LANE]) + CACHE_LINE_NBYTES

    def bind_counts(self, elements: int, nbytes: int, counted: int, copied: int) -> None:
        """Set the numbers of a `Shape` in a program that is for one call's counts."""
        self.state[f.ELEMENTS], self.state[f.LEDGER_NBYTES], self.state[f.COUNTED] = elements, nbytes, counted
        self.bind_copy(copied)

    def make_room(self) -> int:
        """Make room for the copy of INPUT after `NO_ROOM`; return bytes of scratch that are needed now, or 0."""
        needed = int(self.state[f.NEEDED])
        if needed <= self.state[f.ROOM]:
            self.bind_copy(needed)
            return 0
        return needed

    @property
    def elements(self) -> int:
        """Elements of the latest call's message."""
        return int(self.state[f.ELEMENTS])

    @property
    def signed(self) -> tuple[int, int]:
        """The signature and the number for the latest call's counts, from which the checks of its messages are made."""
        return int(self.state[f.SIGNATURE]), int(self.state[f.COUNTED] * self.state[f.SIGNED])

    @property
    def ledger_nbytes(self) -> int:
        """Bytes of the latest call's message, for the ledger."""
        return int(self.state[f.LEDGER_NBYTES])

    @property
    def elapsed_ns(self) -> int:
        """Nanoseconds of the latest call in flight; its end was the last to read the engine's clock."""
        return 10**9 * int(self.state[f.CLOCK]) + int(self.state[f.CLOCK_NS] - self.state[f.STARTED])

    def traffic(self) -> Traffic:
        """Return the bytes that the latest call moved on this rank."""
        nrows, nlanes, copied = (
            len(self.program.rows),
            int(self.state[f.NLANES]),
            int(self.state[f.COPY_NBYTES]),
        )
        least = self._least_in_place(f.WHERE_INPUT), self._least_in_place(f.WHERE_OUTPUT)
        moved = memory_traffic(
            self.numbers(f.ROWS, nrows, f.NCOLUMNS), self.numbers(f.LANES, nlanes, 3), least
        )
        more = copied + int(self.state[f.REREAD])
        return Traffic(moved.read + more, moved.written + more, moved.given)

    def _least_in_place(self, where: int) -> int | None:
        """Return the bytes from which on peers read messages of a buffer in place; None: never."""
        if self.rings is None or self.state[where] < 0:
            return None
        return (
            int(self.rings.fields[f.READ_FROM]) if self.state[where] >= f.OWN_MEMORY << f.OFFSET_BITS else 0
        )

    def numbers(self, field: int, nrows: int, ncolumns: int) -> np.ndarray:
        """Return a table of its memory by the field that has its address."""
        at = (int(self.state[field]) - self.address) // 8
        return self._words[at : at + nrows * ncolumns].reshape(nrows, ncolumns)

    def take(self, taken: bool = True) -> None:
        """Note whether a request has the engine."""
        self.state[f.HELD] = taken

    def fresh(self, nbytes: int) -> Any:
        """Return new memory for `bind_scratch`."""
        return np.empty(nbytes, np.uint8)

    def bind_scratch(self, memory: np.ndarray) -> None:
        """Use `scratch_nbytes` or more of memory, which engines that never run at once may share."""
        self.scratch = memory
        self.state[f.SCRATCH], self.state[f.ROOM] = aligned(memory.ctypes.data), memory.nbytes

    def sign(self, signature: int, signed: int) -> None:
        """Set the signature that peers compare (`hpcoll.comm.plans.signature`)."""
        self.state[f.SIGNATURE], self.state[f.SIGNED] = signature, signed

    def sign_as(self, other: "HostEngine") -> None:
        """Let messages carry the check of another engine's calls, with the counts that it has now."""
        self.state[f.SIGNATURE : f.COUNTED + 1] = other.state[f.SIGNATURE : f.COUNTED + 1]
        self.state[f.ELEMENTS] = other.state[f.ELEMENTS]

    def bind_cells(self, sent: int, received: int, nbytes: int) -> None:
        """Let messages be as long as their cells say, of which there are so many in INPUT and OUTPUT, of ``nbytes`` at most."""
        assert len(self.program.lanes) == 1  # which has whole cells
        self.state[f.FORM : f.CELL_NBYTES + 1] = f.CELLS, sent, received, nbytes
        self.state[f.LEDGER_NBYTES] = 0  # what cells hold is counted

    def go_on_with(self, other: "HostEngine") -> None:
        """Let runs be parts of the latest call of another engine."""
        self.state[f.FORM] = f.PART
        self.state[f.SIGNATURE : f.CHECKED_TAG + 1] = other.state[f.SIGNATURE : f.CHECKED_TAG + 1]
        self.state[f.ACCOUNT] = other.state[f.ACCOUNT]

    def bind_maps(self, maps: Maps) -> None:
        """Let the next calls work on buffers that lie in memory as maps say; all calls of an engine have some, or none has."""
        if maps is not UNMAPPED:
            self._maps, self._bounce = maps, np.empty(f.BOUNCE_NBYTES, np.uint8)
            self.state[[f.INPUT_MAP, f.OUTPUT_MAP, f.BOUNCE]] = *addresses(maps), self._bounce.ctypes.data

    def bind_lock(self, lock: np.ndarray) -> None:
        """Use a lock that is another than the one it was made with."""
        self.lock, self.state[f.LOCK] = lock, lock.ctypes.data

    def bind_copy(self, nbytes: int) -> None:
        """Make room for the copy of INPUT at the start of each run."""
        self._copy = np.empty(nbytes, np.uint8)
        self.state[f.COPY], self.state[f.COPY_ROOM], self.state[f.COPY_NBYTES] = (
            self._copy.ctypes.data,
            nbytes,
            nbytes,
        )

    def bind_request(self, cell: int, null: int, stand_in: int, nbytes: int) -> None:
        """Let `compiled.progress.start` read and write a persistent request's handle of 4 or 8 bytes, at the address ``cell``.

        ``null`` and ``stand_in`` are handles of no request, and of a completed one.
        """
        self.state[f.CELL], self.state[f.NULL], self.state[f.STAND_IN] = cell, null, stand_in
        self.state[f.HANDLE_MASK] = -1 if nbytes == 8 else (1 << 32) - 1

    def unbind_request(self) -> None:
        """Forget the persistent request."""
        self.state[f.CELL] = 0

    def bind_watched(self, request: int, status: int) -> None:
        """Let the program's WAIT 0 be for a request made elsewhere; addresses of its handle and of its status."""
        self.state[f.REQUESTS], self.state[f.STATUS_AT] = request, status

    def go_on(self, status: int, look: Callable[[], None] = lambda: None) -> None:
        """Run a call that has begun to its end, behind an answer of `compiled.interpreter.run`; ``look`` is called while nothing moves.

        Raises:
            TransportError: the MPI library returned an error; messages may be left under way.
            DeviceError: the GPU failed; likewise.
        """
        while status == f.PENDING:
            look()
            status = call_compiled(f.RUN, self.address, 0, 0, f.GO_ON)
        if status == f.FAILED:
            raise self.failure()

    def unmet(self) -> set[int]:
        """Return the ranks for which work outside the program's rows waits."""
        return set()

    def stop(self, most_s: float) -> bool:
        """Cancel the messages of a run that failed, or wait for them for a time; say whether none is under way any more."""
        rows = self.numbers(f.ROWS, len(self.program.rows), f.NCOLUMNS)
        kinds = {
            int(row[f.REQUEST]): int(row[f.CODE]) for row in rows if row[f.CODE] in (Code.SEND, Code.RECV)
        }
        if not kinds or MPI.Is_finalized():
            return True
        nrequests, n = self.program.window * self.program.nrequests, self.program.nrequests
        nbytes = int(self.state[f.REQUEST_NBYTES])
        requests = self.numbers(f.REQUESTS, -(-nrequests * nbytes // 8), 1).ravel().view(f"u{nbytes}")
        return cancel(requests, [i for i in range(nrequests) if kinds.get(i % n) == Code.RECV], most_s)

    def failure(self) -> HpcollError:
        """Return the error that a run which failed raises."""
        code, came, awaited = map(int, self.state[[f.ERROR, f.CAME, f.AWAITED]])
        if code == f.FULL:
            text = "the system has no more shared memory for messages between ranks of a node (/dev/shm)"
        elif code >= f.UNREADABLE:
            peer, number = divmod(code - f.UNREADABLE, 1 << 16)
            why = os.strerror(number)
            text = f"the memory of local rank {peer} cannot be read ({why}): it has ended, or freed what it sends"
        elif code in (f.MISMATCH, f.ALARMED, f.GIVEN_UP):
            text = "ranks gave up"
        else:
            text = MPI.Get_error_string(code)
            if came != awaited and self.truncated:
                what = "more bytes than expected," if came == f.MORE else f"{came} bytes, expected"
                text += f"; from another rank came {what} {awaited}"
        return TransportError(text, code=code)

    @property
    def truncated(self) -> bool:
        """Say whether a run failed because a message was of another length."""
        return 0 < self.error < f.UNMAPPED and MPI.Get_error_class(self.error) == MPI.ERR_TRUNCATE

    @property
    def error(self) -> int:
        """The error code of a run that failed: the MPI library's, or one of `hpcoll.runtime.program.fields`."""
        return int(self.state[f.ERROR])
