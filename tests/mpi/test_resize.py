"""Calls that differ from earlier ones in size or counts alone: right, and recognised."""

import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from memory_kinds import Dlpack
from mpi4py import MPI
from reference import communicator, ensure, ensure_none, fresh, unless

from hpcoll.base.errors import ArgumentError
from hpcoll.runtime.engine.object_layout import SUPPORTED

pytestmark = pytest.mark.mpi
SIZES = [0, 1, 5, 7, 8, 9, 100, 1000, 63, 2000, 17, 40_000, 3, 12_345, 512, 1]


@pytest.mark.smoke
def test_sizes_in_any_order() -> None:
    """One communicator, every algorithm that may be chosen, sizes up and down: what one call leaves must not show in the next."""
    comm, wrong = communicator().Dup(), []
    p, rank = comm.size, comm.rank
    total = p * (p + 1) / 2
    for turn in range(3):
        for n in SIZES:
            x, y, wide = np.full(n, rank + 1.0), np.zeros(n), np.zeros(n * p)
            comm.Allreduce(x, y)
            comm.Allgather(x, wide)
            ones = np.ones(n * p)
            comm.Alltoall(wide, ones)
            root, few = (turn + n) % p, np.full(n, float(rank))
            comm.Bcast(few, root)
            request = comm.Iallreduce(MPI.IN_PLACE, x)
            request.Wait()
            expected = np.repeat(np.arange(1.0, p + 1), n)
            good = [
                (y == total).all(),
                (wide == expected).all(),
                (ones == rank + 1).all(),
                (few == root).all(),
                (x == total).all(),
            ]
            wrong += unless(all(good), (turn, n, good))
    comm.Free()
    ensure_none(wrong)


@pytest.mark.skipif(not SUPPORTED, reason="objects are laid out otherwise")
def test_new_sizes_take_the_quick_way(described: list[str]) -> None:
    comm = fresh()
    for n in range(1, 400):
        comm.Allreduce(np.ones(n), np.empty(n), algorithm="recursive_doubling")
    ensure(len(described) < 16, len(described))
    comm.Free()


def counts_of(turn: int, p: int) -> Any:
    """Elements that each rank sends to each other, many of them none."""
    rng = np.random.default_rng(turn)
    return rng.integers(0, 2, (p, p)) * rng.integers(0, (9, 900, 40_000)[turn % 3], (p, p))


LISTS: dict[str, Callable[[Any], Any]] = {
    "list": lambda counts: counts.tolist(),
    "tuple": lambda counts: tuple(counts.tolist()),
    "int64": lambda counts: counts.astype(np.int64),
    "int32": lambda counts: counts.astype(np.int32),
    "numpy integers": list,
}


@pytest.mark.parametrize("form", LISTS)
@pytest.mark.parametrize("displacements", ["given", "packed", "pair"])
def test_counts_in_any_form(form: str, displacements: str, described: list[str]) -> None:
    """New counts in each call; blocks one element apart where displacements are given."""
    comm, wrong, made = fresh(), [], LISTS[form]
    p, rank = comm.size, comm.rank

    def spec(array: Any, counts: Any, displs: Any) -> Any:
        if displacements == "pair":
            return [array, (made(counts), made(displs)), MPI.DOUBLE]
        return [array, made(counts), made(displs) if displacements == "given" else None, MPI.DOUBLE]

    def laid_out(counts: Any, values: Any) -> tuple[Any, Any]:
        apart = 0 if displacements == "packed" else 1
        displs = np.concatenate(([0], np.cumsum(counts[:-1] + apart)))
        array = np.full(int(counts.sum()) + apart * p, -1.0)
        for displ, count, value in zip(displs, counts, values, strict=True):
            array[displ : displ + count] = value
        return array, displs

    for turn in range(8):
        counts = counts_of(turn, p)
        mine, theirs = counts[rank], counts[:, rank]
        send, send_displs = laid_out(mine, [100 * rank + peer for peer in range(p)])
        expected, recv_displs = laid_out(theirs, [100 * peer + rank for peer in range(p)])
        recv = np.full_like(expected, -1.0)
        comm.Alltoallv(spec(send, mine, send_displs), spec(recv, theirs, recv_displs))
        wrong += unless((recv == expected).all(), ("Alltoallv", turn))
        every, displs = laid_out(counts[0], range(p))
        for root in (None, 0, p - 1):
            gathered, x = np.full_like(every, -1.0), np.full(counts[0][rank], float(rank))
            whole = spec(gathered, counts[0], displs)
            if root is None:
                comm.Allgatherv(x, whole)
            else:
                comm.Gatherv([x, MPI.DOUBLE], whole if rank == root else None, root)
                part = np.full(counts[0][rank], -1.0)
                comm.Scatterv(spec(every, counts[0], displs) if rank == root else None, part, root)
                wrong += unless((part == rank).all(), ("Scatterv", turn, root))
            wrong += unless(root not in (None, rank) or (gathered == every).all(), ("Gatherv", turn, root))
    ensure_none(wrong)
    ensure(not SUPPORTED or len(described) < 30, len(described))  # of 48 calls on a root
    comm.Free()


