"""The call cache: finds a call like an earlier one and runs its plan, in one crossing into compiled code.

Short calls spend most of their time in Python. So compiled code reads operator, element type, counts and contiguity from the objects
themselves, by their addresses. Where these are not laid out as expected (`hpcoll.runtime.engine.object_layout`), Python plans every call.
"""

import struct
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from mpi4py import MPI

from hpcoll.runtime.engine.object_layout import (
    HANDLE_AT,
    HANDLE_BITS,
    SUPPORTED,
    holder_of,
    structure_of,
    unit_of,
)
from hpcoll.runtime.program import call_fields as c
from hpcoll.runtime.program.fields import HISTORY
from hpcoll.runtime.program.layouts import UNMAPPED, Maps, addresses
from hpcoll.runtime.telemetry.call_log import CallLog
from hpcoll.runtime.transports.mpi import function_address, handle

MAX_ENTRIES = 32  # calls that a table holds
_FREE_MISSES = 16  # calls that are entered, though none that was entered last is found again
_SELDOM = (
    61  # of further ones every so many is entered; a prime: kinds of calls that take turns all have theirs
)
_UNUSED = -1
MAX_COUNT = 2**31 - 1  # of a vector or of a block of a call of the MPI library
_ENTRY = struct.Struct(f"{c.ENTRY}q")
_NOTHING = (0,) * (c.RECEIVED - c.SENT - 1)  # of a side behind its kind
_NO_PLACES = (0,) * (c.VALUE - c.HOLDER - 1)  # of a side that is an array


class BufferPattern(NamedTuple):
    """A pattern for one buffer of a call; its words are a side of an entry (`hpcoll.runtime.program.call_fields`)."""

    kind: int
    nbytes: int = 0  # sent or received
    writable: bool = False
    array: Any = None  # the array, or another holder of memory, or None
    length: int = 0
    type_at: int = -1
    type: object = None
    element: int = 1
    nblocks: int = 1
    typed: np.ndarray | None = None  # rows of blocks with datatypes of their own
    derived: tuple[
        int, ...
    ] = ()  # of a derived datatype: handle, bytes that travel, true lower and upper bounds; else none

    @property
    def size(self) -> int:
        """Bytes of an element that travel."""
        return self.derived[1] if self.derived else self.element

    @property
    def words(self) -> list[int]:
        """The pattern as words of an entry."""
        array = self.array
        if array is None:
            return [self.kind, *_NOTHING]
        bare = self.type_at < 0 and self.typed is None
        wanted = self.typed.ctypes.data if self.typed is not None else 0 if bare else id(self.type)
        flags = c.ALIGNED | c.WRITEABLE if self.writable else c.ALIGNED
        if isinstance(array, np.ndarray):  # of that type, or plain
            flags |= c.CONTIGUOUS if array.flags.c_contiguous else c.FORTRAN
            dtype, unit = id(array.dtype), array.itemsize
            held = (*_NO_PLACES, 0 if bare else structure_of(array.dtype), -1, 0)
        else:
            flags |= c.CONTIGUOUS
            dtype, unit, held = 0, unit_of(array), holder_of(array, bare)
        words = [
            self.kind,
            self.length,
            self.type_at,
            wanted,
            dtype,
            self.element,
            unit,
            flags,
            id(type(array)),
        ]
        return [*words, *held, *(self.derived or (0, self.element, 0, self.element)), self.nblocks]

    @property
    def owners(self) -> tuple[object, ...]:
        """The objects whose addresses are in `words`."""
        return self.type, self.typed, getattr(self.array, "dtype", None), type(self.array)


class CachedCall(NamedTuple):
    """An earlier call, and the engine, MPI function or plan that serves calls like it."""

    by: Any  # an engine or a `MpiCall`, or None where mpi4py must
    plan: Any
    # least and most counts for which it is chosen; with blocks of their own sizes, bytes
    cell: tuple[int, int] = (
        0,
        0,
    )
    count: int = 0  # type: ignore[assignment]  # hides tuple.count; 0 with blocks of their own sizes
    nbytes: int = 0  # for the ledger
    sizes: int = c.ALL_ALIKE
    unit: int = 1  # bytes in which blocks of their own sizes are counted
    maps: Maps = UNMAPPED  # of its buffers


