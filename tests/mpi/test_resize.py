"""Calls that differ from earlier ones in size or counts alone: right, and recognised."""

import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from forms import ROOTED, VARYING, Case
from memory_kinds import Dlpack
from mpi4py import MPI
from reference import communicator, ensure, ensure_none, fresh, unless

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
    """Elements of each rank's block, many of them none."""
    rng = np.random.default_rng(turn)
    return rng.integers(0, 2, p) * rng.integers(0, (9, 900, 40_000)[turn % 3], p)


LISTS: dict[str, Callable[[Any], Any]] = {
    "list": lambda counts: counts.tolist(),
    "tuple": lambda counts: tuple(counts.tolist()),
    "int64": lambda counts: counts.astype(np.int64),
    "int32": lambda counts: counts.astype(np.int32),
    "numpy integers": list,
}


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("form", LISTS)
def test_counts_in_any_form(form: str, pair: bool, described: list[str]) -> None:
    """New counts in each call; blocks apart from each other."""
    comm, wrong, made = fresh(), [], LISTS[form]

    def spec(given: Any) -> Any:
        if not isinstance(given, list):
            return given
        if isinstance(given[0], int):
            return made(np.array(given))
        array, lists = given
        counts, displs = (made(np.array(one)) for one in lists)
        return [array, (counts, displs), MPI.DOUBLE] if pair else [array, counts, displs, MPI.DOUBLE]

    for turn in range(8):
        counts = counts_of(turn, comm.size).tolist()
        for method in VARYING:
            for root in {0, comm.size - 1} if method in ROOTED else {0}:
                case = Case(comm, method, root=root, shape=counts.__getitem__)
                getattr(comm, method)(*map(spec, case.arguments))
                wrong += unless(case.good(), (case, turn))
    ensure_none(wrong)
    ensure(not SUPPORTED or len(described) < 35, len(described))  # of 56 calls on a root
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
