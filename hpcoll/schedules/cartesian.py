"""Cartesian grids of ranks: dimensions for an array, and the placement of the grid on nodes.

A face is what two neighbours exchange in one dimension. Positions are numbered in row-major order, as MPI numbers the ranks of a grid.
"""

from collections.abc import Iterator, Sequence
from itertools import permutations, product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from hpcoll.base.errors import ArgumentError
from hpcoll.schedules.placement import Nodes, members, numbered

_WORK = 1 << 22  # positions that are looked at for all orders together
_REFINED = 256  # most positions of a grid whose placement is improved by exchanges of two positions

# --- dimensions


def dims_create(
    nranks: int, dims: int | Sequence[int], shape: Sequence[int], periods: bool | Sequence[bool] = False
) -> list[int]:
    """Return dimensions of a grid of ranks that cut an array into blocks with the smallest surface to exchange.

    It is `MPI.Compute_dims` that knows the array. Of dimensions with equal surface, those with fewer neighbours are taken, then those
    that MPI takes: alike, the larger ones first.

    Args:
        nranks: Number of ranks.
        dims: Number of dimensions, or a list with 0 for each free dimension and the others fixed.
        shape: Points of the whole array along each dimension, without ghost layers.
        periods: Dimensions that are periodic, or one value for all.

    Raises:
        ArgumentError: No dimensions have this product, or leave each rank a point.

    >>> dims_create(8, 3, (100, 100, 100)), dims_create(8, 3, (1000, 100, 10)), dims_create(8, [0, 2], (64, 64))
    ([2, 2, 2], [8, 1, 1], [4, 2])
    """
    asked = [0] * int(dims) if isinstance(dims, int | np.integer) else [int(d) for d in dims]
    rounds = [periods] * len(asked) if isinstance(periods, bool) else list(periods)
    if not len(asked) == len(shape) == len(rounds):
        raise ArgumentError(
            f"dims_create needs a shape and periods for {len(asked)} dimensions, got {list(shape)} and {rounds}"
        )
    if nranks < 1 or any(d < 0 for d in asked) or any(n < 1 for n in shape):
        raise ArgumentError(
            f"dims_create needs ranks and points, and dims of 0 or more, got {nranks}, {list(shape)} and {asked}"
        )
    fixed = [range(1, nranks + 1) if d == 0 else (d,) for d in asked]
    fitting = [
        factorization
        for factorization in _factorizations(nranks, fixed)
        if all(d <= n for d, n in zip(factorization, shape, strict=True))
    ]
    if not fitting:
        raise ArgumentError(
            f"dims_create needs dims like {asked} with a product of {nranks} and a point of {list(shape)} each, found none"
        )
    return min(
        fitting,
        key=lambda extents: (
            *_surface(extents, shape, rounds),
            max(extents, default=1),
            [-d for d in extents],
        ),
    )


