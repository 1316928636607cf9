"""Lowering for arrays in GPU memory: the items of a lane, and waits of the host for the stream.

Operations on memory run on the stream, in order; all other rows act at once. So before a row hands out memory, or lets others write it,
the host waits for the last operation that it conflicts with, and thereby for all before that one: RECORD and SYNC rows. What the caller
did before the call counts as an operation that writes INPUT and OUTPUT: number 0, with event 0.
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, ClassVar

from hpcoll.base.sizes import largest
from hpcoll.kernels import MAX_DESTINATIONS, MAX_SOURCES
from hpcoll.runtime.program.chunks import LANDING, Pieces, Span, names_of
from hpcoll.runtime.program.fields import CODE, EVENT
from hpcoll.runtime.program.items import Item, Items
from hpcoll.runtime.program.opcodes import Code, Row
from hpcoll.schedules.ir import Buffer

_ASYNCHRONOUS = (Code.COPY, Code.REDUCE, Code.STAGE)


class GpuItems(Items):
    """Items whose copies and reductions a GPU makes: kernels take a limited number of sources, and copies are kept.

    Acknowledgements, for which the host waits, are put off until this rank hands something out, waits for an acknowledgement itself, or
    awaits another message of the same peer: then one wait does for all.
    """

    boundary: ClassVar[int] = 256
    on_gpu: ClassVar[bool] = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._copies: dict[
            tuple[Hashable, ...], tuple[Pieces, int]
        ] = {}  # chunks, and for what -> copy, and items up to then
        self._written: dict[Hashable, int] = {}  # chunk -> items up to the last that wrote it
        self._partials: list[int] = []  # landing slots of partial results
        self._used: list[tuple[int, int, Any]] = []  # messages that were used and not yet acknowledged
        self._in_place: set[Hashable] = set()  # chunks that peers work on in place

    def append(self, item: Item) -> None:
        """Add an item, behind acknowledgements that can be put off no longer."""
        hands_out = item.peer >= 0 and item.code not in (Code.ACK, Code.AWAIT)
        if self._used and (hands_out or self._in_place.intersection(item.writes)):
            self._acknowledge_used()
        self._in_place.update((*item.reads, *item.writes) if item.in_place else ())
        super().append(item)
        self._written.update(dict.fromkeys(item.writes, len(self.list)))

    def _message_slot(self, peer: int) -> int:
        if any(peer == other for _, other, _ in self._used):
            self._acknowledge_used()
        return max((slot for slot, *_ in self._used + self._unused), default=-1) + 1

    def acknowledge(self) -> None:
        """Note that all messages that were awaited have been used."""
        self._used += self._unused
        self._unused = []

    def end(self) -> None:
        """Acknowledge the last messages."""
        self._acknowledge_used()

    def waits(self, rows: list[Row], owners: Mapping[int, Item]) -> tuple[list[Row], int]:
        """Return the lane's rows with RECORD and SYNC rows among them, and the events that these need."""
        return ordered(rows, owners)

    def _acknowledge_used(self) -> None:
        used, self._used = self._used, []
        self._say_used(used)

    def packed(self, pieces: Pieces, *, pinned: bool = False, lent: bool = False) -> Pieces:
        """Return a copy as `Items`, the same one while the chunks do not change."""
        key = (lent, *names_of(pieces))
        copy, since = self._copies.get(key, ([], 0))
        if not copy or any(self._written.get(name, 0) > since for name, _ in pieces):
            copy = super().packed(pieces, pinned=pinned)
            self._copies[key] = copy, len(self.list)
        return copy

    def _operate(
        self,
        code: Code,
        spans: list[Span],
        names: list[list[Hashable]],
        further: list[Span],
        written: list[list[Hashable]],
    ) -> None:
        """Add long folds as several reductions; the last one writes the destinations, of which the rest get copies."""
        nresults = 0
        # aligned groups of a power of two are subtrees of the canonical expression
        while len(spans) > 1 + MAX_SOURCES:
            results: list[tuple[Span, list[Hashable]]] = []
            for first in range(1, len(spans), MAX_SOURCES):
                group, of_group = spans[first : first + MAX_SOURCES], names[first : first + MAX_SOURCES]
                result = group[0], of_group[0]
                if len(group) > 1:
                    result = self._partial(nresults, spans[0].nbytes)
                    super()._operate(code, [result[0], *group], [result[1], *of_group], [], [])
                    nresults += 1
                results.append(result)
            spans, names = (
                [spans[0], *(span for span, _ in results)],
                [names[0], *(name for _, name in results)],
            )
        most = MAX_DESTINATIONS - 1
        super()._operate(code, spans, names, further[:most], written[:most])
        for span, theirs in zip(further[most:], written[most:], strict=True):
            super()._operate(Code.COPY, [span, spans[0]], [theirs, names[0]], [], [])

    def _partial(self, number: int, nbytes: Any) -> tuple[Span, list[Hashable]]:
        """Return span and names of the landing slot for a partial result of a long fold."""
        if number == len(self._partials):
            self._partials.append(self._new_slot(pinned=False))
        slot = self._partials[number]
        self.landings[slot] = largest(self.landings[slot], nbytes)
        return Span(LANDING + slot, 0, nbytes), [("landing", slot)]


def ordered(rows: Iterable[Row], items: Mapping[int, Item]) -> tuple[list[Row], int]:
    """Return a lane's rows with RECORD and SYNC rows among them, and how many events they need.

    An ACK or RECV moves behind the operations right behind it, which never wait: the stream gets them while the host waits.
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
    """The rows so far; the event of a SYNC is the number of the operation that it waits for."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.noperations = 0
        self.reached = -1  # the last operation that the host has waited for
        self.written: dict[Hashable, int] = {}  # chunk -> last operation
        self.touched: dict[Hashable, int] = {}

    def queue(self, row: Row, item: Item) -> None:
        """Add an operation for the stream."""
        self.noperations += 1
        self.rows.append(row)
        self.written.update(dict.fromkeys(item.writes, self.noperations))
        self.touched.update(dict.fromkeys((*item.reads, *item.writes), self.noperations))

    def act(self, row: Row, item: Item | None) -> None:
        """Add a row of the host: peers read what a SEND or POST reads; a RECV, or a peer, writes it; an ACK gives it back."""
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
    """Return rows with events for SYNC rows, and RECORD rows behind their operations; an event is free when it was waited for."""
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
