"""What all ranks of a training must have alike: the list of parameters, and settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from hpcoll.base.errors import ArgumentError
from hpcoll.training.shards import ShardLayout


def agree(comm: MPI.Intracomm, wrong: str, facts: dict[str, Any], layouts: Sequence[ShardLayout]) -> None:
    """Raise on all ranks where some rank's arguments are wrong or not those of rank 0; collective.

    Raises:
        ArgumentError: with the argument or parameter and the rank.
    """
    everyone = comm.allgather((wrong, facts, tuple(layouts)))
    for text, _, _ in everyone:
        if text:
            raise ArgumentError(text)
    _, first, expected = everyone[0]
    for rank, (_, other, found) in enumerate(everyone):
        text = difference(found, expected)
        if text or [layout.name for layout in found] != [layout.name for layout in expected]:
            raise ArgumentError(f"rank {rank}: the list of parameters, compared with rank 0's, {text or 'is in another order'}")
        for name, value in first.items():
            if other[name] != value:
                raise ArgumentError(f"rank {rank}: {name} must be equal on all ranks: {value!r} on rank 0, got {other[name]!r}")


def difference(found: Sequence[ShardLayout], expected: Sequence[ShardLayout]) -> str:
    """In words, how lists of arrays differ, whatever their order; the empty string where they do not."""
    have, need = ({layout.name: layout for layout in layouts} for layouts in (found, expected))
    for name in [*need, *have]:
        if name not in have:
            return f"lacks parameter {name!r}"
        if name not in need:
            return f"has parameter {name!r}, which there is not: {', '.join(need)}"
        if have[name] != need[name]:
            one, other = need[name], have[name]
            return f"of parameter {name!r} needs {one.dtype} of shape {one.shape}, got {other.dtype} of shape {other.shape}"
    return ""
