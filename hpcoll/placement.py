"""Steps as operations on places: contiguous bytes of a buffer. Floor 5; the first half of lowering.

Consecutive receive-and-reduce steps into one chunk become one many-input reduction, runs of chunks that are not contiguous
in memory are packed, empty ones dropped. Both ends of a message decide alike, because they see equal sizes.
"""

from collections.abc import Hashable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from hpcoll.ir import Buffer, Chunk, Op, Schedule, Step
from hpcoll.layout import Layout
from hpcoll.program import Code

_LANDING_SLOTS = 3  # destinations for receives that are reduced on arrival, unless more are reduced at once


class Place(NamedTuple):
    """Contiguous bytes of one buffer; buffers from 3 on are landing slots."""

    buffer: int
    displ: int
    nbytes: int


class Item(NamedTuple):
    """A step on places; the names of the chunks it touches decide what may move before it."""

    code: Code
    peer: int
    places: list[Place]  # SEND, RECV: one; COPY: destination, source; REDUCE: destination, sources
    reads: list[Hashable]
    writes: list[Hashable]


Pieces = list[tuple[Hashable, Place]]


class Items:
    """First half: the steps of one channel as items on places."""

    def __init__(self, schedule: Schedule, layout: Layout, itemsize: int, aliases: dict[int, int]) -> None:
        self.layout, self.itemsize, self.aliases = layout, itemsize, aliases
        self.list: list[Item] = []
        ends = [0, *accumulate(layout.size(extent) for extent in schedule.scratch)]
        self.scratch = [(lo, hi - lo) for lo, hi in pairwise(ends)]
        self.landings: list[int] = []  # nbytes of each landing slot
        self.received = 0
        self.receive_slots: list[int] = []

    def chunks(self, run: Chunk) -> Pieces:
        """Each chunk of a run that is not empty, with the name of its memory."""
        found: Pieces = []
        for index in range(run.index, run.index + run.n):
            buffer, i = run.buffer, index
            if buffer == Buffer.INPUT and i in self.aliases:
                buffer, i = Buffer.OUTPUT, self.aliases[i]
            displ, count = (self.layout.inputs, self.layout.outputs, self.scratch)[buffer][i]
            if count:
                found.append(((buffer, i), Place(buffer, displ * self.itemsize, count * self.itemsize)))
        return found

    def local(self, code: Code, *operands: Pieces) -> None:
        """A copy or reduction, destination first, in as few pieces as are contiguous in all operands."""
        for group in _contiguous(operands):
            places = [_join(pieces) for pieces in group]
            if code == Code.COPY and places[0] == places[1]:
                continue
            names = [[name for name, _ in pieces] for pieces in group]
            self.list.append(Item(code, -1, places, [name for part in names[1:] for name in part], names[0]))

    def message(self, code: Code, peer: int, pieces: Pieces) -> None:
        """A send or receive of contiguous pieces."""
        names = [name for name, _ in pieces]
        reads, writes = (names, []) if code == Code.SEND else ([], names)
        self.list.append(Item(code, peer, [_join(pieces)], reads, writes))

    def stage(self, pieces: Pieces, slots: int = 0) -> Pieces:
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
        return [(("landing", slot), Place(3 + slot, displ, place.nbytes)) for (_, place), displ in zip(pieces, displs, strict=False)]

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

    def _transfer(self, code: Code, peer: int, pieces: Pieces, slots: int) -> None:
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


def _contiguous(operands: Sequence[Pieces]) -> Iterator[list[Pieces]]:
    """Cut operands of equal chunk sizes where any of them is interrupted in memory."""
    start = 0
    for i in range(1, len(operands[0]) + 1):
        if i == len(operands[0]) or any(_gap(pieces[i - 1][1], pieces[i][1]) for pieces in operands):
            yield [pieces[start:i] for pieces in operands]
            start = i


def _gap(place: Place, following: Place) -> bool:
    return (place.buffer, place.displ + place.nbytes) != (following.buffer, following.displ)


def _join(pieces: Pieces) -> Place:
    first = pieces[0][1]
    return Place(first.buffer, first.displ, sum(place.nbytes for _, place in pieces))
