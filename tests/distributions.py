"""Random distributions of small arrays, for tests: of all kinds, with empty parts, and their local arrays by NumPy."""

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcoll import Distribution

Array = np.ndarray[Any, Any]
Random = np.random.Generator


def _split(random: Random, shape: tuple[int, ...], nranks: int) -> Distribution:
    return Distribution(shape, nranks, split=int(random.integers(len(shape))))


def _sizes(random: Random, shape: tuple[int, ...], nranks: int) -> Distribution:
    axis = int(random.integers(len(shape)))
    cuts = np.sort(random.integers(0, shape[axis] + 1, nranks - 1))
    return Distribution(shape, nranks, split=axis, sizes=np.diff([0, *cuts, shape[axis]]))


def _grid(random: Random, shape: tuple[int, ...], nranks: int) -> Distribution:
    """Dimensions cut an axis evenly, in turns or not at all."""
    ndims = int(random.integers(1, len(shape) + 1))
    dims = [1] * ndims
    left = nranks
    for dimension in range(ndims):
        factors = [d for d in range(1, left + 1) if left % d == 0]
        dims[dimension] = left if dimension == ndims - 1 else int(random.choice(factors))
        left //= dims[dimension]
    axes = [int(axis) if random.random() < 0.8 else None for axis in random.permutation(len(shape))[:ndims]]
    block = [int(random.integers(1, 4)) if random.random() < 0.5 else None for _ in dims]
    return Distribution(shape, nranks, grid=dims, split=axes, block=block)


def _halves(random: Random, box: Array, nboxes: int) -> list[Array]:
    """Boxes that make up one, cut in two again and again; some may be empty."""
    if nboxes == 1:
        return [box]
    axis = int(random.integers(len(box)))
    at = int(random.integers(box[axis, 0], box[axis, 1] + 1))
    low, high = box.copy(), box.copy()
    low[axis, 1] = high[axis, 0] = at
    nlow = int(random.integers(1, nboxes))
    return [*_halves(random, low, nlow), *_halves(random, high, nboxes - nlow)]


def _boxes(random: Random, shape: tuple[int, ...], nranks: int) -> Distribution:
    """Boxes on some of the ranks."""
    having = random.permutation(nranks)[: int(random.integers(1, nranks + 1))]
    boxes: list[Any] = [None] * nranks
    whole = np.array([(0, n) for n in shape])
    for rank, box in zip(having, _halves(random, whole, len(having)), strict=True):
        boxes[rank] = box.tolist()
    return Distribution(shape, nranks, boxes=boxes)


def _whole(random: Random, shape: tuple[int, ...], nranks: int) -> Distribution:
    """All of it on some ranks, or on all."""
    if random.random() < 0.5:
        return Distribution(shape, nranks)
    having = random.random(nranks) < 0.5
    having[random.integers(nranks)] = True
    return Distribution(shape, nranks, boxes=[[(0, n) for n in shape] if one else None for one in having])


KINDS: list[Callable[[Random, tuple[int, ...], int], Distribution]] = [_split, _sizes, _grid, _boxes, _whole]


def random_shape(random: Random) -> tuple[int, ...]:
    """From 1 to 4 axes of a few elements; one in ten has none."""
    most = (24, 9, 6, 5)
    ndim = int(random.integers(1, 5))
    return tuple(
        int(random.integers(1, most[ndim - 1])) if random.random() < 0.97 else 0 for _ in range(ndim)
    )


def random_distribution(random: Random, shape: tuple[int, ...], nranks: int) -> Distribution:
    return KINDS[int(random.integers(len(KINDS)))](random, shape, nranks)


def local(distribution: Distribution, whole: Array, rank: int) -> Array:
    """A rank's local array, from the boxes that it has."""
    boxes = distribution.boxes(rank)
    index = [
        np.concatenate([np.zeros(0, int), *(np.arange(*one) for one in sorted({box[axis] for box in boxes}))])
        for axis in range(whole.ndim)
    ]
    return np.zeros(distribution.local_shape(rank), whole.dtype) if not boxes else whole[np.ix_(*index)]


def summed(distribution: Distribution, wholes: list[Array]) -> Array:
    """The sum of what ranks have of an array, of which each has its part of another one."""
    total = np.zeros_like(wholes[0])
    for rank, whole in enumerate(wholes):
        for box in distribution.boxes(rank):
            part = tuple(slice(*one) for one in box)
            total[part] += whole[part]
    return total
