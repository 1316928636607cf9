"""Temporary GPU memory: used again, and given back where much of it is idle."""

import gc

import pytest
from cuda_double import Double

from hpcoll.base.errors import DeviceError
from hpcoll.runtime.gpu.device import Memory, gpu_of

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


@pytest.mark.double(memory_nbytes=1024 * MIB, forgives=("failures",))
@pytest.mark.parametrize(
    "wanted", [("temporary", 16 * MIB), ("temporary", 4096), ("for good", 16 * MIB)], ids=str
)
def test_idle_memory_is_given_back_where_there_is_no_other(wanted: tuple[str, int], double: Double) -> None:
    gpu = gpu_of(0)
    used, *idle = [gpu.temporary(8 * MIB) for _ in range(3)]
    del idle
    kind, nbytes = wanted
    needed = nbytes if nbytes > 4096 else 32 * MIB  # of a slab
    double.allocate(1024 * MIB - allocated(double) - (needed - 16 * MIB))
    found = Memory(gpu, nbytes) if kind == "for good" else gpu.temporary(nbytes)
    assert allocated(double) == 1024 * MIB
    assert found.address != used.address


@pytest.mark.double(memory_nbytes=1024 * MIB, forgives=("failures",))
def test_parts_of_slabs_stay(double: Double) -> None:
    gpu = gpu_of(0)
    used, idle = gpu.temporary(4096), gpu.temporary(4096)
    place = idle.address
    del idle
    double.allocate(1024 * MIB - allocated(double))
    with pytest.raises(DeviceError):
        gpu.temporary(16 * MIB)
    assert [gpu.temporary(4096).address, allocated(double)] == [place, 1024 * MIB]
    assert used.address != place
