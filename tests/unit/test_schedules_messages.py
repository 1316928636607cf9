"""Messages as catalogue rows describe them: the longest one, how many the busiest rank has, and what it receives."""

from collections import Counter
from collections.abc import Iterable, Iterator

import pytest
from placed_schedules import is_even, placements_of, some_roots

from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.ir import Op, Schedule, Step
from hpcoll.schedules.placement import Nodes, members
from hpcoll.schedules.row import Algorithm, schedule

ROWS = list(CATALOGUE.values())
NRANKS = (*range(2, 10), 12, 16, 17)
LONGER_THAN_ANY = {  # `largest` is that of powers of two and root 0, else a bound
    "gather/binomial",
    "scatter/binomial",
    "alltoall/bruck",
    "allreduce/swing",
    "allgather/bine",
    "reduce_scatter/bine",
    "gather/bine",
    "scatter/bine",
}

every_row = pytest.mark.parametrize("row", ROWS, ids=[row.key for row in ROWS])


def settings(row: Algorithm) -> Iterator[tuple[Nodes, int, int, list[Schedule]]]:
    """Placements, roots, numbers of chunks, and the schedules of all ranks. Flat rows have a node for each rank."""
    for nranks in NRANKS:
        for nodes in placements_of(nranks) if row.hierarchical else [tuple(range(nranks))]:
            for root in some_roots(row, nranks):
                for nchunks in (1, 2, 3, 5) if row.chunked else (1,):
                    yield (
                        nodes,
                        root,
                        nchunks,
                        [schedule(row, nranks, rank, root, nchunks, nodes) for rank in range(nranks)],
                    )


def is_told_exactly(row: Algorithm, nodes: Nodes) -> bool:
    """Say whether formulas are exact: what ranks have of blocks depends on all sizes of nodes; they know the smallest and the largest."""
    return is_even(nodes) or not COLLECTIVES[row.collective].blocks


def sends(one: Schedule) -> list[Step]:
    return [step for steps in one.channels for step in steps if step.op == Op.SEND]


@every_row
def test_the_longest_message_is_as_long_as_the_row_says(row: Algorithm) -> None:
    """Of a row that looks at nodes: the longest between two of them."""
    for nodes, _, nchunks, schedules in settings(row):
        between = [
            step.srcs[0].n for one in schedules for step in sends(one) if nodes[step.peer] != nodes[one.rank]
        ]
        if between and is_told_exactly(row, nodes):
            longest, said = max(between) / schedules[0].nchunks, row.cost("largest", len(nodes), nodes=nodes)
            said /= nchunks if row.chunked else 1
            assert longest <= said + 1e-9, nodes
            assert row.key in LONGER_THAN_ANY or longest == pytest.approx(said), nodes


@every_row
def test_no_rank_receives_more_than_the_row_says(row: Algorithm) -> None:
    """Where `received` is said at all some rank receives that, and none sends as much."""
    reached = 0
    for nodes, _, nchunks, schedules in settings(row):
        received, sent = (row.cost(field, len(nodes), nchunks, nodes) for field in ("received", "sent"))
        found = [
            sum(step.dst.n for steps in one.channels for step in steps if step.peer >= 0 and step.dst)
            / one.nchunks
            for one in schedules
        ]
        if is_told_exactly(row, nodes):
            assert max(found) <= max(sent, received) + 1e-9, nodes
            reached += max(found) == pytest.approx(received)
    assert not row.cost("received", 5) or reached > 5


def busiest(many: Iterable[Schedule]) -> int:
    """Most messages that a rank sends, or receives, in one channel."""
    found = [
        Counter(step.op == Op.SEND for step in steps if step.peer >= 0)
        for one in many
        for steps in one.channels
    ]
    return max(max(one[True], one[False]) for one in found)


@pytest.mark.parametrize("row", [row for row in ROWS if row.hierarchical], ids=lambda row: row.key)
def test_no_rank_has_more_messages_than_the_row_says(row: Algorithm) -> None:
    """But for what the flat algorithm between nodes has beyond its own: a circulant's message may be in two runs."""
    for nodes, root, _, schedules in settings(row):
        most, h = (
            max(row.cost(field, len(nodes), nodes=nodes) for field in ("messages", "rounds")),
            len(members(nodes)),
        )
        outer = CATALOGUE[row.outer]
        if h > 1:
            flat = max(outer.cost("messages", h), outer.cost("rounds", h))
            most += max(0, busiest(schedule(outer, h, rank) for rank in range(h)) - flat)
        assert busiest(schedules) <= most, (nodes, root)