@pytest.mark.parametrize("form", [*LISTS, "left out"])
def test_blocks_that_are_combined(form: str, described: list[str]) -> None:
    """Reduce_scatter with new counts in each call, of two element types; counts that do not fill sendbuf are refused, also by a cache."""
    comm, wrong, made = fresh(), [], LISTS.get(form)
    p, rank = comm.size, comm.rank
    for turn in range(30):
        counts = counts_of(3 * turn + turn % 2, p)[0]
        for dtype in (np.float64, np.int8):
            x = (np.arange(counts.sum()) % 5 + rank).astype(dtype)
            y, first = np.full(counts[rank], -1, dtype), counts[:rank].sum()
            send = [x, MPI.DOUBLE if dtype == np.float64 else MPI.INT8_T] if turn % 2 else x
            comm.Reduce_scatter(send, y, made and made(counts), MPI.SUM)
            expected = (p * (np.arange(counts.sum()) % 5) + p * (p - 1) // 2).astype(dtype)
            wrong += unless((y == expected[first : first + counts[rank]]).all(), (turn, dtype))
    ensure_none(wrong)
    ensure(not SUPPORTED or form == "left out" or len(described) < 30, len(described))
    comm.Barrier()
    with pytest.raises(ArgumentError, match="elements sent and"):
        comm.Reduce_scatter(np.ones(sum(counts) + 1), np.ones(counts[rank]), made(counts) if made else counts)
    comm.Free()


@pytest.mark.parametrize("how", ["Reduce_scatter", "Ireduce_scatter", "Reduce_scatter_init"])
@pytest.mark.parametrize(
    "kind", [np.asarray, lambda x: array.array("d", x), Dlpack, lambda x: (Dlpack(x), MPI.DOUBLE)]
)
def test_combined_blocks_of_other_sizes_than_an_even_split(how: str, kind: Callable[[Any], Any]) -> None:
    """Without counts each rank tells its own, and none may find a call by the split of its array that other ranks do not have."""
    comm, wrong = fresh(), []
    for turn in range(6):
        counts = [1 + (rank + turn) % comm.size for rank in range(comm.size)]
        x, y = np.arange(sum(counts)) + comm.rank, array.array("d", [-1] * counts[comm.rank])
        request = getattr(comm, how)(kind(x.astype(float)), y, counts if turn % 2 else None)
        if how.endswith("init"):
            request.Start()
        if request:
            request.Wait()
        first, last = sum(counts[: comm.rank]), sum(counts[: comm.rank + 1])
        expected = comm.size * np.arange(first, last) + comm.size * (comm.size - 1) // 2
        wrong += unless(y.tolist() == expected.tolist(), (turn, y, expected))
    ensure_none(wrong)
    comm.Free()
