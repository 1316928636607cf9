"""Reduction operators of torch.distributed as those of hpcoll."""

from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from hpcoll.base.errors import ArgumentTypeError
from hpcoll.base.ops import AVG, premul_sum

_RedOp = dist.ReduceOp.RedOpType
_OPERATORS: dict[Any, Any] = {
    _RedOp.SUM: MPI.SUM, _RedOp.PRODUCT: MPI.PROD, _RedOp.MIN: MPI.MIN, _RedOp.MAX: MPI.MAX,
    _RedOp.BAND: MPI.BAND, _RedOp.BOR: MPI.BOR, _RedOp.BXOR: MPI.BXOR, _RedOp.AVG: AVG,
}  # fmt: skip
# Of truth values, as with NCCL: a sum is true where one is.
_OF_BOOLS: dict[Any, Any] = {
    _RedOp.SUM: MPI.LOR, _RedOp.MAX: MPI.LOR, _RedOp.BOR: MPI.LOR, _RedOp.PRODUCT: MPI.LAND, _RedOp.MIN: MPI.LAND, _RedOp.BAND: MPI.LAND,
    _RedOp.BXOR: MPI.LXOR,
}  # fmt: skip


def operator_for(op: Any, dtype: torch.dtype) -> Any:
    """Return the operator of hpcoll for one of torch's, on elements of a type.

    Raises:
        ArgumentTypeError: There is none.
    """
    kind = op if isinstance(op, _RedOp) else op.op
    if kind == _RedOp.PREMUL_SUM:
        return premul_sum(_factor(op))
    found = (_OF_BOOLS if dtype == torch.bool else _OPERATORS).get(kind)
    if found is None:
        raise ArgumentTypeError(f"a reduction of {dtype} needs an operator that it has, got {kind}")
    return found


def _factor(op: Any) -> float:
    """Return the factor of a premultiplied sum, which older versions of torch tell only in its pickled state."""
    factor = op.factor if hasattr(op, "factor") else op.__getstate__()[1]
    return float(factor)
