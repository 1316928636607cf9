"""Temporary GPU memory: used again, and given back where much of it is idle."""

from __future__ import annotations

import gc

import pytest
from cuda_double import Double

from hpcoll.runtime.gpu.device import gpu_of

MIB = 1 << 20
pytestmark = pytest.mark.double(memory_nbytes=1024 * MIB)  # of which a 64th may be idle


def allocated(double: Double) -> int:
    return sum(one.nbytes for one in double.memory if one.own)


def test_large_memory_is_kept_up_to_a_limit(double: Double) -> None:
    gpu = gpu_of(0)
    several = [gpu.temporary(8 * MIB) for _ in range(5)]
    assert allocated(double) == 40 * MIB
    places = {one.address for one in several}
    del several
    gc.collect()
    assert allocated(double) == 16 * MIB
    again = [gpu.temporary(8 * MIB) for _ in range(2)]
    assert {one.address for one in again} <= places
    assert allocated(double) == 16 * MIB
    largest = gpu.temporary(200 * MIB)
    assert allocated(double) == (16 + 256) * MIB
    del largest, again
    assert allocated(double) == 16 * MIB


def test_small_memory_is_of_a_slab(double: Double) -> None:
    gpu = gpu_of(0)
    several = [gpu.temporary(4096) for _ in range(100)]
    assert len({one.address for one in several}) == 100
    assert allocated(double) == 32 * MIB
    del several
    gc.collect()
    assert [gpu.temporary(100).nbytes, allocated(double)] == [4096, 32 * MIB]
