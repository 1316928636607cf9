"""The comparison of parameters and settings, which all ranks of a training must have alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from hpcoll.base.errors import ArgumentError
from hpcoll.training.shards import ShardLayout


def agree(comm: MPI.Intracomm, wrong: str, facts: dict[str, Any], layouts: Sequence[ShardLayout]) -> None:
    """Compare arguments with rank 0's; collective.

    Args:
        comm: Communicator of the ranks.
        wrong: Text of the error that this rank has found by itself, or "".
        facts: Settings by name.
        layouts: Layouts of the parameters.

    Raises:
        ArgumentError: on all ranks, if some rank's arguments are wrong or differ; names the rank and the argument or parameter.
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
    """Return the first difference between lists of arrays in words, whatever their order; the empty string for none."""
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
