"""Reductions of objects: the operator is applied in mpi4py's order, which shows where it neither commutes nor associates."""

from collections.abc import Callable, Sequence
from typing import Any

import mpi4py
from mpi4py import MPI

Op = MPI.Op | Callable[[Any, Any], Any]
_IN_TREES = bool(getattr(mpi4py.rc, "fast_reduce", True))  # which mpi4py reads once, too


def fold(objects: Sequence[Any], op: Op) -> Any:
    """Combine objects as mpi4py's `reduce` does: up a binomial tree to rank 0."""
    found, step = list(objects), 1
    if not _IN_TREES:
        return _up_to(found, op)[-1]
    while step < len(found):
        for i in range(0, len(found) - step, 2 * step):
            found[i] = op(found[i], found[i + step])
        step *= 2
    return found[0]


def scanned(objects: Sequence[Any], op: Op, rank: int, *, itself: bool) -> Any:
    """Combine the objects before a rank, and its own if that counts ``itself``, as mpi4py does: by recursive doubling."""
    if not _IN_TREES:
        return _up_to(objects[: rank + itself], op)[-1] if rank + itself else None
    found, has_any, end, step = objects[rank], itself, rank, 1
    while end:
        if end & step:
            block = fold(objects[end - step : end], op)
            found, has_any, end = op(block, found) if has_any else block, True, end - step
        step *= 2
    return found if has_any else None


def _up_to(objects: Sequence[Any], op: Op) -> list[Any]:
    found = [objects[0]]
    for one in objects[1:]:
        found.append(op(found[-1], one))
    return found
