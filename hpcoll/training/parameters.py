"""Parameters of a model by name, and their agreement among ranks."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from hpcoll.base.errors import ArgumentError
from hpcoll.comm.communicator import Communicator
from hpcoll.training.agreement import agree
from hpcoll.training.arrays import as_array
from hpcoll.training.shards import ShardLayout


class Parameter(NamedTuple):
    """One parameter.

    Attributes:
        name: Of it.
        array: Its values, which `hpcoll.training.gradient_buckets.GradientBuckets.broadcast` writes.
        shape, dtype: Of the array.
        device: "cpu" or "cuda".
    """

    name: str
    array: Any
    shape: tuple[int, ...]
    dtype: np.dtype
    device: str

    @property
    def size(self) -> int:
        """Elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize


def agreed_parameters(comm: Communicator, given: Mapping[str, Any] | Sequence[Any], settings: Mapping[str, Any]) -> list[Parameter]:
    """Parameters that all ranks have; collective.

    Args:
        comm: Of all ranks.
        given: Arrays by name, or arrays, whose names are their numbers.
        settings: Equal on all ranks, too.

    Raises:
        ArgumentError: on every rank, where one has other parameters or settings than rank 0, or some that cannot be used.
    """
    found, problem = list[Parameter](), ""
    try:
        found = _parameters(given)
    except ArgumentError as error:
        problem = f"rank {comm.rank}: {error}"
    agree(comm, problem, dict(settings), [ShardLayout(one.name, one.shape, f"{one.dtype} on {one.device}") for one in found])
    return found


def _parameters(given: Mapping[str, Any] | Sequence[Any]) -> list[Parameter]:
    named = given.items() if isinstance(given, Mapping) else ((str(i), one) for i, one in enumerate(given))
    found = []
    for name, one in named:
        array = as_array(one)
        device = "cpu" if isinstance(array, np.ndarray) else "cuda"
        found.append(Parameter(str(name), array, tuple(array.shape), array.dtype, device))
        if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
            raise ArgumentError(f"parameter {name!r} must have floating-point elements, got {array.dtype}")
        if device != found[0].device:
            raise ArgumentError(f"parameter {name!r} must be on {found[0].device} as {found[0].name!r} is, got {device}")
    if not found:
        raise ArgumentError("expected parameters, got none")
    return found
