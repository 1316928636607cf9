"""The parameters and settings of a training, which all its ranks must have alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mpi4py import MPI

from hpcoll.base.errors import ArgumentError
from hpcoll.training.arrays import as_array, device_of
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


def check_like(found: Sequence[ShardLayout], expected: Sequence[ShardLayout], what: str, rank: int) -> None:
    """Refuse arrays that are not like the parameters.

    Raises:
        ArgumentError: names the first parameter that differs.
    """
    wrong = difference(found, expected)
    if wrong:
        raise ArgumentError(f"rank {rank}: {what} {wrong}")


def agreed_parameters(comm: MPI.Intracomm, given: Mapping[str, Any] | Sequence[Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters by name, after checking that all ranks have the same; collective.

    Args:
        comm: Communicator of the ranks.
        given: Arrays by name, or arrays, whose numbers become their names.
        settings: Settings that must be equal on all ranks, too.

    Raises:
        ArgumentError: on every rank, if a rank's parameters cannot be used, or they or its settings differ from rank 0's.
    """
    found, problem = dict[str, Any](), ""
    try:
        found = _parameters(given)
    except ArgumentError as error:
        problem = f"rank {comm.rank}: {error}"
    layouts = [ShardLayout(name, tuple(array.shape), f"{array.dtype} on {device_of(array)}") for name, array in found.items()]
    agree(comm, problem, dict(settings), layouts)
    return found


def _parameters(given: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
    named = given if isinstance(given, Mapping) else dict(enumerate(given))
    found = {str(name): as_array(array) for name, array in named.items()}
    for name, array in found.items():
        first, device = next(iter(found)), device_of(array)
        if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
            raise ArgumentError(f"parameter {name!r} must have floating-point elements, got {array.dtype}")
        if device != device_of(found[first]):
            raise ArgumentError(f"parameter {name!r} must be on {device_of(found[first])} as {first!r} is, got {device}")
    if not found:
        raise ArgumentError("expected parameters, got none")
    return found
