"""The wait-for graph: its roots, its circles, and chains of waits in words."""

import pytest

from hpcoll.analysis.wait_for_graph import Wait, WaitForGraph, chain_text, shortest_path


def wait(rank: int, *awaits: int, number: int = 1) -> Wait:
    return Wait(rank, ("world", "blocking", number), awaits, f"Barrier(), call {number}", "", 0.0)


def test_roots_are_awaited_and_wait_for_nobody() -> None:
    """Alike ones come together; ranks of other programs, and a rank itself, are none."""
    graph = WaitForGraph([wait(0, 1), wait(1, 1, 4, 5, -1), wait(2, 3), wait(3, 2)])
    assert graph.roots() == [([4, 5], {0, 1})]


def test_circles_across_calls_come_first() -> None:
    """Of each set of ranks that all wait for each other there is one, of two ranks where that is enough."""
    waits = [
        wait(0, 1, 2),
        wait(1, 0),
        wait(2, 0, number=2),
        wait(3, 4),
        wait(4, 5),
        wait(5, 3),
        wait(6, 0, 3),
    ]
    assert [[one.rank for one in circle] for circle in WaitForGraph(waits).circles()] == [[0, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("waits", "root", "text"),
    [
        (
            [wait(0, 1), wait(1, 2, number=2)],
            2,
            "rank 0 waits for rank 1; rank 1 waits in Barrier(), call 2, for rank 2; rank 2 works",
        ),
        ([wait(0, 1, 2), wait(1, 0)], 2, "rank 0 waits for ranks 1-2; rank 2 works"),
        (
            [wait(0, 1), wait(1, 2), wait(2, 1)],
            None,
            "rank 2 waits for rank 1; ranks 1 and 2 wait for each other",
        ),
        ([wait(0)], None, "rank 0 waits for nobody that is known"),
        ([wait(0, 0)], None, "rank 0 waits for rank 0"),
        (
            [wait(i, i + 1) for i in range(50)],
            50,
            "rank 3 waits for rank 4; 42 more in between; rank 46 waits for rank 47",
        ),
    ],
)
def test_chains(waits: list[Wait], root: int | None, text: str) -> None:
    chain, end = WaitForGraph(waits).chain(waits[0])
    assert end == root
    assert text in chain_text(chain, "" if end is None else f"rank {end} works")


def test_paths() -> None:
    """The shortest one, also back to where it began; none where there is none, or where too many nodes would be looked at."""
    edges = {1: [2, 3], 2: [4], 3: [5], 4: [5], 5: [1]}
    paths = [
        shortest_path(1, lambda node: edges[node], lambda node, end=end: node == end) for end in (5, 1, 6)
    ]  # type: ignore[misc]
    assert paths == [[1, 3, 5], [1, 3, 5, 1], []]
    assert shortest_path(1, lambda node: edges[node], lambda node: node == 1, most=2) == []
