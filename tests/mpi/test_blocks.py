"""Blocks of different sizes: uneven counts with zeros, gaps, reverse order, in place; binomial trees are told the sizes by the root."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from forms import ROOTED, VARYING, Case, blocking, names
from reference import Guarded, communicator, contribution, ensure_none, unless

pytestmark = pytest.mark.mpi

Shape = Callable[[int], int]  # elements of rank r's block
SHAPES: dict[str, Shape] = {
    "rising": lambda r: r,
    "falling": lambda r: 5 - min(r, 5),
    "only_one": lambda r: 7 * (r == 1),
    "nothing": lambda r: 0,
    "uneven": lambda r: (3, 0, 101, 1, 17)[r % 5],
}


METHODS = [(method, algorithm) for method in VARYING for algorithm in names(method)]


def wrong_blocks(
    comm: Any, method: str, algorithm: str | None, in_place: bool, shapes: dict[str, Shape]
) -> list[str]:
    """Return the shapes of blocks, in reverse order and apart from each other, that some root does not get right."""
    every = product(shapes.items(), range(comm.size) if method in ROOTED else (0,))
    cases = [
        (name, Case(comm, method, root=root, in_place=in_place, shape=shape)) for (name, shape), root in every
    ]
    return [name for name, case in cases if not blocking(comm, case, algorithm=algorithm)]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("method", "algorithm"), METHODS)
def test_blocks_of_different_sizes(method: str, algorithm: str | None, in_place: bool) -> None:
    ensure_none(wrong_blocks(communicator(), method, algorithm, in_place, SHAPES))


@pytest.mark.smoke
def test_counts_that_change_between_calls() -> None:
    """Only the root sees that its counts are new: nobody may run the plan of the call before."""
    comm, wrong = communicator(), []
    for scale in (1, 2, 1, 3):
        counts = [scale * (r + 1) for r in range(comm.size)]
        blocks = [contribution(r, counts[r]) for r in range(comm.size)]
        own = blocks[comm.rank]
        for algorithm in ("binomial", "direct"):
            recv = Guarded(sum(counts))
            comm.Gatherv(own, [recv.inner, counts] if comm.rank == 0 else None, algorithm=algorithm)
            wrong += [("gather", scale)] if comm.rank == 0 and not recv.holds(np.concatenate(blocks)) else []
            mine = Guarded(own.size)
            comm.Scatterv(
                [np.concatenate(blocks), counts] if comm.rank == 0 else None, mine.inner, algorithm=algorithm
            )
            wrong += unless(mine.holds(own), ("scatter", scale))
    ensure_none(wrong)
