"""Schedule + sizes -> program: the flat table that an engine runs; knows no MPI library, no transport and no algorithm.

A program is written once per segment length; lanes share it through displacements. Lowering decides what a builder need not know: it posts
each receive as soon as its destination is free (never behind a wait that the schedule does not have), waits for sends before their chunk is
overwritten, and splits messages above a limit. `route` and `items` are its first half. Alike operations on many blocks are a `Batch`, whose
rows are written together.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import partial
from itertools import chain, groupby
from typing import Any, NamedTuple

import numpy as np

from hpcoll.base.collector import uncollected
from hpcoll.base.sizes import Multiples, Number, Size, int_value, largest
from hpcoll.runtime.program.chunks import LANDING, MESSAGE, ChunkLayout, Segments, Span, Tiles
from hpcoll.runtime.program.fields import CODE, FIRST_SOURCE, NCOLUMNS, READ, WRITTEN
from hpcoll.runtime.program.items import Batch, InPlace, Item, Items
from hpcoll.runtime.program.opcodes import MESSAGES, PINNED, Code, Program, Row, Symbol, aligned
from hpcoll.runtime.program.route import Route, add_steps, carried_cells
from hpcoll.runtime.program.stretches import Stretches
from hpcoll.schedules.ir import Buffer, Schedule, Step

MAX_MESSAGE_NBYTES = 1 << 30  # int counts end at 2**31 - 1
_POSTED_AHEAD = 16  # receives that may be posted before the one that the lane waits for


class _Block(NamedTuple):
    """Groups of alike rows, one after another: the rows of a group, in which a number that differs between groups is `Multiples`."""

    rows: list[Row]
    n: int  # groups


class _Rows:
    """Second half: items in order, receives posted ahead, waits where memory is used again."""

    def __init__(self, items: Items, most_nbytes: int) -> None:
        self.items, self.most_nbytes = items, most_nbytes
        self.list = _with_single_items(items.list)
        self.rows: list[Row | _Block] = []
        self.owners: dict[int, Item] = {}  # row -> what it is for
        self.sources: list[tuple[int, int]] = []
        self.nrequests = 0
        self.reserved = False
        self.requests: dict[
            int, list[tuple[int, Number]]
        ] = {}  # item -> requests that were not waited for, and bytes received
        self.lent: dict[
            int, tuple[int, int]
        ] = {}  # item -> peer that it lends to, and the number of that message
        self.nlent: Counter[int] = Counter()  # messages lent to each peer
        self.unread: Counter[int] = Counter()  # how many of these the peer may still read
        self.scratch_nbytes = aligned(items.scratch_count * items.itemsize, items.boundary)
        self.pinned_nbytes = 0
        self.landings: list[tuple[int, int]] = []
        for slot, nbytes in enumerate(items.landings):
            if slot in items.pinned:
                self.landings.append((PINNED, self.pinned_nbytes))
                self.pinned_nbytes += aligned(nbytes, items.boundary)
            else:
                self.landings.append((int(Buffer.SCRATCH), self.scratch_nbytes))
                self.scratch_nbytes += aligned(nbytes, items.boundary)

    def emit(self) -> tuple[Number, ...]:
        """Write the rows, and return what the lane needs, in the order of `Program`."""
        items, posts, kept = self.list, self._post_positions(), self._kept()
        sends: dict[Hashable, list[int]] = {}  # chunk -> items that send or lend it and were not waited for
        for i, item in enumerate(items):
            for receive in posts.get(i, ()):
                self._wait_sends(sends, items[receive])
                self._post(receive)
            if isinstance(item, Batch):
                self._batch(item, kept.get(i, 0))
                continue
            if item.code == Code.RECV or item.grants:
                self._wait(i)
            elif item.code == Code.SEND:
                self._message(i)
            elif item.code >= Code.STAGE:
                self._shared(i, item, READ if item.lends else kept.get(i, 0))
            else:
                self._wait_sends(sends, item)
                self._local(item)
            if item.lends:
                for name in item.reads:
                    sends.setdefault(name, []).append(i)
        for i in list(self.requests):
            self._wait(i)
        for peer in sorted(self.nlent):
            self._wait_unread(peer, 0)
        posted = {peer for i, in_place in kept.items() for peer in _readers(items[i], in_place)}
        self.rows += [(Code.DRAIN, peer, 0, buffer) for peer, buffer in sorted(posted)]
        self.rows, nevents = self.items.waits(self.rows, self.owners)
        shared = self.items.staging_nbytes, self.items.nmessages
        return self.nrequests, self.scratch_nbytes, *shared, nevents, self.pinned_nbytes

    def _kept(self) -> dict[int, Any]:
        """Return IN_PLACE of items whose message may be read in place where that is symmetric memory: nothing behind overwrites it."""
        kept: dict[int, Any] = {}
        overwritten: set[Hashable] = set()
        for i, item in reversed(list(enumerate(self.list))):
            first = item.parts[0] if isinstance(item, Batch) else item
            callers = first.in_place == InPlace.IF_SYMMETRIC and first.spans[0].buffer in (
                Buffer.INPUT,
                Buffer.OUTPUT,
            )
            if callers and isinstance(item, Batch):
                kept[i] = Multiples(np.array([name not in overwritten for name in first.reads]), READ)
            elif callers and not overwritten.intersection(item.reads):
                kept[i] = READ
            overwritten.update(item.writes)
        return kept

    def _post(self, i: int) -> None:
        """Write a receive: of the MPI library, or memory for a put."""
        if self.list[i].grants:
            self._shared(i, self.list[i], WRITTEN)
        else:
            self._message(i)

    def _batch(self, batch: Batch, in_place: Any) -> None:
        """Write a batch, of copies and operations on shared memory."""
        self._reserve(batch.parts[0])
        rows = [
            self._copy(part) if part.code == Code.COPY else self._operation(part, in_place)
            for part in batch.parts
        ]
        self.rows.append(_Block(rows, batch.n))

    def _reserve(self, item: Item) -> None:
        """Take room before the lane's first message, which may not wait for this lane."""
        if item.code in (Code.STAGE, Code.POST) and self.items.nstaged and not self.reserved:
            self.rows.append((Code.RESERVE,))
            self.reserved = True

    def _operation(self, item: Item, in_place: Any) -> Row:
        where, nbytes = (
            (self._at(item.spans[0]), item.spans[0].nbytes) if item.spans else ((0, 0), item.nbytes)
        )
        return item.code, 0 if item.code == Code.STAGE else item.peer, item.to, *where, nbytes, in_place

    def _shared(self, i: int, item: Item, in_place: int) -> None:
        """Write an operation on shared memory."""
        self._reserve(item)
        self.owners[len(self.rows)] = item
        self.rows.append(self._operation(item, in_place))
        if item.in_place >= InPlace.LENT:
            self.nlent[item.peer] += 1
            self.unread[item.peer] += 1
            self.lent[i] = item.peer, self.nlent[item.peer]

    def _post_positions(self) -> dict[int, list[int]]:
        """Return the receives to post before each item: when their destination is free, in order, and not behind a wait of their own.

        A receive that has to wait for a send of its destination passes no send on the way ahead, nor an operation that a local peer waits
        for: a peer needs nothing behind that wait. Memory for a put comes behind messages announced to the same peer.
        """
        positions: dict[int, list[int]] = {}
        touched: dict[Hashable, int] = {}  # chunk -> position from which it is free
        sent: dict[Hashable, list[Item]] = {}  # chunk -> items that send or lend it
        announced: dict[int, int] = {}  # peer -> position behind the last message to it
        receives: list[int] = []
        latest = last_send = 0
        for i, item in enumerate(self.list):
            if isinstance(item, Batch):
                if item.parts[-1].code in (Code.POST, Code.ACK):
                    last_send = i + 1
                touched.update(dict.fromkeys(item.last, i + 1))
                continue
            if item.code == Code.RECV or item.grants:
                free = max(touched.get(name, 0) for name in item.writes)
                lends = (other for name in item.writes for other in sent.get(name, ()))
                free = max(free, 0 if all(map(item.grants_reader_of, lends)) else last_send)
                if item.grants:
                    positions.setdefault(max(free, announced.get(item.peer, 0)), []).append(i)
                else:
                    latest = max(
                        latest, free, receives[-_POSTED_AHEAD] + 1 if len(receives) >= _POSTED_AHEAD else 0
                    )
                    positions.setdefault(latest, []).append(i)
                    receives.append(i)
            elif item.code in (Code.SEND, Code.POST, Code.ACK):
                last_send = i + 1
                if item.code == Code.POST:
                    announced[item.peer] = i + 1
            for name in item.writes:
                sent.pop(name, None)
            for name in item.reads if item.lends else ():
                sent.setdefault(name, []).append(item)
            for name in (*item.reads, *item.writes):
                touched[name] = i + 1
        return positions

    def _at(self, span: Span) -> tuple[int, int]:
        """Return buffer and displacement of a span in a row."""
        if span.buffer <= MESSAGE:
            return MESSAGES + MESSAGE - span.buffer, span.displ
        if span.buffer < LANDING:
            return span.buffer, span.displ
        buffer, displ = self.landings[span.buffer - LANDING]
        return buffer, span.displ + displ

    def _message(self, i: int) -> None:
        item = self.list[i]
        buffer, displ = self._at(item.spans[0])
        whole = item.spans[0].nbytes
        most = self.most_nbytes
        for lo in (0,) if whole <= most else range(0, whole, most):
            nbytes = whole if whole <= most else min(most, whole - lo)
            self.owners[len(self.rows)] = item
            self.rows.append((item.code, self.nrequests, item.peer, buffer, displ + lo, nbytes))
            self.requests.setdefault(i, []).append((self.nrequests, nbytes if item.code == Code.RECV else 0))
            self.nrequests += 1

    def _wait(self, i: int) -> None:
        self.rows += [(Code.WAIT, request, 0, 0, 0, nbytes) for request, nbytes in self.requests.pop(i, ())]
        if i in self.lent:
            peer, number = self.lent.pop(i)
            self._wait_unread(peer, self.nlent[peer] - number)

    def _wait_unread(self, peer: int, allowed: int) -> None:
        """Wait until a peer has used all but the last messages lent to it, unless that has been done."""
        if allowed < self.unread[peer]:
            self.unread[peer] = allowed
            self.rows.append((Code.UNREAD, peer, allowed))

    def _wait_sends(self, sends: dict[Hashable, list[int]], item: Item) -> None:
        """Wait for readers of the chunks that an item writes, unless it lets the reader itself write, which does so in order."""
        for name in item.writes:
            for i in sends.pop(name, ()):
                if not item.grants_reader_of(self.list[i]):
                    self._wait(i)

    def _copy(self, item: Item) -> Row:
        return Code.COPY, *self._at(item.spans[0]), *self._at(item.spans[1]), item.spans[0].nbytes

    def _local(self, item: Item) -> None:
        self.owners[len(self.rows)] = item
        if item.code == Code.COPY:
            self.rows.append(self._copy(item))
        else:
            destination, *operands = [self._at(span) for span in item.spans]
            nbytes = item.spans[0].nbytes
            count, nsources = nbytes // self.items.itemsize, len(operands) - item.nfurther
            self.rows.append(
                (Code.REDUCE, *destination, count, len(self.sources), nsources, nbytes, item.nfurther)
            )
            self.sources += operands


