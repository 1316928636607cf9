"""Steps as operations on spans: contiguous bytes of a buffer.; the first half of lowering.

Consecutive receive-and-reduce steps into one chunk become one many-input reduction, runs of chunks that are not contiguous
in memory are packed, empty ones dropped. Both ends of a message decide alike, because they see equal sizes. What a rank
of the same node sends is used where it lies; what several of them get is staged once.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from hpcoll.runtime.program.chunk_layout import Layout
from hpcoll.runtime.program.opcodes import INLINE_NBYTES, Code, aligned
from hpcoll.schedules.ir import Buffer, Chunk, Op, Schedule, Step

_LANDING_SLOTS = 3  # destinations for receives that are reduced on arrival, unless more are reduced at once
STAGED, MESSAGE = -1, -2  # buffers of spans in the shared window; message slot ``i`` is buffer ``MESSAGE - i``


class Span(NamedTuple):
    """Contiguous bytes of one buffer; buffers from 3 on are landing slots, negative ones on the node."""

    buffer: int
    displ: int
    nbytes: int


class Item(NamedTuple):
    """A step on spans; the names of the chunks it touches decide what may move before it."""

    code: Code
    peer: int
    spans: list[Span]  # SEND, RECV, AWAIT: one; COPY, STAGE: destination, source; POST: source, staged; REDUCE: destination, sources
    reads: list[Hashable]
    writes: list[Hashable]


Pieces = list[tuple[Hashable, Span]]


class Items:
    """First half: the steps of one channel as items on spans; ``local_peers`` gives the local rank of peers on the same node."""

    boundary = 64  # bytes: landing slots start at its multiples
    direct = True  # MPI messages leave from and land in any buffer; else in pinned landing slots only

    def __init__(self, schedule: Schedule, layout: Layout, itemsize: int, aliases: dict[int, int], local_peers: Mapping[int, int]) -> None:
        self.layout, self.itemsize, self.aliases, self.local_peers = layout, itemsize, aliases, local_peers
        self.list: list[Item] = []
        self.staging_nbytes = self.nmessages = 0
        self._staged: dict[tuple[Hashable, ...], Span] = {}  # chunks that are in the window as they are in memory
        self._unused: list[int] = []  # local ranks whose messages were awaited and not yet acknowledged, in order
        self._messages: dict[Chunk, Pieces] = {}  # scratch cells that stand for a message
        ends = [0, *accumulate(layout.size(extent) for extent in schedule.scratch)]
        self.scratch = [(lo, hi - lo) for lo, hi in pairwise(ends)]
        self.landings: list[int] = []  # nbytes of each landing slot
        self.pinned: set[int] = set()  # landing slots in pinned memory
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
                found.append(((buffer, i), Span(buffer, displ * self.itemsize, count * self.itemsize)))
        return found

    def local(self, code: Code, *operands: Pieces) -> None:
        """A copy or reduction, destination first, in as few pieces as are contiguous in all operands."""
        for group in contiguous(operands):
            spans = [join(pieces) for pieces in group]
            if code == Code.COPY and spans[0] == spans[1]:
                continue
            self._operate(code, spans, [[name for name, _ in pieces] for pieces in group])

    def _operate(self, code: Code, spans: list[Span], names: list[list[Hashable]]) -> None:
        self._append(Item(code, -1, spans, [name for part in names[1:] for name in part], names[0]))

    def message(self, code: Code, peer: int, pieces: Pieces) -> None:
        """A send or receive of contiguous pieces."""
        names = [name for name, _ in pieces]
        reads, writes = (names, []) if code == Code.SEND else ([], names)
        self._append(Item(code, peer, [join(pieces)], reads, writes))

    def _append(self, item: Item) -> None:
        self.list.append(item)
        if item.writes:
            self._staged = {names: span for names, span in self._staged.items() if not set(names) & set(item.writes)}

    def _post(self, peer: int, pieces: Pieces) -> None:
        """A message to a rank of the node: within its line, or read where it lies or was staged."""
        names = tuple(name for name, _ in pieces)
        groups = [join(group) for (group,) in contiguous([pieces])]
        nbytes = sum(span.nbytes for span in groups)
        inline = len(groups) == 1 and nbytes <= INLINE_NBYTES
        staged = Span(STAGED, 0, nbytes) if inline else self._into_window(names, groups)
        source = groups[0] if len(groups) == 1 else staged
        self._append(Item(Code.POST, self.local_peers[peer], [source, staged], list(names), []))

    def _into_window(self, names: tuple[Hashable, ...], groups: Sequence[Span]) -> Span:
        """Where chunks are staged as they are in memory; they are staged now, unless they have been."""
        if names not in self._staged:
            start = self.staging_nbytes
            for span in groups:
                to = Span(STAGED, self.staging_nbytes, span.nbytes)
                self._append(Item(Code.STAGE, -1, [to, span], list(names), [("staged", start)]))
                self.staging_nbytes += span.nbytes
            self._staged[names] = Span(STAGED, start, self.staging_nbytes - start)
            self.staging_nbytes = aligned(self.staging_nbytes)
        return self._staged[names]

    def _await(self, peer: int, pieces: Pieces) -> Pieces:
        """Wait for a message from a rank of the node; returns its pieces, which last until `_acknowledge`."""
        buffer = MESSAGE - len(self._unused)
        self._unused.append(self.local_peers[peer])
        self.nmessages = max(self.nmessages, len(self._unused))
        displs = accumulate((span.nbytes for _, span in pieces), initial=0)
        found: Pieces = [
            (("message", buffer), Span(buffer, displ, span.nbytes)) for (_, span), displ in zip(pieces, displs, strict=False)
        ]
        self._append(Item(Code.AWAIT, self.local_peers[peer], [join(found)], [], []))
        return found

    def _acknowledge(self) -> None:
        for i, local in enumerate(self._unused):
            self._append(Item(Code.ACK, local, [], [("message", MESSAGE - i)], []))
        self._unused = []

    def _packed(self, pieces: Pieces) -> Pieces:
        """A contiguous copy, to be sent."""
        staged = self.stage(pieces)
        self.local(Code.COPY, staged, pieces)
        return staged

    def stage(self, pieces: Pieces, slots: int = 0, *, for_local: bool = False) -> Pieces:
        """Contiguous room for pieces: a receive's in one of ``slots`` landing slots in turn; a send's, which is in use for
        as long as the peer likes, in a slot of its own, so that nothing ever waits for it. ``for_local``: for local peers.
        """
        nbytes = sum(span.nbytes for _, span in pieces)
        if len(self.receive_slots) < slots or not slots:
            slot = len(self.landings)
            self.landings.append(0)
            if slots:
                self.receive_slots.append(slot)
        else:
            slot = self.receive_slots[self.received % slots]
        if not (for_local or self.direct):
            self.pinned.add(slot)
        self.received += bool(slots)
        self.landings[slot] = max(self.landings[slot], nbytes)
        displs = accumulate((span.nbytes for _, span in pieces), initial=0)
        return [(("landing", slot), Span(3 + slot, displ, span.nbytes)) for (_, span), displ in zip(pieces, displs, strict=False)]

    def add(self, steps: Sequence[Step]) -> None:
        """Translate a channel."""
        groups = list(_fused(steps))
        slots = max([_LANDING_SLOTS, *(len(group) for group in groups)])
        in_place = _read_in_place(steps, self.local_peers)
        for group in groups:
            step = group[0]
            if step.op == Op.RECV_REDUCE:
                self._receive_reduce(group, slots)
                continue
            operands = [self._messages.pop(run, []) or self.chunks(run) for run in ((step.dst,) if step.dst else ()) + step.srcs]
            if not operands[0]:
                continue
            if step.dst in in_place and step.op == Op.RECV:
                self._messages[step.dst] = self._await(step.peer, operands[0])
            elif step.op in (Op.COPY, Op.REDUCE):
                self.local(Code[step.op.name], *operands)
                self._acknowledge()
            else:
                self._transfer(Code[step.op.name], step.peer, operands[0], slots)

    def _transfer(self, code: Code, peer: int, pieces: Pieces, slots: int) -> None:
        if peer in self.local_peers and code == Code.SEND:
            self._post(peer, pieces)
        elif peer in self.local_peers:
            self.local(Code.COPY, pieces, self._await(peer, pieces))
            self._acknowledge()
        elif self.direct and len(list(contiguous([pieces]))) == 1:
            self.message(code, peer, pieces)
        elif code == Code.SEND:
            self.message(code, peer, self._packed(pieces))
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
            if step.peer in self.local_peers:
                landed = self._await(step.peer, destination)
            else:
                landed = self.stage(destination, slots)
                self.message(Code.RECV, step.peer, landed)
            operands = [landed, *operands] if step.received_first else [*operands, landed]
        self.local(Code.REDUCE, destination, *operands)
        self._acknowledge()


def host_items(
    schedule: Schedule, layout: Layout, itemsize: int, aliases: dict[int, int], local_peers: Mapping[int, int], steps: Sequence[Step]
) -> Items:
    """The steps of one channel, for arrays in host memory."""
    items = Items(schedule, layout, itemsize, aliases, local_peers)
    items.add(steps)
    return items


def _read_in_place(steps: Sequence[Step], local_peers: Mapping[int, int]) -> set[Chunk]:
    """Scratch cells that only carry a local_peers peer's message from its receive to the reduction right behind a run of receives.

    The reduction reads such messages where the peer left them. All of a run or none: a peer's messages are used in order.
    """
    found: set[Chunk] = set()
    uses: dict[int, int] = {}  # scratch cell -> steps that name it
    for step in steps:
        for run in (*((step.dst,) if step.dst else ()), *step.srcs):
            if run.buffer == Buffer.SCRATCH:
                for index in _indices(run):
                    uses[index] = uses.get(index, 0) + 1
    for end, reduction in enumerate(steps):
        if reduction.op != Op.REDUCE:
            continue
        first = end
        while first and steps[first - 1].op == Op.RECV:
            first -= 1
        cells = [step.dst for step in steps[first:end] if step.dst and step.peer in local_peers]
        if all(run.buffer == Buffer.SCRATCH and run in reduction.srcs and all(uses[i] == 2 for i in _indices(run)) for run in cells):
            found.update(cells)
    return found


def _indices(run: Chunk) -> range:
    return range(run.index, run.index + run.n)


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


def contiguous(operands: Sequence[Pieces]) -> Iterator[list[Pieces]]:
    """Cut operands of equal chunk sizes where any of them is interrupted in memory."""
    start = 0
    for i in range(1, len(operands[0]) + 1):
        if i == len(operands[0]) or any(_gap(pieces[i - 1][1], pieces[i][1]) for pieces in operands):
            yield [pieces[start:i] for pieces in operands]
            start = i


def _gap(span: Span, following: Span) -> bool:
    return (span.buffer, span.displ + span.nbytes) != (following.buffer, following.displ)


def join(pieces: Pieces) -> Span:
    """Pieces that are contiguous, as one span."""
    first = pieces[0][1]
    return Span(first.buffer, first.displ, sum(span.nbytes for _, span in pieces))
