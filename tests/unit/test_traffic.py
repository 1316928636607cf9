"""Bytes that programs move on a rank, beside what can be counted by hand."""

import numpy as np
import pytest

from hpcoll.runtime.program.chunks import block_segments, vector_segments
from hpcoll.runtime.program.lowering import lower
from hpcoll.runtime.program.opcodes import memory_traffic
from hpcoll.runtime.transports.host_routes import host_routes
from hpcoll.schedules.catalogue import CATALOGUE, find
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.row import Algorithm, schedule

COUNT = 6000  # of 8 bytes; divided by 2, 3 and 4 chunks


def traffic_of(
    algorithm: str, nranks: int, *, shared: bool = True, longest: int = COUNT, symmetric: bool = False
) -> list[float]:
    """Of rank 0 of an allreduce, in messages: read, written, given to MPI."""
    steps = schedule(find("allreduce", algorithm), nranks, 0)
    routes = host_routes({rank: rank for rank in range(1, nranks)} if shared else {})
    program = lower(
        steps, vector_segments(COUNT, longest, steps.nchunks), 8, 8, in_place=False, routes=routes
    )
    found = memory_traffic(
        np.array(program.rows), np.array(program.lanes), (0, 0) if symmetric else (None, None)
    )
    return [round(nbytes / (8 * COUNT), 9) for nbytes in found]


@pytest.mark.parametrize("longest", [COUNT, COUNT // 4])
@pytest.mark.parametrize("nranks", [2, 3, 4])
def test_direct(nranks: int, longest: int) -> None:
    """All is staged once, and all contributions are combined in one pass, in whatever number of lanes."""
    assert traffic_of("direct", nranks, longest=longest) == [1 + nranks, 2, 0]
    assert traffic_of("direct", nranks, longest=longest, symmetric=True) == [nranks, 1, 0]


def test_messages_read_in_their_senders_memory() -> None:
    """From a length on they are not staged: of a broadcast the root moves nothing then."""
    steps = schedule(find("bcast", "direct"), 3, 0, 0)
    program = lower(
        steps, vector_segments(1000, 1000, 1), 8, 8, in_place=True, routes=host_routes({1: 1, 2: 2})
    )
    rows, lanes = np.array(program.rows), np.array(program.lanes)
    moved = [memory_traffic(rows, lanes, (None, least)).moved for least in (None, 8001, 8000, 0)]
    assert moved == [16000, 16000, 0, 0]


def busiest(row: Algorithm, nranks: int) -> float:
    """Bytes that the busiest rank moves in shared memory, in messages."""
    block, moved = 840, []
    for rank in range(nranks):
        steps = schedule(row, nranks, rank)
        vector = vector_segments(block * nranks, block * nranks, steps.nchunks)
        segments = block_segments(steps, block, block) if COLLECTIVES[row.collective].blocks else vector
        routes = host_routes({peer: peer for peer in range(nranks) if peer != rank})
        program = lower(steps, segments, 8, 8, in_place=False, routes=routes)
        moved.append(memory_traffic(np.array(program.rows), np.array(program.lanes)).moved)
    return max(moved) / (8 * block * nranks)


# there the others wait for the root
AT_ONCE = [row for row in CATALOGUE.values() if row.shared and row.key != "bcast/direct"]


@pytest.mark.parametrize("row", AT_ONCE, ids=lambda row: row.key)
def test_what_the_catalogue_says_of_shared_memory(row: Algorithm) -> None:
    """Choices between algorithms hang on it: two-shot's 5 messages against the ring's 9."""
    unit = 5 if COLLECTIVES[row.collective].reduces else 4
    for nranks in range(2, 9):
        assert busiest(row, nranks) == pytest.approx(unit * row.cost("shared", nranks), abs=1e-3)