@uncollected
def lower(
    schedule: Schedule,
    segments: Segments,
    itemsize: int,
    window: int,
    *,
    in_place: bool,
    routes: Mapping[int, Route],
    mapped: Collection[int] = (),
    on_gpu: bool = False,
    most_nbytes: int = MAX_MESSAGE_NBYTES,
) -> Program:
    """Write one rank's program; where sizes are symbolic (`hpcoll.base.sizes`), so is the program.

    Args:
        schedule: This rank's steps for one segment.
        segments: Per segment its displacement in INPUT and OUTPUT, in elements, and its layout; those with one layout share a table.
        itemsize: Bytes of one element.
        window: Most lanes in flight, ``>= 1``.
        in_place: The collective's aliased chunks are one memory.
        routes: To each peer, by its rank.
        mapped: Buffers whose bytes lie in memory as a map of the call says (`hpcoll.runtime.program.layouts`).
        on_gpu: The arrays are in GPU memory; then the routes are of `hpcoll.runtime.gpu.routes`.
        most_nbytes: Bytes of a message of the MPI library, above which it is split.
    """
    who = (schedule.rank, schedule.nranks, schedule.root, schedule.nchunks)
    find_aliases = schedule.meaning.aliases
    aliases = dict(find_aliases(*who)) if in_place and find_aliases else {}
    kind: type[Items] = Items
    if on_gpu:
        from hpcoll.runtime.program.gpu import GpuItems as kind
    rows: list[Row | _Block] = []
    nrows = 0
    sources: list[tuple[int, int]] = []
    tables: dict[int, list[tuple[int, int]]] = {}  # layout -> rows of each channel
    lanes: list[tuple[int, int, int]] = []
    needs: tuple[Number, ...] = ()
    for displ, layout in segments:
        if id(layout) not in tables:
            tables[id(layout)] = []
            for steps in schedule.channels:
                stretches = _stretches(schedule, steps, layout, aliases)
                make = partial(kind, schedule, layout, stretches, itemsize, aliases, mapped)
                lane = _Rows(_items(make, steps, routes, stretches), most_nbytes)
                lane_needs = lane.emit()
                rows += [row if isinstance(row, _Block) else _padded(row, len(sources)) for row in lane.rows]
                first, nrows = nrows, nrows + sum(map(_nrows, lane.rows))
                tables[id(layout)].append((first, nrows))
                sources += lane.sources
                needs = tuple(map(largest, needs, lane_needs)) if needs else lane_needs
        lanes += [(first, last, displ * itemsize) for first, last in tables[id(layout)]]
    arrays, symbols, at = [], list[Symbol](), 0
    tables_of_numbers: tuple[list[Any], ...] = rows, sources, lanes
    for table, width in zip(tables_of_numbers, (NCOLUMNS, 2, 3), strict=True):
        array, found = _table(table, at)
        arrays.append(array.reshape(-1, width))
        symbols += found
        at += array.size
    return Program(*arrays, min(window, len(lanes)), *needs, symbols=tuple(symbols))  # type: ignore


