"""Turns of ranks on GPUs that they share: one rank of each works for all, and its kernel's arrays are aligned alike."""

from typing import Any

import pytest
from cuda_double import installed, kernels
from gpu_cases import read
from gpu_double import LONG, WORLD, communicator
from mpi4py import MPI
from reference import ensure_none, unless

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.double]


@pytest.fixture
def folds(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Operands of the reductions that this rank launches: addresses, and how many are in use."""
    found: list[list[int]] = []
    original = kernels.launch

    def launch(entry: str, values: list[int], *others: Any) -> Any:
        found.extend([values] if entry.startswith("fold") else [])
        return original(entry, values, *others)

    monkeypatch.setattr(kernels, "launch", launch)
    return found


def wrong_sums(comm: Any, double: Any, in_place: bool, ordinal: int = 0, **options: Any) -> list[str]:
    recv = double.Array(LONG, ordinal=ordinal).fill(comm.rank + 1)
    send = MPI.IN_PLACE if in_place else double.Array(LONG, ordinal=ordinal).fill(comm.rank + 1)
    comm.Allreduce(send, recv, **options)
    return unless((read(recv) == comm.size * (comm.size + 1) / 2).all(), f"sum, in place {in_place}")


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("ngpus", [1, 2])
def test_one_rank_of_a_gpu_works(ngpus: int, in_place: bool, folds: list[list[int]]) -> None:
    with installed(ngpus) as double:
        ordinal = WORLD.rank % ngpus
        double.make_current(ordinal)
        comm = communicator()
        wrong = wrong_sums(comm, double, in_place, ordinal)
        sharing = WORLD.allgather(len(folds))
        alone = WORLD.size <= ngpus  # each has a GPU of its own: all work, on a part or on everything
        expected = [1] * WORLD.size if alone else [int(rank < ngpus) for rank in range(WORLD.size)]
        ensure_none(wrong + unless(sharing == expected, f"reductions of the ranks: {sharing}"))
        comm.Free()


@pytest.mark.parametrize("algorithm", ["two_shot", "ring"])
def test_operands_are_aligned_alike(algorithm: str, folds: list[list[int]], double: Any) -> None:
    """However elements divide among ranks; else the kernel takes all of them one by one."""
    comm = communicator()
    wrong = wrong_sums(comm, double, in_place=False, algorithm=algorithm)
    beyond = {address % 16 for values in folds for address in (*values[:8], *values[9:17])}
    ensure_none(
        wrong
        + ([] if folds and beyond == {0} else [f"{len(folds)} reductions, {beyond} behind a multiple of 16"])
    )
    comm.Free()
