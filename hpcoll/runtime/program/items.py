"""Items: the operations of a lane on spans, the first half of lowering. Routes write them, and take their memory here."""

from collections import deque
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple

import numpy as np

from hpcoll.base.sizes import Multiples, largest
from hpcoll.runtime.program.chunks import (
    LANDING,
    MESSAGE,
    ChunkLayout,
    Names,
    Pieces,
    Span,
    Tiles,
    contiguous,
    join,
    names_of,
    nbytes_of,
    placed,
    spans_of,
)
from hpcoll.runtime.program.opcodes import CACHE_LINE_NBYTES, INLINE_NBYTES, STAGING, Code, Row, aligned
from hpcoll.runtime.program.stretches import Stretches
from hpcoll.schedules.ir import Buffer, Chunk, Schedule

BATCH = 8  # alike operations from which on they are written together
LANDING_SLOTS = 3  # for receives that are reduced on arrival, unless more are reduced at once


class InPlace(IntEnum):
    """A local peer's access to this rank's buffer, in place of a message."""

    NEVER = 0
    IF_SYMMETRIC = 1  # reads where that turns out to be symmetric memory and nothing overwrites it later; DRAIN rows wait for the readers
    LENT = 2  # reads always; UNREAD rows wait for the reader before it is overwritten
    GRANTED = 3  # writes; announced as early as a receive is posted, and an UNREAD row waits for the writer where the receive is


class Item(NamedTuple):
    """An operation on spans."""

    code: Code
    peer: Any  # as rows name it: by its rank, or by its local rank where the operation is on shared memory; -1: none
    # of SEND, RECV, STAGE, POST one; of COPY, REDUCE the destination, sources, further destinations; of others none
    spans: list[Span]
    reads: list[Hashable]  # names of chunks; reads and writes decide what may move before the item
    writes: list[Hashable]
    to: Any = 0  # of STAGE and POST the displacement in the lane's staging memory; of AWAIT the message slot
    nbytes: int = 0  # of the message of an AWAIT; of an ACK, where messages may be empty, else 1
    in_place: InPlace = InPlace.NEVER  # of STAGE and POST
    nfurther: int = 0  # further destinations of a REDUCE

    @property
    def lends(self) -> bool:
        """Say whether others read its chunks until a wait has passed."""
        return self.code == Code.SEND or self.in_place == InPlace.LENT

    @property
    def grants(self) -> bool:
        """Say whether it lets a peer write its chunks."""
        return self.in_place == InPlace.GRANTED

    def grants_reader_of(self, other: "Item") -> bool:
        """Say whether it lets the peer write that reads chunks which another item lends: that peer does so in order."""
        return self.grants and other.in_place == InPlace.LENT and self.peer == other.peer


class Batch(NamedTuple):
    """Groups of alike items, one after another, each on a single block of its own.

    Attributes:
        parts: The items of a group. A number that differs between groups is `Multiples`, and names are a list with one of each group.
        n: Number of groups.
    """

    parts: tuple[Item, ...]
    n: int

    @property
    def reads(self) -> list[Hashable]:
        """The chunks that any of its items reads."""
        return [name for part in self.parts for name in part.reads]

    @property
    def writes(self) -> list[Hashable]:
        """The chunks that any of its items writes."""
        return [name for part in self.parts for name in part.writes]

    @property
    def last(self) -> list[Hashable]:
        """The chunks of the last item."""
        return [*self.parts[-1].reads[-1:], *self.parts[-1].writes[-1:]]

    def items(self) -> Iterator[Item]:
        """Yield its items one by one."""
        for i in range(self.n):
            for part in self.parts:
                peer, to = _one(part.peer, i), _one(part.to, i)
                spans = [Span(buffer, _one(displ, i), nbytes) for buffer, displ, nbytes in part.spans]
                reads, writes = part.reads[i : i + 1], part.writes[i : i + 1]
                yield part._replace(peer=peer, to=to, spans=spans, reads=reads, writes=writes)


def _one(number: Any, i: int) -> Any:
    return number[i] if isinstance(number, Multiples) else number


class Blocks(NamedTuple):
    """Single blocks of one buffer: the name of each one's memory, and where they are."""

    names: list[Hashable]
    span: Span  # of which the displacements are `Multiples`