def _stretches(
    schedule: Schedule, steps: Sequence[Step], layout: ChunkLayout, aliases: dict[int, int]
) -> Stretches:
    """Return the stretches of a channel; of blocks that vary every chunk is one."""
    sides = layout.inputs, layout.outputs
    gaps = [buffer for buffer, side in enumerate(sides) if not (isinstance(side, Tiles) and side.gapless)]
    single = Buffer if layout.varying else gaps
    return Stretches(steps, (*map(len, sides), len(schedule.scratch)), single, aliases)


def _items(
    make: Callable[..., Items], steps: Sequence[Step], routes: Mapping[int, Route], stretches: Stretches
) -> Items:
    """Return a channel's items, with copies of chunks that would be overwritten while lent, and no memory for unused cells."""
    carried = carried_cells(steps, routes)

    def written(*known: frozenset[int]) -> Items:
        items = make(*known)
        add_steps(items, steps, routes, carried)
        return items

    copied, unused = frozenset[int](), frozenset(first for run in carried for first, _ in stretches.of(run))
    items = written(copied, unused)
    copied = items.overwritten_too_soon()
    if copied:
        items = written(copied, unused)
    untouched = items.untouched()
    return items if untouched == unused else written(copied, untouched)


def _with_single_items(items: Sequence[Any]) -> list[Any]:
    """Return items, of which none is a batch that others wait in the midst of.

    Such a one would write where a message under way is, or receives behind it would go where its first groups have worked.
    """
    received: dict[Hashable, int] = {}  # chunk -> item that receives it last
    for i, item in enumerate(items):
        if not isinstance(item, Batch) and (item.code == Code.RECV or item.grants):
            received.update(dict.fromkeys(item.writes, i))
    lent: set[Hashable] = set()
    found: list[Any] = []
    for i, item in enumerate(items):
        if not isinstance(item, Batch):
            found.append(item)
            lent.update(item.reads if item.lends else ())
            continue
        names = received.keys() & {*item.reads, *item.writes}.difference(item.last)
        if lent.isdisjoint(item.writes) and not any(received[name] > i for name in names):
            found.append(item)
        else:
            found += item.items()
    return found