def _factorizations(nranks: int, allowed: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Yield all dimensions with a product of ``nranks``."""
    if not allowed:
        yield from [[]] * (nranks == 1)
        return
    for d in divisors(nranks):
        if d in allowed[0]:
            yield from ([d, *others] for others in _factorizations(nranks // d, allowed[1:]))


def _surface(dims: Sequence[int], shape: Sequence[int], periods: Sequence[bool]) -> tuple[int, int]:
    """Return points on the faces that the largest block exchanges, and their number."""
    block = [-(-n // d) for n, d in zip(shape, dims, strict=True)]
    faces = [
        0 if d == 1 else 2 if periodic or d > 2 else 1 for d, periodic in zip(dims, periods, strict=True)
    ]
    return sum(number * prod(block) // n for number, n in zip(faces, block, strict=True)), sum(faces)


def divisors(n: int) -> list[int]:
    """Return the divisors, ascending."""
    low = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return low + [n // d for d in reversed(low) if d * d != n]


# --- placement


class PlacedGrid(NamedTuple):
    """A grid of ranks on nodes."""

    ranks: tuple[int, ...]  # at each position
    before: int  # faces between nodes where each rank has the position of its own number
    after: int  # faces between nodes of this placement


def place(
    dims: Sequence[int], periods: Sequence[bool], nodes: Nodes, shape: Sequence[int] | None = None
) -> PlacedGrid:
    """Place a grid's ranks so that few faces are between nodes; where nothing is gained, each rank has the position of its own number.

    Positions are taken brick by brick, for bricks of all sizes that a node can hold, and dealt to the nodes in turn. The best of these
    orders is improved by exchanges of two positions.

    Args:
        dims: Ranks in each dimension.
        periods: Dimensions that are periodic.
        nodes: Number of each rank's node; surplus ranks at the end get no position.
        shape: Points of an array along each dimension: its points on faces between nodes are what counts; None: the faces.

    >>> place([8], [True], (0, 1) * 4)
    PlacedGrid(ranks=(0, 2, 4, 6, 1, 3, 5, 7), before=8, after=2)
    """
    npositions = prod(dims)
    own = np.array(numbered(nodes[:npositions]))
    pairs, weights = _faces(dims, periods, shape)
    best, least = own, _between(own, pairs, weights)
    dealt = np.repeat(np.arange(own.max() + 1), np.bincount(own))
    for order in _orders(dims, int(np.bincount(own).max())):
        placed = np.empty(npositions, int)
        placed[order] = dealt
        cost = _between(placed, pairs, weights)
        if cost < least:
            best, least = placed, cost
    if npositions <= _REFINED:
        best = _refined(best, pairs, weights)
    turns = [iter(ranks) for ranks in members(tuple(own.tolist()))]
    ranks = tuple(range(npositions)) if best is own else tuple(next(turns[node]) for node in best.tolist())
    alike = np.ones_like(weights)
    return PlacedGrid(ranks, _between(own, pairs, alike), _between(best, pairs, alike))


def _faces(dims: Sequence[int], periods: Sequence[bool], shape: Sequence[int] | None) -> tuple[Any, Any]:
    """Return the two positions at each face, and what each face weighs."""
    positions, pairs, weights = (
        np.arange(prod(dims)).reshape(dims),
        [np.empty((2, 0), int)],
        [np.empty(0, int)],
    )
    block = [1] * len(dims) if shape is None else [-(-n // d) for n, d in zip(shape, dims, strict=True)]
    for axis, (d, periodic) in enumerate(zip(dims, periods, strict=True)):
        if d > 1:
            both = np.stack([positions, np.roll(positions, -1, axis)])
            pairs.append((both if periodic else both.take(range(d - 1), axis + 1)).reshape(2, -1))
            weights.append(np.full(pairs[-1].shape[1], prod(block) // block[axis]))
    return np.concatenate(pairs, 1), np.concatenate(weights)


def _between(placed: Any, pairs: Any, weights: Any) -> int:
    """Return the weight of all faces between nodes."""
    return int(weights[placed[pairs[0]] != placed[pairs[1]]].sum())


def _orders(dims: Sequence[int], room: int) -> Iterator[Any]:
    """Yield orders of all positions, brick by brick, those of bricks that fill a node first."""
    where = np.indices(dims).reshape(len(dims), -1)
    bricks = [one for one in product(*map(divisors, dims)) if prod(one) <= room]
    bricks.sort(key=lambda one: (-prod(one), max(one)))
    axes = list(permutations(range(len(dims))))
    for brick in bricks[: max(1, _WORK // (where.shape[1] * len(axes)))]:
        outer, inner = np.divmod(where, np.reshape(brick, (-1, 1)))
        for along in axes:
            yield np.lexsort([*inner[list(along)], *outer[list(along)]])


def _refined(placed: Any, pairs: Any, weights: Any) -> Any:
    """Exchange two positions of different nodes for as long as that lessens the weight between nodes; position 0 stays."""
    npositions = len(placed)
    near = np.zeros((npositions, npositions), int)
    np.add.at(near, (pairs[0], pairs[1]), weights)
    near += near.T
    for _ in range(npositions):
        # weight of a position's faces towards another's node
        towards = (near @ np.eye(placed.max() + 1, dtype=int)[placed])[:, placed]
        gain = towards - np.diag(towards)[:, None]
        gain = gain + gain.T - 2 * near
        gain[placed[:, None] == placed] = gain[0] = 0
        a, b = np.unravel_index(gain.argmax(), gain.shape)
        if gain[a, b] <= 0:
            break
        placed = placed.copy()
        placed[[a, b]] = placed[[b, a]]
    return placed
