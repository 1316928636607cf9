"""Waits of the host for operations on a stream: RECORD and SYNC rows of a GPU program.

Operations on memory run on the stream, in order; all other rows act at once. So before a row hands out memory, or lets others write it,
the host waits for the last operation that it conflicts with, and thereby for all before that one. What the caller did before the call
counts as an operation that writes INPUT and OUTPUT: number 0, with event 0.
"""

from collections.abc import Hashable, Iterable, Mapping

from hpcoll.runtime.program.fields import CODE, EVENT
from hpcoll.runtime.program.items import Item
from hpcoll.runtime.program.opcodes import Code
from hpcoll.schedules.ir import Buffer

Row = tuple[int, ...]
_ASYNCHRONOUS = (Code.COPY, Code.REDUCE, Code.STAGE)


def ordered(rows: Iterable[Row], items: Mapping[int, Item]) -> tuple[list[Row], int]:
    """A lane's rows with RECORD and SYNC rows among them, and how many events they need.

    An ACK or RECV moves behind the operations right behind it, which never wait: the stream gets them while the host waits.

    Args:
        rows: Of a lane.
        items: What the row of an index does, for all rows but waits.
    """
    lane = _RowsWithWaits()
    put_off: list[tuple[Row, Item | None]] = []
    for i, row in enumerate(rows):
        if row[CODE] in (Code.ACK, Code.RECV):
            put_off.append((row, items[i]))
        elif row[CODE] in _ASYNCHRONOUS:
            lane.queue(row, items[i])
        else:
            for act in (*put_off, (row, items.get(i))):
                lane.act(*act)
            put_off = []
    for act in put_off:
        lane.act(*act)
    if lane.noperations:
        lane.wait(lane.noperations)
    return _with_events(lane.rows)


class _RowsWithWaits:
    """Rows so far; the event of a SYNC is the number of the operation that it waits for."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.noperations = 0
        self.reached = -1  # the last operation that the host has waited for
        self.written: dict[Hashable, int] = {}  # chunk -> last operation
        self.touched: dict[Hashable, int] = {}

    def queue(self, row: Row, item: Item) -> None:
        """An operation for the stream."""
        self.noperations += 1
        self.rows.append(row)
        self.written.update(dict.fromkeys(item.writes, self.noperations))
        self.touched.update(dict.fromkeys((*item.reads, *item.writes), self.noperations))

    def act(self, row: Row, item: Item | None) -> None:
        """A row of the host: others read what a SEND or POST reads; a RECV, or a peer, writes it; an ACK gives it back."""
        names = (*item.reads, *item.writes) if item else ()
        last = self.written if item and item.reads and item.code != Code.ACK else self.touched
        self.wait(max((last.get(name, 0 if _callers(name) else -1) for name in names), default=-1))
        self.rows.append(row)

    def wait(self, operation: int) -> None:
        """Wait for an operation, unless that has been done."""
        if operation > self.reached:
            self.reached = operation
            self.rows.append((Code.SYNC, operation))


def _callers(name: Hashable) -> bool:
    return isinstance(name, tuple) and name[0] in (Buffer.INPUT, Buffer.OUTPUT)


def _with_events(rows: list[Row]) -> tuple[list[Row], int]:
    """Events for what SYNC rows wait for, and RECORD rows right behind that; an event is free again when it was waited for."""
    waited = {row[EVENT] for row in rows if row[CODE] == Code.SYNC}
    events, free, nevents, operation = {0: 0}, list[int](), 1, 0
    found: list[Row] = []
    for row in rows:
        is_sync = row[CODE] == Code.SYNC
        found.append((Code.SYNC, events[row[EVENT]]) if is_sync else row)
        if is_sync and row[EVENT]:
            free.append(events[row[EVENT]])
        elif row[CODE] in _ASYNCHRONOUS:
            operation += 1
            if operation in waited:
                if not free:
                    free.append(nevents)
                    nevents += 1
                events[operation] = free.pop()
                found.append((Code.RECORD, events[operation]))
    return found, nevents
