"""Chunks tile what they are cut from, and equal segments share one layout."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcoll.runtime.program.chunks import Segments, block_segments, varying_blocks, vector_segments
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES, meaning
from hpcoll.schedules.row import Algorithm, schedule

counts, segments, chunk_counts = st.integers(0, 300), st.integers(1, 400), st.integers(1, 20)
BLOCK_ROWS = [row for row in CATALOGUE.values() if COLLECTIVES[row.collective].blocks]


def covered(found: Segments, chunk: int | None = None) -> list[int]:
    """Elements of OUTPUT that the chunks of all segments hold, in order."""
    places = [
        (start, layout.outputs if chunk is None else [layout.outputs[chunk]]) for start, layout in found
    ]
    return [start + displ + i for start, chunks in places for displ, count in chunks for i in range(count)]


@given(counts, segments, chunk_counts)
def test_chunks_tile_a_vector(count: int, segment: int, nchunks: int) -> None:
    found = vector_segments(count, segment, nchunks)
    assert covered(found) == list(range(count))
    for _, layout in found:
        sizes = [size for _, size in layout.outputs]
        assert layout.inputs == layout.outputs
        assert len(sizes) == nchunks
        assert max(sizes) - min(sizes) <= 1
        assert sum(sizes) <= segment
        assert [layout.size(i) for i in range(nchunks)] == sizes


@given(counts, segments)
def test_all_segments_but_the_last_share_a_layout(count: int, segment: int) -> None:
    found = vector_segments(count, segment, 3)
    assert len(found) == max(1, -(-count // segment))
    assert [start for start, _ in found] == [i * segment for i in range(len(found))]
    assert len({id(layout) for _, layout in found[:-1]}) <= 1
    if count and count % segment == 0:
        assert found[-1][1] is found[0][1]


@pytest.mark.parametrize("row", BLOCK_ROWS, ids=[row.key for row in BLOCK_ROWS])
@given(count=st.integers(0, 60), segment=segments, nranks=st.integers(1, 9), data=st.data())
def test_a_segment_is_the_same_slice_of_every_block(
    row: Algorithm, count: int, segment: int, nranks: int, data: st.DataObject
) -> None:
    rank, root = (data.draw(st.integers(0, nranks - 1)) for _ in range(2))
    steps = schedule(row, nranks, rank, root if COLLECTIVES[row.collective].rooted else 0)
    found = block_segments(steps, count, segment)
    collective, who = meaning(row.collective, steps.graph), (rank, nranks, steps.root, steps.nchunks)
    _, layout = found[0]
    assert (len(layout.inputs), len(layout.outputs)) == (collective.ninputs(*who), collective.noutputs(*who))
    for chunk in range(len(layout.outputs)):
        assert covered(found, chunk) == list(range(chunk * count, (chunk + 1) * count))
    assert {size for _, one in found for _, size in (*one.inputs, *one.outputs)} <= {
        one.size("any") for _, one in found
    }
    assert sum(one.size("any") for _, one in found) == count


def test_varying_blocks_lie_where_they_are_said_to() -> None:
    inputs, outputs = [(3, 2), (0, 0)], [(9, 4), (1, 5)]
    ((start, layout),) = varying_blocks(inputs, outputs, (2, 0))
    assert (start, layout.inputs, layout.outputs) == (0, inputs, outputs)
    assert [layout.size(rank) for rank in range(2)] == [2, 0]


@given(counts, segments, chunk_counts, st.sampled_from([1, 2, 4, 8, 16]))
def test_chunks_of_whole_units(count: int, segment: int, nchunks: int, unit: int) -> None:
    """Chunks begin at multiples of a unit, however ranks and elements divide, and only the last one is no multiple of it."""
    found = vector_segments(count, segment, nchunks, unit)
    assert covered(found) == list(range(count))
    for start, layout in found:
        assert start % unit == 0
        assert all(displ % unit == 0 for displ, size in layout.outputs if size)
        assert sum(size for _, size in layout.outputs) <= max(segment, unit)
        units = [-(-size // unit) for _, size in layout.outputs]
        assert max(units) - min(units) <= 1
