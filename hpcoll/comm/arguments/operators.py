"""From the operator a caller names to ours, and back to the MPI library's."""

from typing import Any

from mpi4py import MPI

from hpcoll.base import ops
from hpcoll.base.errors import ArgumentTypeError
from hpcoll.base.ops import ReduceOp

_PAIRS: tuple[tuple[MPI.Op, ReduceOp], ...] = (
    (MPI.SUM, ops.SUM), (MPI.PROD, ops.PROD), (MPI.MIN, ops.MIN), (MPI.MAX, ops.MAX),
    (MPI.LAND, ops.LAND), (MPI.LOR, ops.LOR), (MPI.LXOR, ops.LXOR), (MPI.BAND, ops.BAND), (MPI.BOR, ops.BOR), (MPI.BXOR, ops.BXOR),
)  # fmt: skip
BY_IDENTITY = {id(theirs): ours for theirs, ours in _PAIRS}  # MPI.Op is unhashable; its predefined objects never die
_NATIVE = {ours.name: theirs for theirs, ours in _PAIRS}


def to_ours(op: Any, rank: int) -> ReduceOp | None:
    """The `ReduceOp` that an operator argument names; None for one that only the MPI library has (MINLOC, user-made ``MPI.Op``).

    Raises:
        ArgumentTypeError: neither an ``MPI.Op`` nor a `ReduceOp`.
    """
    found = BY_IDENTITY.get(id(op), op)
    if isinstance(found, ReduceOp):
        return found
    if not isinstance(op, MPI.Op):
        raise ArgumentTypeError(f"rank {rank}: op must be an MPI.Op or an hpcoll operator, got {op!r}")
    return next((ours for theirs, ours in _PAIRS if theirs == op), None)


def to_native(op: ReduceOp) -> MPI.Op | None:
    """The MPI library's operator, or None where it has none (average, premultiplied sum, a Python function)."""
    return None if op.function is not None else _NATIVE.get(op.name)