class MpiCall:
    """A collective of the MPI library with all arguments but the buffers' addresses and the count.

    Types, counts and handles are kept from an earlier call: it is found and made in less time than mpi4py takes for its arguments.
    """

    def __init__(
        self,
        function_name: str,
        arguments: str,
        at_root: str,
        comm: MPI.Intracomm,
        root: int,
        datatype: MPI.Datatype,
        op: MPI.Op | None,
        in_place: bool,
        account: np.ndarray,
        nbytes: int,
        log: CallLog,
        method: int,
    ) -> None:
        """Bind a C function: ``arguments`` are the ``c_arguments`` of its row of methods, ``at_root`` and number ``method`` are the row's.

        An element counts ``nbytes`` in ``account``, a line of the ledger. The log notes that this rank is in the call.
        """
        send, recv = _roles(at_root, comm.Get_rank() == root, in_place)
        values: dict[str, Any] = {
            "type": handle(datatype),
            "op": 0 if op is None else handle(op),
            "root": root,
            "comm": handle(comm),
            "send": send,
            "recv": recv,
        }
        self._account, self._log = account, log
        self._words = np.zeros(c.FIRST + c.NARGUMENTS, np.int64)
        self._words[c.FUNCTION], self._words[c.ACCOUNT] = function_address(function_name), account.ctypes.data
        self._words[c.HISTORY], self._words[c.METHOD] = log.fields[HISTORY], method
        self._words[c.CLOCK_GETTIME] = function_address("clock_gettime")
        self._words[c.SOURCE_AT] = self._words[c.TARGET_AT] = -1
        places = {"source": c.SOURCE_AT, "target": c.TARGET_AT}
        for i, name in enumerate(arguments.split()):
            if name == "count":
                self._words[c.COUNTS_AT] |= 1 << i
            elif values[name] in places:
                self._words[places[values[name]]] = i
            else:
                self._words[c.FIRST + i] = values[name]
        self._words[c.ELEMENT_NBYTES] = nbytes
        self.address = self._words.ctypes.data  # for `call_mpi`

    @property
    def error(self) -> int:
        """The latest error code of the MPI library."""
        return int(self._words[c.ERROR])


def _roles(at_root: str, is_root: bool, in_place: bool) -> tuple[str | int, str | int]:
    """Return the two buffers of the C function: ``source`` or ``target`` of `call_lookup.run_cached`, or a constant."""
    constant = int(MPI.IN_PLACE)
    if at_root == "recvbuf" and not is_root:
        return "target", 0
    if at_root == "sendbuf":
        return (("target", constant) if in_place else ("source", "target")) if is_root else (0, "target")
    return constant if in_place else "source", "target"


