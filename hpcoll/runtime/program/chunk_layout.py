"""Where the chunks of a message lie in its buffers. Pure arithmetic on element counts."""

from collections.abc import Callable, Hashable, Sequence
from operator import index
from typing import NamedTuple

from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.ir import Schedule, chunk_bounds, segment_count


class ChunkLayout(NamedTuple):
    """Where the chunks of one segment lie, in elements.

    Attributes:
        inputs, outputs: ``(displ, count)`` of each chunk, relative to the start of the segment.
        size: Elements of an extent.
        varying: Blocks have sizes of their own, that may be 0: a program treats all alike, so that it holds for others too.
    """

    inputs: Sequence[tuple[int, int]]
    outputs: Sequence[tuple[int, int]]
    size: Callable[[Hashable], int]
    varying: bool = False


Segments = list[tuple[int, ChunkLayout]]  # per segment its displacement and its layout; equal segments share one layout


def _cut(count: int, segment: int, unit: int, layout_of: Callable[[int], ChunkLayout]) -> Segments:
    """Segments of at most ``segment`` elements, which begin at multiples of ``unit``; all but the last share a layout."""
    if count <= segment:
        return [(0, layout_of(count))]
    if unit > 1:
        segment = max(unit, segment // unit * unit)
    nsegments = index(segment_count(count, segment))
    full = layout_of(min(segment, count))
    last = full if count == nsegments * segment else layout_of(count - (nsegments - 1) * segment)
    return [(i * segment, full if i < nsegments - 1 else last) for i in range(nsegments)]


def vector_segments(count: int, segment: int, nchunks: int, unit: int = 1) -> Segments:
    """A vector of ``count`` elements, cut into segments, each cut into ``nchunks`` balanced chunks; all begin at multiples of ``unit``."""

    def layout_of(length: int) -> ChunkLayout:
        bounds = [chunk_bounds(-(-length // unit), nchunks, i) for i in range(nchunks)]
        if unit > 1:
            bounds = [(min(length, lo * unit), min(length, hi * unit)) for lo, hi in bounds]
        chunks = [(lo, hi - lo) for lo, hi in bounds]
        return ChunkLayout(chunks, chunks, lambda extent: chunks[extent][1])  # type: ignore[call-overload]

    return _cut(count, segment, unit, layout_of)


def block_segments(schedule: Schedule, count: int, segment: int, unit: int = 1) -> Segments:
    """Equal blocks of ``count`` elements, one after another; a segment is the same slice of every block, from a multiple of ``unit`` on."""
    collective = COLLECTIVES[schedule.collective]
    who = (schedule.rank, schedule.nranks, schedule.root, schedule.nchunks)

    def layout_of(length: int) -> ChunkLayout:
        inputs = [(i * count, length) for i in range(collective.ninputs(*who))]
        outputs = [(i * count, length) for i in range(collective.noutputs(*who))]
        return ChunkLayout(inputs, outputs, lambda extent: length)

    return _cut(count, segment, unit, layout_of)


def varying_blocks(
    inputs: Sequence[tuple[int, int]], outputs: Sequence[tuple[int, int]], sizes: Sequence[int], piece: int = 0
) -> Segments:
    """Blocks of different sizes: ``(displ, count)`` of each, and the size of every rank's block where it is known.

    Args:
        inputs, outputs, sizes: In elements.
        piece: Elements of every block in one segment; 0: blocks are not cut. Behind the first segment what is empty is left out, since
            not all ranks know how many there are.
    """
    counts = (*(count for _, count in (*inputs, *outputs)), *sizes)  # a rank may forward more than it has
    if not piece or all(count <= piece for count in counts):
        return [(0, ChunkLayout(inputs, outputs, lambda extent: sizes[extent], varying=True))]  # type: ignore[call-overload]
    nslices = index(segment_count(max(counts), piece))
    layouts: dict[tuple[int, ...], ChunkLayout] = {}
    segments: Segments = []
    for i in range(nslices):
        lo, most = i * piece, piece
        ins, outs, all_sizes = (
            [max(0, min(most, count - lo)) for count in counts]
            for counts in ([count for _, count in inputs], [count for _, count in outputs], sizes)
        )
        key = i == 0, *map(index, (*ins, *outs, *all_sizes))
        if key not in layouts:
            layouts[key] = _slices(inputs, outputs, ins, outs, all_sizes)._replace(varying=i == 0)
        segments.append((lo, layouts[key]))
    return segments


def _slices(
    inputs: Sequence[tuple[int, int]], outputs: Sequence[tuple[int, int]], ins: list[int], outs: list[int], sizes: list[int]
) -> ChunkLayout:
    here = [list(zip((displ for displ, _ in blocks), counts, strict=True)) for blocks, counts in ((inputs, ins), (outputs, outs))]
    return ChunkLayout(here[0], here[1], lambda extent: sizes[extent])  # type: ignore[call-overload]
