"""The call cache: finds a call like an earlier one and runs its plan, in one crossing into compiled code.

Short calls spend most of their time in Python; so what tells one call from another (operator, element type, counts, contiguity) is
read from the array objects themselves, by their addresses. Their layout is part of NumPy's binary interface; `SUPPORTED` says
whether this interpreter and this NumPy keep to it, and where they do not, every call is planned in Python.
"""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.runtime.engine.mpi_collectives import MpiCall
from hpcoll.runtime.program import call_fields as c

MAX_ENTRIES = 32  # calls that a table holds


class CallTable:
    """Calls of one method with one set of keywords.

    Attributes:
        address: For `hpcoll.runtime.engine.call_lookup.run_cached`.
        plans: Of what was entered, in the order of the entries.
    """

    def __init__(self) -> None:
        self._words = np.zeros(4 + MAX_ENTRIES * c.ENTRY, np.int64)
        self._words[2:4] = id(np.ndarray), id(MPI.IN_PLACE)
        self.address = self._words.ctypes.data
        self.plans: list[object] = []
        self._keep: list[tuple[Any, object, np.dtype]] = []

    @property
    def latest(self) -> tuple[Any, Any]:
        """The plan of the entry that `run_cached` found last, and what runs it."""
        row = self._words[1]
        return self.plans[row], self._keep[row][0]

    def enter(self, op: object, buffers: Sequence[Any], engine: Any, plan: object) -> None:
        """Add a call, unless its arguments cannot be told by what `run_cached` looks at.

        Args:
            op: The operator as the caller gives it, or None.
            buffers: What is sent, or ``MPI.IN_PLACE``, and what is received.
            engine: What runs it, an engine or a `MpiCall`, or None where mpi4py must.
            plan: What `latest` is to give.
        """
        send, recv = buffers
        in_place = send is MPI.IN_PLACE
        if not SUPPORTED or type(recv) is not np.ndarray or not recv.flags.carray:
            return
        if not in_place and (type(send) is not np.ndarray or send.dtype is not recv.dtype or not send.flags.c_contiguous):
            return
        row = len(self.plans) % MAX_ENTRIES
        sent, sent_nbytes = (-1, 0) if in_place else (send.size, send.nbytes)
        address = 0 if engine is None else -engine.address if isinstance(engine, MpiCall) else engine.address
        entry = 0 if op is None else id(op), id(recv.dtype), sent, recv.size, address, sent_nbytes, recv.nbytes
        if len(self.plans) == MAX_ENTRIES:
            self.clear()
            row = 0
        self._words[4 + c.ENTRY * row : 4 + c.ENTRY * (row + 1)] = entry
        self._keep.append((engine, op, recv.dtype))
        self.plans.append(plan)
        self._words[0] = row + 1

    def clear(self) -> None:
        """Forget all calls."""
        self._words[0] = 0
        self.plans.clear()
        self._keep.clear()


Key = tuple[str, Any, str | None, int | str | None]  # method, root, algorithm, segment


class CallCache(dict[Key, int]):
    """Address of the table of calls for each key."""

    def __init__(self) -> None:
        self.tables: dict[Key, CallTable] = {}

    def __missing__(self, key: Key) -> int:
        table = self.tables[key] = CallTable()
        self[key] = table.address
        return table.address

    def forget(self) -> None:
        """Forget the calls."""
        for table in self.tables.values():
            table.clear()


def _words(address: int, n: int) -> tuple[int, ...]:
    memory: Any = MPI.buffer.fromaddress(address, 8 * n)
    return tuple(memoryview(memory).cast("q"))


def _supported() -> bool:
    """Whether arrays lie in memory as `run_cached` expects, tried on arrays of known shape."""
    if sys.implementation.name != "cpython" or object.__basicsize__ != 16:
        return False
    for array in (np.zeros((3, 5), np.float32), np.zeros((4, 6), np.int64)[1:3], np.zeros((), np.float64)):
        fields = _words(id(array), 9)
        expected = id(np.ndarray), array.ctypes.data, array.ndim, id(array.dtype)
        if (fields[c.TYPE], fields[c.DATA], fields[c.NDIM] & 0xFFFFFFFF, fields[c.DESCR]) != expected:
            return False
        dimensions = _words(fields[c.DIMENSIONS], array.ndim) if array.ndim else ()
        flags = fields[c.FLAGS] & (c.CONTIGUOUS | c.ALIGNED | c.WRITEABLE)
        if dimensions != array.shape or flags != c.CONTIGUOUS | c.ALIGNED | c.WRITEABLE:
            return False
    return True


SUPPORTED = _supported()
