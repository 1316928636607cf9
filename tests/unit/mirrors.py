"""The driver's double, and calls on mirrors of its arrays; nothing here calls MPI."""

from typing import Any

import mpi4py
import numpy as np
from cuda_double import Double

mpi4py.rc.initialize = False
from mpi4py import MPI  # noqa: E402

from hpcoll.comm.arguments.host_mirror import mirrored  # noqa: E402

OP = MPI.SUM


def both(method: str, arguments: tuple[Any, ...], stream: Any = None, rank: int = 0) -> tuple[tuple[Any, ...], Any]:
    found = mirrored(method, arguments, stream, rank)
    assert found is not None
    return found


def arrays(double: Double) -> tuple[Any, Any]:
    return double.Array(6).fill(np.arange(6)), double.Array(6).fill(-1)


def copies(double: Double) -> int:
    return double.calls["cuMemcpyAsync"]


def address(array: Any) -> int:
    return int(array.ctypes.data)
