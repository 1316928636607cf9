"""Whose GPU memory it is: pools that give back and take again, memory that cannot be exported, managed memory, other libraries' arrays."""

from typing import Any

import numpy as np
import pytest
from gpu_cases import WAYS, Maker, communicator
from mpi4py import MPI
from reference import agreed

from hpcoll.base.errors import HpcollError

pytestmark = [pytest.mark.gpu, pytest.mark.mpi(min_size=1)]
COUNTS = (3, 5_003, 70_001, 1_500_007)
TURNS = 12


def total(comm: Any, turn: int) -> float:
    return float(sum(rank + turn for rank in range(comm.size)))


def tried(comm: Any, allocate: Any, cupy: Any) -> list[Any]:
    """Sums over arrays that ``allocate`` gives; what was wrong."""
    wrong = []
    for count in COUNTS:
        for turn in range(3):
            x, y = allocate(count), allocate(count)
            x.fill(comm.rank + turn)
            y.fill(-1)
            cupy.cuda.Device().synchronize()
            comm.Allreduce(x, y)
            wrong += [] if (y == total(comm, turn)).all() else [(count, turn)]
            comm.Allreduce(MPI.IN_PLACE, x)
            wrong += [] if (x == total(comm, turn)).all() else [("in place", count, turn)]
    return wrong


@pytest.mark.parametrize("way", [None, *WAYS])
def test_memory_that_was_freed_and_came_again(way: str | None, cupy: Any, make: Maker) -> None:
    """Peers hold mappings of allocations that are gone; another may lie at the same address, with another size."""
    comm, wrong, pool = communicator(way, make), [], cupy.get_default_memory_pool()
    for turn in range(TURNS):
        count = COUNTS[turn % len(COUNTS)]
        x, y = cupy.full(count, comm.rank + turn, np.float64), cupy.full(count, -1.0)
        comm.Allreduce(x, y)
        wrong += [] if (y == total(comm, turn)).all() else [turn]
        parts = cupy.empty(count * comm.size)
        comm.Allgather(y, parts)
        wrong += [] if (parts == total(comm, turn)).all() else [("allgather", turn)]
        del x, y, parts
        if comm.rank % 2 == turn % 2:  # on some ranks only
            pool.free_all_blocks()
    assert agreed(wrong) == []


@pytest.mark.parametrize("kind", ["stream-ordered pool", "such a pool on one rank", "managed"])
def test_memory_that_cannot_be_exported(kind: str, cupy: Any, make: Maker) -> None:
    """That of cudaMallocAsync and of cudaMallocManaged."""
    comm = communicator(None, make)
    if kind == "managed":
        allocator = cupy.cuda.malloc_managed
    elif kind == "such a pool on one rank" and comm.rank > 0:
        allocator = cupy.get_default_memory_pool().malloc
    else:
        allocator = cupy.cuda.MemoryAsyncPool().malloc
    with cupy.cuda.using_allocator(allocator):
        wrong = tried(comm, cupy.empty, cupy)
    assert agreed(wrong) == []


def test_views_and_other_layouts(cupy: Any, make: Maker) -> None:
    """Parts of an allocation, matrices, Fortran order: as on the host."""
    comm, wrong = communicator(None, make), []
    for count in (12, 120_000):
        whole = cupy.zeros(3 * count)
        middle = whole[count : 2 * count]
        middle.fill(comm.rank)
        comm.Allreduce(MPI.IN_PLACE, middle)
        edges = bool((whole[:count] == 0).all()) and bool((whole[2 * count :] == 0).all())
        wrong += [] if edges and (middle == total(comm, 0)).all() else [("part", count)]
        for order in "CF":
            x = cupy.arange(count, dtype=np.float64).reshape(3, -1, order=order).copy(order=order)
            y = cupy.zeros_like(x)
            comm.Allreduce(x, y)
            wrong += [] if (y == comm.size * x).all() else [(order, count)]
    assert agreed(wrong) == []


def test_tensors_and_other_exporters(torch: Any, make: Maker) -> None:
    comm, wrong = communicator(None, make), []
    for count in COUNTS:
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            x = torch.full((count,), comm.rank + 1, dtype=dtype, device="cuda")
            comm.Allreduce(MPI.IN_PLACE, x)
            wrong += [] if bool((x == comm.size * (comm.size + 1) // 2).all()) else [(count, str(dtype))]
    assert agreed(wrong) == []


def test_arrays_of_numba(cupy: Any, make: Maker) -> None:
    cuda = pytest.importorskip("numba.cuda")
    if not cuda.is_available():
        pytest.skip("this Numba sees no GPU")
    comm, wrong = communicator(None, make), []
    for count in COUNTS:
        x = cuda.to_device(np.full(count, comm.rank + 1.0))
        comm.Allreduce(MPI.IN_PLACE, x)
        wrong += [] if (x.copy_to_host() == comm.size * (comm.size + 1) / 2).all() else [count]
    assert agreed(wrong) == []


BAD = {
    "too short": lambda cupy: (cupy.ones(5), cupy.ones(4)),
    "another type": lambda cupy: (cupy.ones(5), cupy.ones(5, np.float32)),
    "overlapping": lambda cupy: (lambda x: (x[:5], x[3:8]))(cupy.ones(8)),
    "gaps": lambda cupy: (cupy.ones(5), cupy.ones((5, 2))[:, 0]),
    "freed": lambda cupy: (cupy.ones(5), Claim(cupy, 5, keeps=False)),
    "short allocation": lambda cupy: (cupy.ones(1 << 24), Claim(cupy, 1 << 24)),
}


class Claim:
    """Says that it lies where nothing is any more, or that it is longer than its allocation."""

    def __init__(self, cupy: Any, count: int, *, keeps: bool = True) -> None:
        memory = cupy.cuda.memory.Memory(1 << 20)
        self.memory = memory if keeps else None
        self.__cuda_array_interface__ = {
            "shape": (count,),
            "typestr": "<f8",
            "data": (memory.ptr, False),
            "strides": None,
            "version": 3,
        }


@pytest.mark.parametrize("what", BAD)
def test_refused_before_anything_left(what: str, cupy: Any, make: Maker) -> None:
    comm = communicator(None, make)
    cupy.get_default_memory_pool().free_all_blocks()
    with pytest.raises((HpcollError, ValueError)):
        comm.Allreduce(*BAD[what](cupy))
    x = cupy.ones(70_001)
    comm.Allreduce(MPI.IN_PLACE, x)
    assert (x == comm.size).all()
