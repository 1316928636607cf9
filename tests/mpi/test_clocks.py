"""Which clock compiled code reads: one that goes forward only, whatever happens to the time of day."""

from __future__ import annotations

import ctypes
import time

import numpy as np
import pytest
from mpi4py import MPI
from reference import agreed, fresh

from hpcoll.comm import engine_builder
from hpcoll.runtime.engine import host_engine, local_ops
from hpcoll.runtime.engine.c_library import function_address

pytestmark = [pytest.mark.mpi, pytest.mark.once]


def test_compiled_code_reads_a_clock_that_only_goes_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of calls in all forms, and of the library's own."""
    asked: list[int] = []

    def answer(clock: int, at: int) -> int:
        asked.append(clock)
        ctypes.memmove(at, np.array(divmod(time.monotonic_ns(), 10**9), np.int64).ctypes.data, 16)
        return 0

    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p)(answer)
    addresses = {"clock_gettime": ctypes.cast(function, ctypes.c_void_p).value}
    comm = fresh()
    monkeypatch.setattr(engine_builder, "_PATTERNS", {})  # earlier engines have another function, and later ones must not have this
    monkeypatch.setattr(host_engine, "function_address", lambda name: addresses.get(name) or function_address(name))
    for count in (3, 50_000):
        x, y = np.ones(count), np.zeros(count)
        comm.Allreduce(x, y, algorithm="direct")
        comm.Iallreduce(x, y, algorithm="direct").Wait()
        request = comm.Allreduce_init(x, y, algorithm="direct")
        request.Start()
        request.Wait()
        assert (y == comm.size).all()
    request.Free()
    comm.Free()
    assert agreed([] if set(asked) <= {time.CLOCK_MONOTONIC, local_ops._CLOCK_MONOTONIC_COARSE} else [set(asked)]) == []
    assert MPI.COMM_WORLD.size < 2 or asked