class Items:
    """The items of one lane, in order, and the memory that they need.

    Args:
        schedule: The lane's schedule.
        layout: Layout of its segment.
        stretches: Stretches of its chunks.
        itemsize: Bytes of an element.
        aliases: Chunks of INPUT that are chunks of OUTPUT.
        mapped: Buffers whose bytes lie in memory as a map says: they are copied when they are sent or received.
        copied: Lent messages that are copied first, by number.
        unused: First cells of stretches of SCRATCH that no item touches: they have places behind all others, and no memory.

    Attributes:
        keeps_empty: Chunks and messages without bytes are operations too, which do nothing.
        batches: Operations on many single blocks may be written as a `Batch`; ``gaps``: there are gaps between blocks of INPUT and OUTPUT.
        scratch: Displacement and count of each stretch of SCRATCH, by its first cell; with ``batches`` in blocks, else in elements.
        scratch_count: Elements of those that have memory.
        nlandings: Landing slots that receives take in turn.
    """

    boundary: ClassVar[int] = CACHE_LINE_NBYTES  # landing slots start at its multiples
    on_gpu: ClassVar[bool] = False

    def __init__(
        self,
        schedule: Schedule,
        layout: ChunkLayout,
        stretches: Stretches,
        itemsize: int,
        aliases: dict[int, int],
        mapped: Collection[int] = (),
        copied: frozenset[int] = frozenset(),
        unused: frozenset[int] = frozenset(),
    ) -> None:
        self.layout, self.itemsize, self.aliases, self._mapped, self._copied = (
            layout,
            itemsize,
            aliases,
            mapped,
            copied,
        )
        self.keeps_empty = layout.varying and not self.on_gpu
        stride, block = layout.blocks or (0, 0)
        self.batches = not self.on_gpu and bool(block)
        self.gaps = self.batches and stride is not block
        self._block = block * itemsize
        self._pitch = stride * itemsize, stride * itemsize, self._block  # from a block to the next, by buffer
        self.list: list[Any] = []  # of `Item` and `Batch`
        self.stretches = stretches
        self._found: dict[tuple[Buffer, int], Pieces] = {}  # pieces of stretches, by buffer and first chunk
        cells = dict(stretches.all(Buffer.SCRATCH))
        if not self.batches:
            cells = {first: layout.total(schedule.scratch[first : first + n]) for first, n in cells.items()}
        self.scratch, count = _cells(cells, unused)
        self.scratch_count = count * block if self.batches else count
        self.landings: list[Any] = []  # bytes of each landing slot
        self.pinned: set[int] = set()  # landing slots in pinned memory
        self.nlandings, self.staging_nbytes, self.nmessages, self.nstaged = LANDING_SLOTS, 0, 0, 0
        # landing slots of receives; key: pinned
        self._receiving: dict[bool, deque[int]] = {
            False: deque(),
            True: deque(),
        }
        self._staged: dict[
            tuple[Hashable, ...], tuple[Span, Hashable]
        ] = {}  # chunks that are staged as they are in memory
        self._staged_of: dict[Hashable, list[tuple[Hashable, ...]]] = {}  # chunk -> keys of `_staged` with it
        self._unused: list[
            tuple[int, int, Any]
        ] = []  # messages awaited and not yet used, in order: message slot, local peer, bytes
        self._lent: dict[int, int] = {}  # index of the item that lends a message -> the message's number

    def chunks(self, run: Chunk) -> Pieces:
        """Return a run's stretches that are not empty, with names of their memory; of blocks that vary on the host, the empty ones too."""
        pieces: Pieces = []
        for first, n in self.stretches.of(run):
            found = self._found.get((run.buffer, first))
            if found is None:
                found = self._found[run.buffer, first] = self._stretch(run.buffer, first, n)
            pieces += found
        return pieces

    def whole(self, run: Chunk) -> Pieces:
        """Return many blocks that follow each other in memory as one piece; none where that is not known."""
        buffer, first, n = run
        if n == 1 or not self.batches or (self.aliases and buffer == Buffer.INPUT):
            return []
        if self.gaps and buffer != Buffer.SCRATCH:
            return []
        names = Names((buffer, start) for start, _ in self.stretches.of(run))
        place = self.scratch[first][0] if buffer == Buffer.SCRATCH else first  # items touch all its cells
        return [(names, Span(buffer, self._pitch[buffer] * place, self._block * n))]

    def _stretch(self, buffer: Buffer, first: int, n: int) -> Pieces:
        """Return the piece that is a stretch; none where it is empty and empty ones are left out."""
        if buffer == Buffer.INPUT and first in self.aliases:
            buffer, first = Buffer.OUTPUT, self.aliases[first]
        if self.batches:
            place = self.scratch[first][0] if buffer == Buffer.SCRATCH else first
            nbytes = self._block if n == 1 else self._block * n
            return [((buffer, first), Span(buffer, self._pitch[buffer] * place, nbytes))]
        displ, count = self._place(buffer, first, n)
        if not self.keeps_empty and not count:
            return []
        return [((buffer, first), Span(buffer, displ * self.itemsize, count * self.itemsize))]

    def _place(self, buffer: Buffer, first: int, n: int) -> tuple[Any, Any]:
        """Return displacement and count of a stretch, in elements."""
        if buffer == Buffer.SCRATCH:
            return self.scratch[first]
        places = self.layout.inputs if buffer == Buffer.INPUT else self.layout.outputs
        return places.run(first, n) if isinstance(places, Tiles) else places[first]

    def blocks(self, runs: Sequence[Chunk]) -> Blocks:
        """Return the chunks of runs of one buffer, each on its own; none is another's alias."""
        buffer = runs[0].buffer
        return self._blocks(buffer, [(buffer, i) for _, first, n in runs for i in range(first, first + n)])

    def _blocks(self, buffer: int, names: list[Any]) -> Blocks:
        """Return blocks of these names, which follow each other in a slot."""
        places, pitch = list(range(len(names))), self._block
        if buffer in (Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH):
            pitch = self._pitch[buffer]
            places = [self.scratch[i][0] if buffer == Buffer.SCRATCH else i for _, i in names]
        displs: Any = Multiples(np.array(places), pitch)
        return Blocks(names, Span(buffer, displs, self._block))

    def is_mapped(self, buffer: int) -> bool:
        """Say whether a buffer's bytes lie in memory as a map says."""
        return buffer in self._mapped

    def are_whole(self, pieces: Pieces) -> bool:
        """Say whether pieces are one stretch of memory."""
        spans = spans_of(pieces)
        return len(spans) == 1 and not self.is_mapped(spans[0].buffer)

    def append(self, item: Any) -> None:
        """Add an item or a batch."""
        self.list.append(item)
        for name in item.writes if self._staged else ():
            for names in self._staged_of.pop(name, ()):
                self._staged.pop(names, None)

    # --- within the rank

    def operate(self, code: Code, operands: Sequence[Pieces], further: Sequence[Pieces] = ()) -> None:
        """Add a COPY or REDUCE, destination first, in as few items as are contiguous in all operands and further destinations."""
        for group in contiguous([*operands, *further]):
            spans, names = [join(pieces) for pieces in group], [names_of(pieces) for pieces in group]
            if code == Code.REDUCE or spans[0] != spans[1]:
                n = len(operands)
                self._operate(code, spans[:n], names[:n], spans[n:], names[n:])

    def _operate(
        self,
        code: Code,
        spans: list[Span],
        names: list[list[Hashable]],
        further: list[Span],
        written: list[list[Hashable]],
    ) -> None:
        writes = [name for part in (names[0], *written) for name in part]
        self.append(
            Item(
                code,
                -1,
                spans + further,
                [name for part in names[1:] for name in part],
                writes,
                nfurther=len(further),
            )
        )

    def copy(self, destination: Pieces, source: Pieces) -> None:
        """Copy pieces."""
        sides = destination, source
        if self.gaps and len(source) >= BATCH and all(map(self._are_blocks, sides)):
            self.copy_blocks(*(self._blocks(pieces[0][1].buffer, names_of(pieces)) for pieces in sides))
        else:
            self.operate(Code.COPY, (destination, source))

    def _are_blocks(self, pieces: Pieces) -> bool:
        """Say whether pieces are single blocks, all in a buffer or in a slot."""
        buffer = pieces[0][1].buffer
        return all(span.buffer == buffer and span.nbytes is self._block for _, span in pieces)

    def copy_blocks(self, destination: Blocks, source: Blocks) -> None:
        """Copy blocks, each to another."""
        spans = [destination.span, source.span]
        copy = Item(Code.COPY, -1, spans, source.names, destination.names)
        self.append(Batch((copy,), len(source.names)))

    def packed(self, pieces: Pieces, *, pinned: bool = False, lent: bool = False) -> Pieces:
        """Return a contiguous copy of pieces to send or lend: it is in use for as long as the peer likes."""
        copy = self.room(pieces, pinned=pinned)
        self.copy(copy, pieces)
        return copy

    def room(self, pieces: Pieces, *, pinned: bool = False) -> Pieces:
        """Return contiguous room for pieces, in a landing slot of its own."""
        return self._in_slot(self._new_slot(pinned), pieces)

    def landing(self, pieces: Pieces, *, pinned: bool = False) -> Pieces:
        """Return contiguous room for a message: receives take `nlandings` slots in turn."""
        slots = self._receiving[pinned]
        slots.append(self._new_slot(pinned) if len(slots) < self.nlandings else slots.popleft())
        return self._in_slot(slots[-1], pieces)

    def _new_slot(self, pinned: bool) -> int:
        self.landings.append(0)
        slot = len(self.landings) - 1
        self.pinned.update({slot} if pinned else ())
        return slot

    def _in_slot(self, slot: int, pieces: Pieces) -> Pieces:
        self.landings[slot] = largest(self.landings[slot], nbytes_of(pieces))
        return placed(("landing", slot), LANDING + slot, pieces)

    # --- messages of the MPI library

    def message(self, code: Code, peer: int, pieces: Pieces) -> None:
        """Add a SEND or RECV of contiguous pieces."""
        reads, writes = (names_of(pieces), []) if code == Code.SEND else ([], names_of(pieces))
        self.append(Item(code, peer, [join(pieces)], reads, writes))

    # --- messages between local peers

    def staged(self, pieces: Pieces, in_place: InPlace) -> tuple[Span, Hashable]:
        """Return span and name of the staged copy of pieces; they are staged now, unless they have been."""
        names = tuple(names_of(pieces))
        if names not in self._staged:
            start = self.staging_nbytes
            for span in spans_of(pieces):
                copy = ("staged", self.nstaged)
                self.append(
                    Item(
                        Code.STAGE, -1, [span], list(names), [copy], to=self.staging_nbytes, in_place=in_place
                    )
                )
                self.staging_nbytes += span.nbytes
            for name in names:
                self._staged_of.setdefault(name, []).append(names)
            nbytes = self.staging_nbytes - start
            self._staged[names] = Span(STAGING, start, nbytes), ("staged", self.nstaged)
            self.nstaged += 1
            self.staging_nbytes = start + aligned(nbytes)
        return self._staged[names]

    def post(
        self,
        peer: int,
        source: Span,
        reads: Sequence[Hashable],
        *,
        staged_displ: int = 0,
        in_place: InPlace = InPlace.NEVER,
    ) -> None:
        """Announce a message."""
        self.append(Item(Code.POST, peer, [source], list(reads), [], to=staged_displ, in_place=in_place))

    def post_blocks(self, peers: Multiples, blocks: Blocks) -> None:
        """Announce blocks, which no other message has, each to a peer: inline, or its staged copy or, in symmetric memory, itself."""
        n, nbytes = len(blocks.names), blocks.span.nbytes
        post = Item(Code.POST, peers, [blocks.span], blocks.names, [])
        if nbytes <= INLINE_NBYTES:
            self.append(Batch((post,), n))
            return
        to = Multiples(np.arange(n), aligned(nbytes), self.staging_nbytes)
        post = post._replace(to=to, in_place=InPlace.IF_SYMMETRIC)
        self.append(Batch((post._replace(code=Code.STAGE, peer=-1), post), n))
        self.nstaged += n
        self.staging_nbytes += n * aligned(nbytes)

    def lend(self, peer: int, pieces: Pieces, *, readable: bool) -> None:
        """Announce pieces that the peer reads in place, or a copy if they are not readable or overwritten too soon."""
        if not readable or len(self._lent) in self._copied:
            pieces = self.packed(pieces, lent=True)
        self.post(peer, join(pieces), names_of(pieces), in_place=InPlace.LENT)
        self._lent[len(self.list) - 1] = len(self._lent)

    def grant(self, peer: int, pieces: Pieces) -> None:
        """Let the peer write contiguous pieces, and wait until it has."""
        self.append(Item(Code.POST, peer, [join(pieces)], [], names_of(pieces), in_place=InPlace.GRANTED))

    def await_message(self, peer: int, pieces: Pieces) -> Pieces:
        """Wait for a message of the sizes of pieces; return its pieces, which last until `acknowledge`."""
        slot = self._message_slot(peer)
        self._unused.append((slot, peer, nbytes_of(pieces) if self.keeps_empty else 1))  # empty or not
        self.nmessages = max(self.nmessages, slot + 1)
        self.append(Item(Code.AWAIT, peer, [], [], [], to=slot, nbytes=nbytes_of(pieces)))
        return placed(("message", slot), MESSAGE - slot, pieces)

    def await_blocks(self, peers: Multiples) -> list[Pieces]:
        """Wait for a message of a block of each peer; return their pieces, which last until `acknowledge`."""
        n, first = len(peers.factors), len(self._unused)
        slots = range(first, first + n)
        self._unused += zip(slots, peers.value.tolist(), [1] * n)
        self.nmessages = max(self.nmessages, first + n)
        to = Multiples(np.array(slots))
        self.append(Batch((Item(Code.AWAIT, peers, [], [], [], to=to, nbytes=self._block),), n))
        return [[(("message", slot), Span(MESSAGE - slot, 0, self._block))] for slot in slots]

    def receive_blocks(self, peers: Multiples, blocks: Blocks) -> None:
        """Copy a message of each peer into a block."""
        assert not self._unused
        n, nbytes = len(blocks.names), blocks.span.nbytes
        message: list[Hashable] = [("message", 0)] * n
        self.nmessages = max(self.nmessages, 1)
        parts = (
            Item(Code.AWAIT, peers, [], [], [], nbytes=nbytes),
            Item(Code.COPY, -1, [blocks.span, Span(MESSAGE, 0, nbytes)], message, blocks.names),
            Item(Code.ACK, peers, [], message, [], nbytes=1),
        )
        self.append(Batch(parts, n))

    def _message_slot(self, peer: int) -> int:
        return len(self._unused)

    def acknowledge(self) -> None:
        """Tell peers that all messages that were awaited have been used."""
        self._say_used(self._unused)
        self._unused = []

    def _say_used(self, messages: list[tuple[int, int, Any]]) -> None:
        if self.batches and len(messages) >= BATCH:
            names: list[Hashable] = [("message", slot) for slot, _, _ in messages]
            peers = Multiples(np.array([peer for _, peer, _ in messages]))
            self.append(Batch((Item(Code.ACK, peers, [], names, [], nbytes=1),), len(messages)))
            return
        for slot, peer, nbytes in messages:
            self.append(Item(Code.ACK, peer, [], [("message", slot)], [], nbytes=nbytes))

    def end(self) -> None:
        """Write what is put off, behind the lane's last step."""

    def waits(self, rows: list[Row], owners: Mapping[int, Item]) -> tuple[list[Row], int]:
        """Return the lane's rows with waits of the host for the GPU among them, and the events that these need; by row its item."""
        return rows, 0

    def untouched(self) -> frozenset[int]:
        """Return first cells of stretches of SCRATCH that no item touches: messages for them are used where they are."""
        touched = {name for item in self.list for name in (*item.reads, *item.writes)}
        return frozenset(i for i in self.scratch if (Buffer.SCRATCH, i) not in touched)

    def overwritten_too_soon(self) -> frozenset[int]:
        """Return messages lent from memory that is overwritten before the lane has used another peer's message.

        Their reader may itself wait there: two ranks that exchange a chunk and reduce into it would wait for each other.
        """
        early: set[int] = set()
        lent: dict[
            Hashable, list[tuple[int, int]]
        ] = {}  # chunk -> item that lends it, and how many messages had been used before it
        used = 0
        for i, item in enumerate(self.list if self._lent else ()):
            for name in item.writes:
                lends = [lender for lender, before in lent.pop(name, ()) if before == used]
                early.update(
                    self._lent[lender] for lender in lends if not item.grants_reader_of(self.list[lender])
                )
            used += item.code == Code.ACK
            for name in item.reads if i in self._lent else ():
                lent.setdefault(name, []).append((i, used))
        return frozenset(early)


def _cells(counts: Mapping[int, Any], unused: frozenset[int]) -> tuple[dict[int, tuple[Any, Any]], Any]:
    """Return places of stretches of SCRATCH by their first cells, unused ones behind all others, and the count of those others."""
    order = sorted(counts, key=unused.__contains__)
    starts = list(accumulate((counts[first] for first in order), initial=0))
    places = {first: (start, counts[first]) for first, start in zip(order, starts, strict=False)}
    return places, starts[len(counts) - len(unused)]
