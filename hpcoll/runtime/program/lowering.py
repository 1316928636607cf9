"""Schedule + sizes -> program: the flat table that an engine runs; knows no MPI library and no algorithm.

A program is written once per segment length; lanes share it through displacements. Lowering decides what a builder need
not know: each receive is posted as soon as its destination is free (never behind a wait that the schedule does not
have), a send is waited for before its chunk is overwritten, consecutive receive-and-reduce steps into one
chunk become one many-input reduction, runs of chunks that are not contiguous in memory are packed, messages above a
limit are split and empty ones dropped. Both ends of a message decide alike, because they see equal sizes.
Programs for arrays in GPU memory are the same table; `program.items_gpu` and `program.gpu_waits` write what they have besides.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from hpcoll.runtime.program.chunk_layout import Segments
from hpcoll.runtime.program.gpu_waits import ordered
from hpcoll.runtime.program.items import MESSAGE, STAGED, Item, Items, Span, host_items
from hpcoll.runtime.program.items_gpu import DeviceItems, device_items
from hpcoll.runtime.program.opcodes import INLINE_NBYTES, MESSAGES, NCOLUMNS, PINNED, STAGING, Code, Program, Ways, aligned
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.ir import Buffer, Schedule

MAX_MESSAGE_NBYTES = 1 << 30  # int counts end at 2**31 - 1
_POSTED_AHEAD = 16  # receives that may be posted before the one that the lane waits for


class LaneTable(NamedTuple):
    """The table of one channel for one segment length."""

    rows: list[tuple[int, ...]]
    sources: list[tuple[int, int]]
    nrequests: int
    scratch_nbytes: int
    staging_nbytes: int
    nmessages: int
    nevents: int
    pinned_nbytes: int


class _Rows:
    """Second half: items in order, receives posted ahead, waits where memory is used again."""

    def __init__(self, items: Items) -> None:
        self.items, self.device = items, isinstance(items, DeviceItems)
        self.rows: list[tuple[int, ...]] = []
        self.owners: dict[int, Item] = {}  # row -> what it is for
        self.sources: list[tuple[int, int]] = []
        self.nrequests = 0
        self.reserved = False
        self.requests: dict[int, list[int]] = {}  # item -> requests of its messages that were not waited for
        self.lent: dict[int, tuple[int, int]] = {}  # item -> peer that reads it where it lies, and the number of that message
        self.nposts: Counter[int] = Counter()  # to each peer that reads where messages lie
        self.unread: Counter[int] = Counter()  # how many of these the peer may still read
        self.scratch_nbytes = aligned(sum(count for _, count in items.scratch) * items.itemsize, items.boundary)
        self.pinned_nbytes = 0
        self.landings: list[tuple[int, int]] = []
        for slot, nbytes in enumerate(items.landings):
            if slot in items.pinned:
                self.landings.append((PINNED, self.pinned_nbytes))
                self.pinned_nbytes += aligned(nbytes, items.boundary)
            else:
                self.landings.append((int(Buffer.SCRATCH), self.scratch_nbytes))
                self.scratch_nbytes += aligned(nbytes, items.boundary)

    def emit(self) -> LaneTable:
        """Write the rows."""
        items = self.items.list
        posts, direct = self._post_positions(), self._lent() if self.device else self._direct()
        sends: dict[Hashable, list[int]] = {}  # chunk -> items that send it and were not waited for
        for i, item in enumerate(items):
            for receive in posts.get(i, ()):
                self._wait_sends(sends, items[receive].writes)
                self._message(receive)
            if item.code == Code.RECV:
                self._wait(i)
            elif item.code == Code.SEND:
                self._message(i)
            elif item.code >= Code.STAGE:
                self._local_peer(item, int(i in direct))
            else:
                self._wait_sends(sends, item.writes)
                self._local(item)
            if item.code == Code.SEND or (self.device and i in direct):
                for name in item.reads:
                    sends.setdefault(name, []).append(i)
                if item.code == Code.POST:
                    self.nposts[item.peer] += 1
                    self.unread[item.peer] += 1
                    self.lent[i] = item.peer, self.nposts[item.peer]
        for i in list(self.requests):
            self._wait(i)
        nevents = 0
        if self.device:
            for peer in sorted(self.nposts):
                self._wait_unread(peer, 0)
            self.rows, nevents = ordered(self.rows, self.owners)
        else:
            self.rows += sorted({(Code.DRAIN, item.peer, 0, item.spans[0].buffer) for i in direct if (item := items[i]).code == Code.POST})
        return LaneTable(
            self.rows, self.sources, self.nrequests, self.scratch_nbytes, self.items.staging_nbytes, self.items.nmessages,
            nevents, self.pinned_nbytes,
        )  # fmt: skip

    def _lent(self) -> set[int]:
        """Of a device program: items that hand out memory which is read where it lies."""
        return {i for i, item in enumerate(self.items.list) if item.code == Code.POST and item.spans[0].buffer != STAGED}

    def _direct(self) -> set[int]:
        """Items that hand out memory of INPUT or OUTPUT which nothing behind them overwrites: it may be read where it lies."""
        found: set[int] = set()
        overwritten: set[Hashable] = set()
        for i, item in reversed(list(enumerate(self.items.list))):
            source = item.spans[item.code == Code.STAGE] if item.code in (Code.STAGE, Code.POST) else None
            callers = source is not None and source.nbytes > INLINE_NBYTES and source.buffer in (Buffer.INPUT, Buffer.OUTPUT)
            if callers and not overwritten.intersection(item.reads):
                found.add(i)
            overwritten.update(item.writes)
        pieces = [i for i in found if self.items.list[i].code == Code.STAGE]
        return found.difference(i for i in pieces if not self._posted_alone(i))

    def _posted_alone(self, i: int) -> bool:
        """Whether a STAGE holds all of what the POST behind it announces."""
        post = next(item for item in self.items.list[i:] if item.code == Code.POST)
        return post.spans[0].buffer != STAGED

    def _local_peer(self, item: Item, direct: int) -> None:
        """The operations on shared memory. Room is taken before the lane's first message: what it waits for must not hang on this lane."""
        if item.code in (Code.STAGE, Code.POST) and self.items.staging_nbytes and not self.reserved:
            self.rows.append((Code.RESERVE,))
            self.reserved = True
        self.owners[len(self.rows)] = item
        if item.code == Code.STAGE:
            (_, staged, nbytes), source = item.spans
            self.rows.append((item.code, 0, staged, *self._at(source), nbytes, direct))
        elif item.code == Code.POST:
            source, (_, staged, nbytes) = item.spans
            self.rows.append((item.code, item.peer, staged, *self._at(source), nbytes, direct))
        elif item.code == Code.AWAIT:
            (buffer, _, nbytes) = item.spans[0]
            self.rows.append((item.code, item.peer, MESSAGE - buffer, 0, 0, nbytes))
        else:
            self.rows.append((item.code, item.peer))

    def _post_positions(self) -> dict[int, list[int]]:
        """Before which item each receive is posted: when its destination is free, in order, and not behind a wait of its own.

        Where it has to wait for a send of its destination, it passes no send on the way ahead, nor what a rank of the node waits for:
        nothing that a peer may need comes to stand behind that wait.
        """
        positions: dict[int, list[int]] = {}
        touched: dict[Hashable, int] = {}  # chunk -> position from which it is free
        sent: set[Hashable] = set()
        receives: list[int] = []
        latest = last_send = 0
        lending = (Code.SEND, Code.POST) if self.device else (Code.SEND,)
        for i, item in enumerate(self.items.list):
            if item.code == Code.RECV:
                free = max(touched.get(name, 0) for name in item.writes)
                behind = last_send if any(name in sent for name in item.writes) else 0
                ahead = receives[-_POSTED_AHEAD] + 1 if len(receives) >= _POSTED_AHEAD else 0
                latest = max(latest, free, behind, ahead)
                positions.setdefault(latest, []).append(i)
                receives.append(i)
            elif item.code in (Code.SEND, Code.POST, Code.ACK):
                last_send = i + 1
            sent.difference_update(item.writes)
            sent.update(item.reads if item.code in lending else ())
            for name in (*item.reads, *item.writes):
                touched[name] = i + 1
        return positions

    def _at(self, span: Span) -> tuple[int, int]:
        if span.buffer <= MESSAGE:
            return MESSAGES + MESSAGE - span.buffer, span.displ
        if span.buffer == STAGED:
            return STAGING, span.displ
        if span.buffer < 3:
            return span.buffer, span.displ
        buffer, displ = self.landings[span.buffer - 3]
        return buffer, displ + span.displ

    def _message(self, i: int) -> None:
        item = self.items.list[i]
        buffer, displ = self._at(item.spans[0])
        for lo in range(0, item.spans[0].nbytes, MAX_MESSAGE_NBYTES):
            nbytes = min(MAX_MESSAGE_NBYTES, item.spans[0].nbytes - lo)
            self.owners[len(self.rows)] = item
            self.rows.append((item.code, self.nrequests, item.peer, buffer, displ + lo, nbytes))
            self.requests.setdefault(i, []).append(self.nrequests)
            self.nrequests += 1

    def _wait(self, i: int) -> None:
        self.rows += [(Code.WAIT, request) for request in self.requests.pop(i, ())]
        if i in self.lent:
            peer, number = self.lent.pop(i)
            self._wait_unread(peer, self.nposts[peer] - number)

    def _wait_unread(self, peer: int, allowed: int) -> None:
        """Wait until a peer has used all but the last messages posted to it, unless that has been done."""
        if allowed < self.unread[peer]:
            self.unread[peer] = allowed
            self.rows.append((Code.UNREAD, peer, allowed))

    def _wait_sends(self, sends: dict[Hashable, list[int]], names: Iterable[Hashable]) -> None:
        for name in names:
            for i in sends.pop(name, ()):
                self._wait(i)

    def _local(self, item: Item) -> None:
        destination, *sources = [self._at(span) for span in item.spans]
        nbytes = item.spans[0].nbytes
        self.owners[len(self.rows)] = item
        if item.code == Code.COPY:
            self.rows.append((Code.COPY, *destination, *sources[0], nbytes))
        else:
            self.rows.append((Code.REDUCE, *destination, nbytes // self.items.itemsize, len(self.sources), len(sources), nbytes))
            self.sources += sources


def lower(
    schedule: Schedule, segments: Segments, itemsize: int, window: int, *,
    in_place: bool, local_peers: Mapping[int, int] | None = None, ways: Ways | None = None,
) -> Program:  # fmt: skip
    """Write one rank's program.

    Args:
        schedule: This rank's steps for one segment.
        segments: Per segment its displacement in INPUT and OUTPUT, in elements, and its layout; segments that share one
            `Layout` object share one table.
        itemsize: Bytes of one element.
        window: Most lanes in flight, ``>= 1``.
        in_place: Whether the collective's aliased chunks are one memory.
        local_peers: Local rank of each rank that is reached through shared memory.
        ways: For arrays in GPU memory, how messages travel; ``mapped`` are among ``local_peers``. None: arrays in host memory.
    """
    local_peers = local_peers or {}
    assert ways is None or ways.mapped <= local_peers.keys(), (ways, local_peers)
    who = (schedule.rank, schedule.nranks, schedule.root, schedule.nchunks)
    find_aliases = COLLECTIVES[schedule.collective].aliases
    aliases = dict(find_aliases(*who)) if in_place and find_aliases else {}
    rows: list[tuple[int, ...]] = []
    sources: list[tuple[int, int]] = []
    tables: dict[int, list[tuple[int, int]]] = {}  # layout -> rows of each channel
    lanes: list[tuple[int, int, int]] = []
    needs = (0,) * len(LaneTable._fields[2:])
    for displ, layout in segments:
        if id(layout) not in tables:
            tables[id(layout)] = []
            for steps in schedule.channels:
                what = (schedule, layout, itemsize, aliases, local_peers)
                items = device_items(*what, steps, ways) if ways else host_items(*what, steps)
                lane = _Rows(items).emit()
                tables[id(layout)].append((len(rows), len(rows) + len(lane.rows)))
                rows += [_padded(row, len(sources)) for row in lane.rows]
                sources += lane.sources
                needs = tuple(map(max, needs, lane[2:]))
        lanes += [(first, last, displ * itemsize) for first, last in tables[id(layout)]]
    return Program(
        np.array(rows, np.int64).reshape(-1, NCOLUMNS), np.array(sources, np.int64).reshape(-1, 2), np.array(lanes, np.int64),
        min(window, len(lanes)), *needs,
    )  # fmt: skip


def _padded(row: tuple[int, ...], nsources: int) -> tuple[int, ...]:
    """A row of full width; a reduction's first source counts from the start of the program's table."""
    if row[0] == Code.REDUCE:
        row = (*row[:4], row[4] + nsources, *row[5:])
    return row + (0,) * (NCOLUMNS - len(row))
