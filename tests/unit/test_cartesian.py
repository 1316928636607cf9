"""Grids of ranks: dimensions by an array's surface, and placements on nodes beside the best ones that there are."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import prod

import numpy as np
import pytest

from hpcoll.base.errors import ArgumentError
from hpcoll.schedules.cartesian import dims_create, place
from hpcoll.schedules.placement import Nodes, members, parse_nodes

# --- dimensions


@pytest.mark.parametrize(
    ("nranks", "dims", "shape", "periods", "found"),
    [
        (1, 3, (5, 5, 5), False, [1, 1, 1]),
        (8, 3, (64, 64, 64), False, [2, 2, 2]),
        (8, 3, (1000, 100, 10), False, [8, 1, 1]),
        (8, 3, (10, 100, 1000), False, [1, 1, 8]),
        (12, 2, (300, 400), True, [3, 4]),
        (12, 2, (300, 400), False, [2, 6]),  # of two blocks side by side, each has one neighbour there
        (6, 2, (100, 100), False, [3, 2]),  # as MPI: the larger first
        (4, 2, (100, 100), False, [2, 2]),
        (4, 2, (100, 100), True, [4, 1]),  # the surface of 2 x 2, and two neighbours less
        (8, [0, 2], (64, 64), False, [4, 2]),
        (8, [0, 1, 0], (4, 900, 4), False, [4, 1, 2]),
        (7, 2, (6, 7), False, [1, 7]),  # rather than ranks without a point
        (1, 0, (), False, []),
    ],
)
def test_dimensions(
    nranks: int, dims: int | list[int], shape: Sequence[int], periods: bool, found: list[int]
) -> None:
    assert dims_create(nranks, dims, shape, periods) == found


@pytest.mark.parametrize(
    ("nranks", "dims", "shape", "text"),
    [
        (7, [2, 0], (9, 9), "dims like [2, 0] with a product of 7 and a point of [9, 9] each, found none"),
        (7, 2, (6, 6), "dims like [0, 0] with a product of 7 and a point of [6, 6] each, found none"),
        (4, 2, (6, 6, 6), "a shape and periods for 2 dimensions, got [6, 6, 6]"),
        (4, [2, -2], (6, 6), "dims of 0 or more, got 4, [6, 6] and [2, -2]"),
        (0, 1, (6,), "needs ranks and points"),
        (2, 0, (), "with a product of 2"),
    ],
)
def test_dimensions_that_cannot_be(
    nranks: int, dims: int | list[int], shape: Sequence[int], text: str
) -> None:
    with pytest.raises(ArgumentError) as caught:
        dims_create(nranks, dims, shape)
    assert text in str(caught.value)


# --- placement


def crossing(dims: Sequence[int], periods: Sequence[bool], node_at: Sequence[int]) -> int:
    """Count the faces between nodes one by one."""
    found = 0
    for place_, at in enumerate(np.ndindex(*dims)):
        for axis, d in enumerate(dims):
            other = list(at)
            other[axis] += 1
            if d > 1 and (periods[axis] or other[axis] < d):
                other[axis] %= d
                found += node_at[place_] != node_at[int(np.ravel_multi_index(other, dims))]
    return found


def dealt(sizes: Sequence[int], free: tuple[int, ...]) -> Iterator[dict[int, int]]:
    """Yield every assignment of positions to nodes of these sizes."""
    if not sizes:
        yield {}
        return
    for mine in combinations(free, sizes[-1]):
        for others in dealt(sizes[:-1], tuple(position for position in free if position not in mine)):
            yield others | dict.fromkeys(mine, len(sizes) - 1)


def least(dims: Sequence[int], periods: Sequence[bool], nodes: Nodes) -> int:
    """Return the fewest faces between nodes that any placement has."""
    found = dealt([len(ranks) for ranks in members(nodes)], tuple(range(len(nodes))))
    return min(crossing(dims, periods, [one[position] for position in range(len(nodes))]) for one in found)


@pytest.mark.parametrize(
    ("dims", "periodic", "nodes", "gains"),
    [
        ([8], True, "4:cyclic", True),
        ([4, 2], True, "4:cyclic", True),
        ([4, 2], False, "4:cyclic", True),
        ([2, 2, 2], True, "4:cyclic", False),  # round-robin is as good as any
        ([2, 2, 2], False, "4", False),
        ([2, 3], False, "1+2+3:cyclic", True),
        ([3, 3], True, "4+5:cyclic", True),
        ([2, 5], False, "5:cyclic", True),
        ([9], False, "2+3+4:cyclic", True),
        ([8], True, "8", False),
    ],
)
def test_no_placement_is_better(dims: list[int], periodic: bool, nodes: str, gains: bool) -> None:
    """Ranks stay where they are if nothing is gained; each has one position."""
    periods, where = [periodic] * len(dims), parse_nodes(nodes, prod(dims))
    found = place(dims, periods, where)
    assert sorted(found.ranks) == list(range(prod(dims)))
    assert found.before == crossing(dims, periods, where)
    assert (
        found.after
        == crossing(dims, periods, [where[rank] for rank in found.ranks])
        == least(dims, periods, where)
    )
    assert (found.after < found.before) == gains == (list(found.ranks) != sorted(found.ranks))


def test_large_faces_stay_on_a_node() -> None:
    """Of a flat array, the faces of the short side are between nodes; without the array, either side's."""
    for shape, axis in (((1000, 10), 0), ((10, 1000), 1)):
        ranks = np.array(place([4, 4], [True, True], parse_nodes("4:cyclic", 16), shape).ranks).reshape(4, 4)
        assert (np.ptp(ranks % 4, axis=1 - axis) == 0).all()
