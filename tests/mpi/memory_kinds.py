"""Memory of all kinds for tests of buffer specs, and what `resolve` makes of it or refuses."""

import re
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcoll.base.errors import ArgumentError
from hpcoll.comm.arguments.buffers import Resolved, resolve


class Dlpack:
    """Exports an array through DLPack only; ``legacy`` as before DLPack 1.0, ``device`` as if it lay elsewhere."""

    def __init__(self, memory: np.ndarray, *, legacy: bool = False, device: int = 1) -> None:
        self.memory, self.legacy, self.device = memory, legacy, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self, **options: Any) -> Any:
        if self.legacy and options.get("max_version"):
            raise TypeError("unexpected keyword argument 'max_version'")
        return self.memory.__dlpack__(**({} if self.legacy else options))


class Cai:
    """Exports an array's host memory through the CUDA array interface only."""

    def __init__(self, memory: np.ndarray, **changes: Any) -> None:
        self.memory = memory
        interface = {key: memory.__array_interface__[key] for key in ("shape", "typestr", "data", "strides")}
        self.__cuda_array_interface__ = interface | {"version": 3, "mask": None, "stream": 1} | changes


def describe(spec: object, **options: Any) -> Resolved:
    resolved = resolve(spec, name="buf", rank=3, **options)
    assert resolved is not None
    assert resolved.nbytes == resolved.count * resolved.dtype.itemsize
    return resolved


def refuse(text: str, spec: object, **options: Any) -> None:
    with pytest.raises(ArgumentError, match=re.escape(text)) as caught:
        resolve(spec, name="buf", rank=3, **options)
    assert str(caught.value).startswith("rank 3: buf ")


def address(memory: Any) -> int:
    return MPI.Get_address(memory)


def derived() -> MPI.Datatype:
    """Elements 0 and 3 of every 6 doubles."""
    return MPI.DOUBLE.Create_vector(2, 1, 3).Create_resized(0, 48).Commit()
