"""The layout of chunks in the buffers of a message, and spans: contiguous bytes of a buffer. Pure arithmetic."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache
from itertools import accumulate, pairwise
from operator import eq, index
from typing import Any, NamedTuple

from hpcoll.schedules.ir import Schedule, chunk_bounds, segment_count

MESSAGE = -2  # buffer of a span: the message in message slot ``i`` is ``MESSAGE - i``
LANDING = 3  # the landing slot ``i`` is ``LANDING + i``; the other buffers are as in a row


class Tiles(Sequence[tuple[int, int]]):
    """The places of ``n`` chunks that follow each other, reckoned when they are asked for; ``start`` returns where a chunk begins.

    ``count`` returns the elements of a chunk where there are gaps between chunks, else it is None.
    """

    def __init__(
        self, n: int, start: Callable[[int], Any], count: Callable[[int], Any] | None = None
    ) -> None:
        self._n, self._start, self._count = n, cache(start), count
        self.gapless = count is None

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, i: Any) -> Any:
        if i >= self._n:
            raise IndexError(i)
        return self.run(i, 1)

    def run(self, first: int, n: int) -> tuple[Any, Any]:
        """Return the place of ``n`` chunks; where there are gaps, of one."""
        displ = self._start(first)
        return displ, self._start(first + n) - displ if self._count is None else self._count(first)


class ChunkLayout(NamedTuple):
    """The places of the chunks of a segment, in elements: ``(displ, count)`` of each, relative to the start of the segment."""

    inputs: Sequence[tuple[int, int]]
    outputs: Sequence[tuple[int, int]]
    size: Callable[[Hashable], int]  # elements of an extent
    varying: bool = False  # blocks have sizes of their own, that may be 0: a program treats all alike, so that it holds for others too
    sum_of: Callable[[Sequence[Hashable]], Any] | None = None  # elements of extents together; None: the sum
    # where all chunks and extents are blocks of one size: elements from a block to the next in INPUT and OUTPUT, and of a block
    blocks: tuple[Any, Any] | None = None

    def total(self, extents: Sequence[Hashable]) -> Any:
        """Return the elements of some extents together."""
        return sum(map(self.size, extents)) if self.sum_of is None else self.sum_of(extents)


# per segment its displacement and its layout; equal segments share one layout
Segments = list[tuple[int, ChunkLayout]]


def _cut(count: int, segment: int, unit: int, layout_of: Callable[[int], ChunkLayout]) -> Segments:
    """Return segments of at most ``segment`` elements, from multiples of ``unit`` on; all but the last share a layout."""
    if count <= segment:
        return [(0, layout_of(count))]
    if unit > 1:
        segment = max(unit, segment // unit * unit)
    nsegments = index(segment_count(count, segment))
    full = layout_of(min(segment, count))
    last = full if count == nsegments * segment else layout_of(count - (nsegments - 1) * segment)
    return [(i * segment, full if i < nsegments - 1 else last) for i in range(nsegments)]


def vector_segments(count: int, segment: int, nchunks: int, unit: int = 1) -> Segments:
    """Cut a vector into segments, and each into ``nchunks`` balanced chunks; all begin at multiples of ``unit``; in elements."""

    def layout_of(length: int) -> ChunkLayout:
        units = -(-length // unit)

        def start(i: int) -> Any:
            lo = chunk_bounds(units, nchunks, i)[0] if i < nchunks else units
            return lo if unit == 1 else min(length, lo * unit)

        def sum_of(extents: Sequence[Any]) -> Any:
            first, n = extents[0], len(extents)
            if all(map(eq, extents, range(first, first + n))):
                return chunks.run(first, n)[1]
            return sum(chunks[extent][1] for extent in extents)

        chunks = Tiles(nchunks, start)
        return ChunkLayout(chunks, chunks, lambda extent: chunks[extent][1], sum_of=sum_of)

    return _cut(count, segment, unit, layout_of)


def block_segments(schedule: Schedule, count: int, segment: int, unit: int = 1) -> Segments:
    """Cut equal blocks, one after another; a segment is the same slice of every block, from a multiple of ``unit`` on; in elements."""
    collective = schedule.meaning
    who = (schedule.rank, schedule.nranks, schedule.root, schedule.nchunks)
    nparts = schedule.nchunks // schedule.nranks if schedule.graph is None else 1

    def layout_of(length: int) -> ChunkLayout:
        parts = [(lo, hi - lo) for lo, hi in (chunk_bounds(length, nparts, part) for part in range(nparts))]

        def start(i: int) -> Any:
            return i // nparts * count + (parts[i % nparts][0] if i % nparts else 0)

        def count_of(i: int) -> Any:
            return parts[i % nparts][1]

        def sum_of(extents: Sequence[Any]) -> Any:
            if nparts == 1:
                return length * len(extents)
            return sum(n * parts[part][1] for part, n in Counter(part for _, part in extents).items())

        inputs, outputs = (
            Tiles(number(*who), start, None if length is count else count_of)
            for number in (collective.ninputs, collective.noutputs)
        )
        size = (lambda extent: parts[extent[1]][1]) if nparts > 1 else lambda extent: length
        blocks = (count, length) if nparts == 1 else None
        return ChunkLayout(inputs, outputs, size, sum_of=sum_of, blocks=blocks)

    return _cut(count, segment, unit, layout_of)


def varying_blocks(
    inputs: Sequence[tuple[int, int]],
    outputs: Sequence[tuple[int, int]],
    sizes: Sequence[int],
    piece: int = 0,
) -> Segments:
    """Cut blocks of different sizes, in elements.

    Args:
        inputs: ``(displ, count)`` of each block of INPUT.
        outputs: The same of OUTPUT.
        sizes: Every rank's block where it is known.
        piece: Of every block in one segment; 0: blocks are not cut. Behind the first segment empty pieces are left out, since not all
            ranks know how many there are.
    """
    counts = (*(count for _, count in (*inputs, *outputs)), *sizes)  # a rank may forward more than it has
    if not piece or all(count <= piece for count in counts):
        return [(0, ChunkLayout(inputs, outputs, lambda extent: sizes[extent], varying=True))]  # type: ignore[call-overload]
    nslices = index(segment_count(max(counts), piece))
    layouts: dict[tuple[int, ...], ChunkLayout] = {}
    segments: Segments = []
    for i in range(nslices):
        lo = i * piece

        def cut(count: int, lo: int = lo) -> int:
            return max(0, min(piece, count - lo))

        ins, outs = ([(displ, cut(count)) for displ, count in blocks] for blocks in (inputs, outputs))
        known = list(map(cut, sizes))
        key = i == 0, *map(index, (*(count for _, count in (*ins, *outs)), *known))
        if key not in layouts:
            layouts[key] = ChunkLayout(ins, outs, known.__getitem__, varying=i == 0)  # type: ignore[arg-type]
        segments.append((lo, layouts[key]))
    return segments


class Span(NamedTuple):
    """A run of contiguous bytes of a buffer."""

    buffer: int
    displ: int
    nbytes: int


class Names(list[Hashable]):
    """The names of chunks that follow each other in memory and are handled as one piece."""


Pieces = list[tuple[Any, Span]]  # chunks: the name of each one's memory, or `Names`, and where it is


def names_of(pieces: Pieces) -> list[Hashable]:
    """Return the names of the chunks."""
    if len(pieces) == 1 and type(pieces[0][0]) is Names:
        return pieces[0][0]
    return [name for name, _ in pieces]


def nbytes_of(pieces: Pieces) -> int:
    """Return the bytes of all pieces."""
    sizes = [span.nbytes for _, span in pieces]
    if all(nbytes is sizes[0] for nbytes in sizes):  # as blocks mostly are
        return sizes[0] * len(sizes)
    return sum(sizes)


def placed(name: Hashable, buffer: int, pieces: Pieces) -> Pieces:
    """Return pieces of these sizes one after another in a buffer, under one name."""
    displs = accumulate((span.nbytes for _, span in pieces), initial=0)
    return [
        (name, Span(buffer, displ, span.nbytes)) for (_, span), displ in zip(pieces, displs, strict=False)
    ]


def contiguous(operands: Sequence[Pieces]) -> Iterator[list[Pieces]]:
    """Cut operands of equal chunk sizes where any of them is interrupted in memory."""
    n, cuts = len(operands[0]), dict[int, None]()
    if n == 1:
        yield list(operands)
        return
    for pieces in operands:
        for i in range(1, n):
            piece, other = pieces[i - 1][1], pieces[i][1]
            if i not in cuts and (piece.buffer != other.buffer or piece.displ + piece.nbytes != other.displ):
                cuts[i] = None
    for first, last in pairwise([0, *sorted(cuts), n]):
        yield [pieces[first:last] for pieces in operands]


def join(pieces: Pieces) -> Span:
    """Return pieces that are contiguous as one span."""
    first, last = pieces[0][1], pieces[-1][1]
    return first if first is last else Span(*first[:2], last.displ + last.nbytes - first.displ)


def spans_of(pieces: Pieces) -> list[Span]:
    """Return pieces in as few spans as they are contiguous."""
    return [join(group) for (group,) in contiguous([pieces])]
