"""Plans cut messages so that what a rank stages fits the memory of a place; scratch is one memory per message context."""

from typing import Any

import numpy as np
import pytest

from hpcoll.analysis.prove import placements
from hpcoll.comm.arguments.call import Blocks, Call
from hpcoll.comm.plans.ledger import Account
from hpcoll.comm.plans.plan import MessageContext, Plan
from hpcoll.comm.plans.segmentation import lane_nbytes, segmented
from hpcoll.runtime.program.fields import STAGING_SLOTS
from hpcoll.runtime.program.layouts import UNMAPPED
from hpcoll.runtime.program.lowering import lower
from hpcoll.runtime.transports.host_routes import host_routes
from hpcoll.runtime.transports.rings import CAPACITY_NBYTES
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.placement import Nodes
from hpcoll.schedules.row import Algorithm

BYTE = np.dtype(np.uint8)
WHOLE = 1 << 40  # a segment


def placements_of(row: Algorithm, nranks: int) -> list[Nodes]:
    """All ranks on one node; of a row that looks at nodes, others too."""
    return placements(nranks) if row.hierarchical else [(0,) * nranks]


def staging(
    row: Algorithm, call: Call, rank: int, nodes: Nodes, segment: int = WHOLE, *, apart: bool = True
) -> int:
    """Bytes that one lane of a rank stages."""
    steps, segments = segmented(
        row, call, segment, lane_nbytes(row, CAPACITY_NBYTES, nodes, apart=apart), rank, nodes, ()
    )
    mates = [other for other, node in enumerate(nodes) if not apart or node == nodes[rank]]
    local_peers = {other: local for local, other in enumerate(mates) if other != rank}
    return lower(
        steps, segments, 1, STAGING_SLOTS, in_place=call.in_place, routes=host_routes(local_peers)
    ).staging_nbytes


def calls(row: Algorithm, count: int) -> list[Call]:
    """Out of place and in place, where the collective has both."""
    collective = COLLECTIVES[row.collective]
    forms = (False, True) if collective.aliases else (collective.always_in_place,)
    return [Call(row.collective, 0, 0, count, BYTE, in_place=form) for form in forms]


SIZES = (2, 3, 4, 5, 7, 8, 9, 15, 17, 33, 64)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("key", "apart"),
    [(row.key, apart) for row in CATALOGUE.values() for apart in (True, False) if apart or row.hierarchical],
)
def test_a_lane_fits_its_place(key: str, apart: bool) -> None:
    """Messages of more than one lane; elements of one byte, so that chunks have odd sizes and are rounded up most.

    On nodes that are apart, and on cache domains of one node, where what goes from one to the other is staged, too.
    """
    row, filled = CATALOGUE[key], 0
    for nranks in (2, 3, 5, 64) if row.chunked else (2, 3, 4, 5, 8, 13, 33) if row.hierarchical else SIZES:
        for nodes in placements_of(row, nranks):
            count = 2 * lane_nbytes(row, CAPACITY_NBYTES, nodes, apart=apart)
            if COLLECTIVES[row.collective].blocks:
                count = -(-count // nranks)
            for call in calls(row, count):
                for rank in (
                    range(nranks)
                    if nranks < 6 and not row.chunked
                    else {0, nodes.index(max(nodes)), nranks - 1}
                ):
                    found = staging(row, call, rank, nodes, apart=apart)
                    assert found <= CAPACITY_NBYTES, (nodes, rank, call.in_place)
                    filled = max(filled, found)
    assert filled > CAPACITY_NBYTES // 5  # and uses what there is


def varying(collective: str, rank: int, sizes: list[int]) -> Blocks:
    """Blocks of these sizes, one for each rank, as `hpcoll.comm.arguments.data_movement` describes them; root 0."""
    every, mine = [(sum(sizes[:r]), size) for r, size in enumerate(sizes)], [(0, sizes[rank])]
    if COLLECTIVES[collective].neighbours:  # on a ring
        both = (every[rank - 1], every[(rank + 1) % len(sizes)])
        return (tuple(mine) if collective == "neighbor_allgather" else both), both, ()
    inputs = (
        mine
        if collective in ("allgather", "gather")
        else every
        if collective != "scatter" or rank == 0
        else []
    )
    outputs = (
        every if collective in ("allgather", "alltoall") or (collective == "gather" and rank == 0) else mine
    )
    if collective == "gather" and rank:
        outputs = []
    return tuple(inputs), tuple(outputs), () if collective == "alltoall" else tuple(sizes)


@pytest.mark.parametrize(
    "key", [key for key, row in CATALOGUE.items() if COLLECTIVES[row.collective].blocks and not row.uniform]
)
def test_a_lane_of_varying_blocks_fits_its_place(key: str) -> None:
    row = CATALOGUE[key]
    for nodes in [nodes for nranks in (2, 3, 5, 16, 33) for nodes in placements_of(row, nranks)]:
        huge, ranks = 2 * lane_nbytes(row, CAPACITY_NBYTES, nodes), range(len(nodes))
        for sizes in (
            [huge for _ in ranks],
            [huge * (r == ranks[-1]) for r in ranks],
            [huge * (r % 2) + 57 for r in ranks],
        ):
            for rank in (0, ranks[-1]):
                call = Call(
                    row.collective, 0, 0, sum(sizes), BYTE, blocks=varying(row.collective, rank, sizes)
                )
                assert staging(row, call, rank, nodes) <= CAPACITY_NBYTES, (nodes, rank, sizes)


CALL = Call("allreduce", 0, 0, 1, np.dtype("f8"))


class Engine:
    """As much of an engine as a plan asks for."""

    address = 0

    def __init__(self, scratch_nbytes: int) -> None:
        self.scratch_nbytes, self.scratch = scratch_nbytes, np.empty(0, np.uint8)

    def fresh(self, nbytes: int) -> Any:
        return np.empty(nbytes, np.uint8)

    def bind_scratch(self, memory: Any) -> None:
        self.scratch = memory

    def bind_maps(self, maps: Any) -> None:
        assert maps is UNMAPPED

    def take(self, taken: bool = True) -> None:
        self.taken = taken


def taken(context: MessageContext, scratch_nbytes: int) -> Engine:
    build: Any = lambda call, context: Engine(scratch_nbytes)  # noqa: E731
    engine: Any = Plan("one", "ring", Account(), build).take(context, CALL)
    return engine


def test_shapes_that_grow_and_shrink() -> None:
    context = MessageContext(0, None)
    engines = [taken(context, nbytes) for nbytes in (100, 40, 150, *range(1000, 3000, 10), 7)]
    assert all(engine.scratch.nbytes >= engine.scratch_nbytes for engine in engines)
    memories = {id(engine.scratch): engine.scratch.nbytes for engine in engines}
    assert sum(memories.values()) <= 4 * 3000
    assert engines[1].scratch is engines[0].scratch


def test_message_contexts_that_run_at_once() -> None:
    one, other = (taken(MessageContext(index, None), 100) for index in range(2))
    assert one.scratch is not other.scratch


def test_kinds_of_memory() -> None:
    class Another(Engine):
        pass

    context = MessageContext(0, None)
    build: Any = lambda call, context: Another(10)  # noqa: E731
    another: Any = Plan("one", "ring", Account(), build).take(context, CALL)
    assert another.scratch is not taken(context, 10).scratch
