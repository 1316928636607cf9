"""Schedule + sizes -> program: the flat table that an engine walks. Floor 5; knows no MPI library and no algorithm.

A program is written once per segment length; lanes share it through displacements. Lowering decides what a builder need
not know: each receive is posted as soon as its destination is free (never behind a wait that the schedule does not
have), a send is waited for before its chunk is overwritten, consecutive receive-and-reduce steps into one
chunk become one many-input reduction, runs of chunks that are not contiguous in memory are packed, messages above a
limit are split and empty ones dropped. Both ends of a message decide alike, because they see equal sizes.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from hpcoll.collectives import COLLECTIVES
from hpcoll.ir import Buffer, Chunk, Op, Schedule, Step
from hpcoll.layout import Layout, Segments
from hpcoll.program import NCOLUMNS, Code, Program

MAX_MESSAGE_NBYTES = 1 << 30  # int counts end at 2**31 - 1
_POSTED_AHEAD = 16  # receives that may be posted before the one that the lane waits for
_LANDING_SLOTS = 3  # destinations for receives that are reduced on arrival, unless more are reduced at once


class Lane(NamedTuple):
    """The table of one channel for one segment length."""

    rows: list[tuple[int, ...]]
    sources: list[tuple[int, int]]
    nrequests: int
    scratch_nbytes: int


class _Place(NamedTuple):
    """Contiguous bytes of one buffer; buffers from 3 on are landing slots."""

    buffer: int
    displ: int
    nbytes: int


class _Item(NamedTuple):
    """A step on places; the names of the chunks it touches decide what may move before it."""

    code: Code
    peer: int
    places: list[_Place]  # SEND, RECV: one; COPY: destination, source; REDUCE: destination, sources
    reads: list[Hashable]
    writes: list[Hashable]


_Pieces = list[tuple[Hashable, _Place]]


class _Items:
    """First half: the steps of one channel as items on places."""

    def __init__(self, schedule: Schedule, layout: Layout, itemsize: int, aliases: dict[int, int]) -> None:
        self.layout, self.itemsize, self.aliases = layout, itemsize, aliases
        self.list: list[_Item] = []
        ends = [0, *accumulate(layout.size(extent) for extent in schedule.scratch)]
        self.scratch = [(lo, hi - lo) for lo, hi in pairwise(ends)]
        self.landings: list[int] = []  # nbytes of each landing slot
        self.received = 0
        self.receive_slots: list[int] = []

    def chunks(self, run: Chunk) -> _Pieces:
        """Each chunk of a run that is not empty, with the name of its memory."""
        found: _Pieces = []
        for index in range(run.index, run.index + run.n):
            buffer, i = run.buffer, index
            if buffer == Buffer.INPUT and i in self.aliases:
                buffer, i = Buffer.OUTPUT, self.aliases[i]
            displ, count = (self.layout.inputs, self.layout.outputs, self.scratch)[buffer][i]
            if count:
                found.append(((buffer, i), _Place(buffer, displ * self.itemsize, count * self.itemsize)))
        return found

    def local(self, code: Code, *operands: _Pieces) -> None:
        """A copy or reduction, destination first, in as few pieces as are contiguous in all operands."""
        for group in _contiguous(operands):
            places = [_join(pieces) for pieces in group]
            if code == Code.COPY and places[0] == places[1]:
                continue
            names = [[name for name, _ in pieces] for pieces in group]
            self.list.append(_Item(code, -1, places, [name for part in names[1:] for name in part], names[0]))

    def message(self, code: Code, peer: int, pieces: _Pieces) -> None:
        """A send or receive of contiguous pieces."""
        names = [name for name, _ in pieces]
        reads, writes = (names, []) if code == Code.SEND else ([], names)
        self.list.append(_Item(code, peer, [_join(pieces)], reads, writes))

    def stage(self, pieces: _Pieces, slots: int = 0) -> _Pieces:
        """Contiguous room for pieces: a receive's in one of ``slots`` landing slots in turn; a send's, which is in use for
        as long as the peer likes, in a slot of its own, so that nothing ever waits for it.
        """
        nbytes = sum(place.nbytes for _, place in pieces)
        if len(self.receive_slots) < slots or not slots:
            slot = len(self.landings)
            self.landings.append(0)
            if slots:
                self.receive_slots.append(slot)
        else:
            slot = self.receive_slots[self.received % slots]
        self.received += bool(slots)
        self.landings[slot] = max(self.landings[slot], nbytes)
        displs = accumulate((place.nbytes for _, place in pieces), initial=0)
        return [(("landing", slot), _Place(3 + slot, displ, place.nbytes)) for (_, place), displ in zip(pieces, displs, strict=False)]

    def add(self, steps: Sequence[Step]) -> None:
        """Translate a channel."""
        groups = list(_fused(steps))
        slots = max([_LANDING_SLOTS, *(len(group) for group in groups)])
        for group in groups:
            step = group[0]
            if step.op == Op.RECV_REDUCE:
                self._receive_reduce(group, slots)
                continue
            operands = [self.chunks(run) for run in ((step.dst,) if step.dst else ()) + step.srcs]
            if not operands[0]:
                continue
            if step.op in (Op.COPY, Op.REDUCE):
                self.local(Code[step.op.name], *operands)
            else:
                self._transfer(Code[step.op.name], step.peer, operands[0], slots)

    def _transfer(self, code: Code, peer: int, pieces: _Pieces, slots: int) -> None:
        if len(list(_contiguous([pieces]))) == 1:
            self.message(code, peer, pieces)
        elif code == Code.SEND:
            staged = self.stage(pieces)
            self.local(Code.COPY, staged, pieces)
            self.message(code, peer, staged)
        else:
            staged = self.stage(pieces, slots)
            self.message(code, peer, staged)
            self.local(Code.COPY, pieces, staged)

    def _receive_reduce(self, group: Sequence[Step], slots: int) -> None:
        assert group[0].dst is not None
        destination = self.chunks(group[0].dst)
        if not destination:
            return
        operands = [self.chunks(group[0].srcs[0])]
        for step in group:
            landed = self.stage(destination, slots)
            self.message(Code.RECV, step.peer, landed)
            operands = [landed, *operands] if step.received_first else [*operands, landed]
        self.local(Code.REDUCE, destination, *operands)


def _fused(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """Steps, with consecutive receive-and-reduce steps into one chunk together; they fold left to right, as one by one."""
    group: list[Step] = []
    for step in steps:
        joins = group and step.op == Op.RECV_REDUCE == group[0].op and step.dst == group[0].dst == step.srcs[0] and not step.received_first
        if group and not joins:
            yield group
            group = []
        group.append(step)
    if group:
        yield group


def _contiguous(operands: Sequence[_Pieces]) -> Iterator[list[_Pieces]]:
    """Cut operands of equal chunk sizes where any of them is interrupted in memory."""
    start = 0
    for i in range(1, len(operands[0]) + 1):
        if i == len(operands[0]) or any(_gap(pieces[i - 1][1], pieces[i][1]) for pieces in operands):
            yield [pieces[start:i] for pieces in operands]
            start = i


def _gap(place: _Place, following: _Place) -> bool:
    return (place.buffer, place.displ + place.nbytes) != (following.buffer, following.displ)


def _join(pieces: _Pieces) -> _Place:
    first = pieces[0][1]
    return _Place(first.buffer, first.displ, sum(place.nbytes for _, place in pieces))


class _Rows:
    """Second half: items in order, receives posted ahead, waits where memory is used again."""

    def __init__(self, items: _Items) -> None:
        self.items = items
        self.rows: list[tuple[int, ...]] = []
        self.sources: list[tuple[int, int]] = []
        self.nrequests = 0
        self.requests: dict[int, list[int]] = {}  # item -> requests of its messages that were not waited for
        self.scratch_nbytes = _aligned(sum(count for _, count in items.scratch) * items.itemsize)
        self.landings: list[int] = []
        for nbytes in items.landings:
            self.landings.append(self.scratch_nbytes)
            self.scratch_nbytes += _aligned(nbytes)

    def emit(self) -> Lane:
        """Write the rows."""
        items = self.items.list
        posts = self._post_positions()
        sends: dict[Hashable, list[int]] = {}  # chunk -> items that send it and were not waited for
        for i, item in enumerate(items):
            for receive in posts.get(i, ()):
                self._wait_sends(sends, items[receive].writes)
                self._message(receive)
            if item.code == Code.RECV:
                self._wait(i)
            elif item.code == Code.SEND:
                self._message(i)
                for name in item.reads:
                    sends.setdefault(name, []).append(i)
            else:
                self._wait_sends(sends, item.writes)
                self._local(item)
        for i in list(self.requests):
            self._wait(i)
        return Lane(self.rows, self.sources, self.nrequests, self.scratch_nbytes)

    def _post_positions(self) -> dict[int, list[int]]:
        """Before which item each receive is posted: when its destination is free, in order, and not behind a wait of its own.

        Where it has to wait for a send of its destination, it passes no send on the way ahead: nothing that a peer may need
        comes to stand behind that wait.
        """
        positions: dict[int, list[int]] = {}
        touched: dict[Hashable, int] = {}  # chunk -> position from which it is free
        sent: set[Hashable] = set()
        receives: list[int] = []
        latest = last_send = 0
        for i, item in enumerate(self.items.list):
            if item.code == Code.RECV:
                free = max(touched.get(name, 0) for name in item.writes)
                behind = last_send if any(name in sent for name in item.writes) else 0
                ahead = receives[-_POSTED_AHEAD] + 1 if len(receives) >= _POSTED_AHEAD else 0
                latest = max(latest, free, behind, ahead)
                positions.setdefault(latest, []).append(i)
                receives.append(i)
            elif item.code == Code.SEND:
                last_send = i + 1
            sent.difference_update(item.writes)
            sent.update(item.reads if item.code == Code.SEND else ())
            for name in (*item.reads, *item.writes):
                touched[name] = i + 1
        return positions

    def _at(self, place: _Place) -> tuple[int, int]:
        if place.buffer < 3:
            return place.buffer, place.displ
        return int(Buffer.SCRATCH), self.landings[place.buffer - 3] + place.displ

    def _message(self, i: int) -> None:
        item = self.items.list[i]
        buffer, displ = self._at(item.places[0])
        for lo in range(0, item.places[0].nbytes, MAX_MESSAGE_NBYTES):
            nbytes = min(MAX_MESSAGE_NBYTES, item.places[0].nbytes - lo)
            self.rows.append((item.code, self.nrequests, item.peer, buffer, displ + lo, nbytes))
            self.requests.setdefault(i, []).append(self.nrequests)
            self.nrequests += 1

    def _wait(self, i: int) -> None:
        self.rows += [(Code.WAIT, request) for request in self.requests.pop(i, ())]

    def _wait_sends(self, sends: dict[Hashable, list[int]], names: Iterable[Hashable]) -> None:
        for name in names:
            for i in sends.pop(name, ()):
                self._wait(i)

    def _local(self, item: _Item) -> None:
        destination, *sources = [self._at(place) for place in item.places]
        nbytes = item.places[0].nbytes
        if item.code == Code.COPY:
            self.rows.append((Code.COPY, *destination, *sources[0], nbytes))
        else:
            self.rows.append((Code.REDUCE, *destination, nbytes // self.items.itemsize, len(self.sources), len(sources)))
            self.sources += sources


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 64) * 64


def lower(schedule: Schedule, segments: Segments, itemsize: int, window: int, *, in_place: bool) -> Program:
    """Write one rank's program.

    Args:
        schedule: This rank's steps for one segment.
        segments: Per segment its displacement in INPUT and OUTPUT, in elements, and its layout; segments that share one
            `Layout` object share one table.
        itemsize: Bytes of one element.
        window: Most lanes in flight, ``>= 1``.
        in_place: Whether the collective's aliased chunks are one memory.
    """
    who = (schedule.rank, schedule.nranks, schedule.root, schedule.nchunks)
    find_aliases = COLLECTIVES[schedule.collective].aliases
    aliases = dict(find_aliases(*who)) if in_place and find_aliases else {}
    rows: list[tuple[int, ...]] = []
    sources: list[tuple[int, int]] = []
    tables: dict[int, list[tuple[int, int]]] = {}  # layout -> rows of each channel
    lanes: list[tuple[int, int, int]] = []
    nrequests = scratch_nbytes = 0
    for displ, layout in segments:
        if id(layout) not in tables:
            tables[id(layout)] = []
            for steps in schedule.channels:
                items = _Items(schedule, layout, itemsize, aliases)
                items.add(steps)
                lane = _Rows(items).emit()
                tables[id(layout)].append((len(rows), len(rows) + len(lane.rows)))
                rows += [_padded(row, len(sources)) for row in lane.rows]
                sources += lane.sources
                nrequests, scratch_nbytes = max(nrequests, lane.nrequests), max(scratch_nbytes, lane.scratch_nbytes)
        lanes += [(first, last, displ * itemsize) for first, last in tables[id(layout)]]
    return Program(
        np.array(rows, np.int64).reshape(-1, NCOLUMNS), np.array(sources, np.int64).reshape(-1, 2), np.array(lanes, np.int64),
        min(window * len(schedule.channels), len(lanes)), nrequests, scratch_nbytes,
    )  # fmt: skip


def _padded(row: tuple[int, ...], nsources: int) -> tuple[int, ...]:
    """A row of full width; a reduction's first source counts from the start of the program's table."""
    if row[0] == Code.REDUCE:
        row = (*row[:4], row[4] + nsources, *row[5:])
    return row + (0,) * (NCOLUMNS - len(row))
