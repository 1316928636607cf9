"""The parameters of a model, by name, on which the ranks agree."""

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
    """A parameter; ``array`` has its values, ``device`` is "cpu" or "cuda"."""

    name: str
    array: Any
    shape: tuple[int, ...]
    dtype: np.dtype
    device: str

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of the elements."""
        return self.size * self.dtype.itemsize


def agreed_parameters(comm: Communicator, given: Mapping[str, Any] | Sequence[Any], settings: Mapping[str, Any]) -> list[Parameter]:
    """Return the parameters, after checking that all ranks have the same; collective.

    Args:
        comm: Communicator of the ranks.
        given: Arrays by name, or arrays, whose numbers become their names.
        settings: Settings that must be equal on all ranks, too.

    Raises:
        ArgumentError: on every rank, if a rank's parameters cannot be used, or they or its settings differ from rank 0's.
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