class CallTable:
    """Calls of one method with one set of keywords, for `hpcoll.runtime.engine.compiled.call_lookup.run_cached`.

    ``closed``: it takes no more calls. ``nblocks``: most blocks of a buffer.
    ``starts`` is the address of `hpcoll.comm.plans.plan.MessageContext.tickets` where calls are started only, to be in flight; else 0.
    """

    def __init__(self, rank: int, nblocks: int, starts: int) -> None:
        self._words = np.zeros(c.ENTRIES + MAX_ENTRIES * c.ENTRY, np.int64)
        self._room = np.zeros(5 * nblocks + 2, np.int64)
        self._kept: list[object] = []  # arrays that lists named, of calls that have not ended
        fields = {
            c.RANK: rank,
            c.STARTS: starts,
            c.COUNTS: self._room.ctypes.data,
            c.ARRAY: id(np.ndarray),
            c.LIST: id(list),
            c.TUPLE: id(tuple),
            c.INT: id(int),
            c.KEPT: id(self._kept),
            c.NONE: id(None),
            c.IN_PLACE: id(MPI.IN_PLACE),
            c.INT64: id(np.int64),
            c.INT64_DTYPE: id(np.dtype(np.int64)),
            c.INT32_DTYPE: id(np.dtype(np.int32)),
            c.HANDLE_AT: HANDLE_AT,
            c.HANDLE_BITS: HANDLE_BITS,
        }
        for field, value in fields.items():
            self._words[field] = value
        self.address, self.starts = self._words.ctypes.data, bool(starts)
        self._numbers = memoryview(self._words)  # type: ignore[arg-type]  # the same numbers, at a third of the price
        self.calls: list[CachedCall] = []
        self._keep: list[tuple[object, ...]] = []
        self._entries = self._numbers[c.ENTRIES :].cast("B")
        self._rows: dict[bytes, list[int]] = {}  # by all of an entry but its counts
        self._misses, self._newest, self.closed = 0, 0, False

    def wants_more(self) -> bool:
        """Say whether a call that was not found is to be entered, which takes far longer than to run it.

        While none of those that were entered last is found again, few are.
        """
        if self.closed:
            return False
        self._misses = 1 if self._numbers[c.LATEST] == self._newest else self._misses + 1
        self._numbers[c.LATEST] = _UNUSED
        return self._misses <= _FREE_MISSES or self._misses % _SELDOM == 0

    @property
    def latest(self) -> CachedCall:
        """The entry of the call that `run_cached` found last."""
        return self.calls[self._numbers[c.LATEST]]

    @property
    def nbytes(self) -> int:
        """Bytes, for the ledger, of the call that `run_cached` found last."""
        served = self.latest
        return (
            self._numbers[c.COUNT] * (served.nbytes // served.count)
            if served.count
            else self._numbers[c.COUNT]
        )

    def take_kept(self) -> list[object]:
        """Return the arrays that lists named in calls that `run_cached` has not ended; whoever ends these holds them."""
        kept = self._kept.copy()
        self._kept.clear()
        return kept

    @property
    def waiting(self) -> tuple[int, int, int]:
        """Addresses of the two buffers, and of the counts, of the call that `run_cached` has found but not started."""
        return self._numbers[c.SOURCE], self._numbers[c.TARGET], self._numbers[c.COUNTS]

    def enter(self, op: object, sent: BufferPattern, received: BufferPattern, served: CachedCall) -> None:
        """Add a call, by the operator as the caller gives it, or None, and patterns of its buffers."""
        alike = served.sizes == c.ALL_ALIKE
        sent_stride = _stride(sent, served.count) if alike else served.unit
        stride = _stride(received, served.count) if alike else served.unit
        if not SUPPORTED or sent_stride is None or stride is None:
            return
        by, (least, most) = served.by, served.cell if served.count or served.sizes else (0, 0)
        address = 0 if by is None else -by.address if isinstance(by, MpiCall) else by.address
        op_handle = 0 if not isinstance(op, MPI.Op) or op.is_predefined else handle(op)
        head = id(op), address, least, most, sent_stride, stride, served.sizes, *addresses(served.maps)
        entry = _ENTRY.pack(*head, op_handle, *sent.words, *received.words)
        if len(self.calls) == MAX_ENTRIES:
            self.clear()
        kind = entry[: 8 * c.LEAST] + entry[8 * (c.MOST + 1) :]
        self._newest = self._widened(kind, least, most)
        if self._newest == len(self.calls):
            at = _ENTRY.size * self._newest
            self._entries[at : at + _ENTRY.size] = entry
            self._keep.append((op, *sent.owners, *received.owners))
            self.calls.append(served)
            self._rows.setdefault(kind, []).append(self._newest)
            self._numbers[c.NENTRIES] = len(self.calls)

    def _widened(self, kind: bytes, least: int, most: int) -> int:
        """Return the row that serves calls of a kind and of these counts: one for the counts right below or above, now for these too.

        Where there is none, it is that of an entry to come.
        """
        for row in self._rows.get(kind, ()):
            at, numbers = c.ENTRIES + c.ENTRY * row, self._numbers
            if least <= numbers[at + c.MOST] + 1 and numbers[at + c.LEAST] <= most + 1:
                numbers[at + c.LEAST] = min(least, numbers[at + c.LEAST])
                numbers[at + c.MOST] = max(most, numbers[at + c.MOST])
                return row
        return len(self.calls)

    def clear(self) -> None:
        """Forget all calls."""
        self._numbers[c.NENTRIES] = 0
        self.calls.clear()
        self._keep.clear()
        self._rows.clear()


def _stride(side: BufferPattern, count: int) -> int | None:
    """Return the bytes of a side per count; None where that is no whole number."""
    if side.array is None:
        return 0
    stride, rest = divmod(side.nbytes, count) if count else (side.size, side.nbytes)
    return None if rest or not stride else stride


# Method, root where it tells one call from another, algorithm, segment, and order of a reduction. The method alone stands for root 0 and
# none of the others.
Key: TypeAlias = str | tuple[str, Any, Any, Any, Any]


def whole(key: Key) -> tuple[str, Any, Any, Any, Any]:
    """Return a key with all its parts."""
    return (key, 0, None, None, None) if isinstance(key, str) else key


@cache
def no_calls() -> CallTable:
    """Return a table in which nothing is ever found."""
    return CallTable(0, 1, 0)


class CallCache(dict[Key, int]):
    """The address of the table of calls for each key; arguments as `CallTable`.

    ``plain`` and ``ordered`` have some of them by method: those of calls with root 0 and no keyword, and with ``order="rank"`` besides.
    Python finds an address in these in half the time. Before a method's first call that is of a table without calls.
    """

    def __init__(self, rank: int, nblocks: int, starts: int = 0, methods: Iterable[str] = ()) -> None:
        self.tables: dict[tuple[str, Any, Any, Any, Any], CallTable] = {}
        self._who = rank, nblocks, starts
        self.plain = dict.fromkeys(methods, no_calls().address)
        self.ordered = self.plain.copy()
        self._quick = {(0, None, None, None): self.plain, (0, None, None, "rank"): self.ordered}

    def __missing__(self, key: Key) -> int:
        self[key] = self.table(key).address
        return self[key]

    def table(self, key: Key) -> CallTable:
        """Return the table of a key, made when first asked for."""
        parts = whole(key)
        if parts not in self.tables:
            self.tables[parts] = made = CallTable(*self._who)
            if parts[1:] in self._quick:
                self._quick[parts[1:]][parts[0]] = made.address
        return self.tables[parts]

    def forget(self) -> None:
        """Forget all calls."""
        for table in self.tables.values():
            table.clear()

    def change_hands(self, tied: Callable[[str], bool]) -> None:
        """Serve another communicator of the same ranks: forget the calls of methods that are tied to one, and those of the MPI library."""
        for (method, *_), table in self.tables.items():
            table.closed = False
            if tied(method) or any(isinstance(served.by, MpiCall) for served in table.calls):
                table.clear()