def _readers(item: Item | Batch, in_place: Any) -> list[tuple[int, int]]:
    """Return who may read an item's message in place, and in which buffer."""
    if isinstance(item, Batch):
        post = item.parts[-1]
        return [(peer, post.spans[0].buffer) for peer in post.peer.value[in_place.factors].tolist()]
    return [(item.peer, item.spans[0].buffer)] if item.code == Code.POST else []


def _nrows(row: Row | _Block) -> int:
    return row.n * len(row.rows) if isinstance(row, _Block) else 1


def _table(rows: Sequence[Any], at: int) -> tuple[np.ndarray, list[Symbol]]:
    """Return the numbers of rows, one behind the other, and their symbols; ``at`` is the place of the first one."""
    arrays, symbols = [np.zeros(0, np.int64)], list[Symbol]()
    for kind, group in groupby(rows, type):
        if kind is _Block:
            for block in group:
                arrays.append(_block_numbers(block, at, symbols))
                at += arrays[-1].size
        else:
            flat = list(chain.from_iterable(group))
            symbols += [Symbol(number, at + i) for i, number in enumerate(flat) if isinstance(number, Size)]
            arrays.append(np.array([*map(int_value, flat)], np.int64))
            at += len(flat)
    return np.concatenate(arrays), symbols


def _block_numbers(block: _Block, at: int, symbols: list[Symbol]) -> np.ndarray:
    """Return the numbers of a block, and add its symbols."""
    numbers = np.zeros((block.n, len(block.rows), NCOLUMNS), np.int64)
    places = at + np.arange(numbers.size).reshape(numbers.shape)
    for i, row in enumerate(block.rows):
        for column, number in enumerate(row):
            numbers[:, i, column] = int_value(number)
            many = Multiples(0, 0, number) if isinstance(number, Size) else number
            if isinstance(many, Multiples) and many.symbolic:
                symbols.append(Symbol(many, places[:, i, column]))
    return numbers.ravel()


def _padded(row: Row, nsources: int) -> Row:
    """Return a row of full width; a reduction's first source counts from the start of the program's table."""
    if row[CODE] == Code.REDUCE:
        row = (*row[:FIRST_SOURCE], row[FIRST_SOURCE] + nsources, *row[FIRST_SOURCE + 1 :])
    return row + (0,) * (NCOLUMNS - len(row))
