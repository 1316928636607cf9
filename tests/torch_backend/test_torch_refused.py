"""Wrong calls are refused before anything is sent, naming rank, what was expected and what was given; what never ends is ended."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from mpi4py import MPI
from operations import NRANKS, RANK, RANKS, Caller
from slowness import slowed

from hpcoll.base.errors import ArgumentError, ArgumentTypeError
from hpcoll.torch.rendezvous import check_world

LIMIT_S = 0.5
ONES = torch.ones(2 * NRANKS)
LAUNCHERS = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "HYDRA_", "MPI_")  # what tells a process that it is a rank


def uneven_rows() -> None:
    dist.all_to_all_single(torch.ones(1), torch.ones(1), [2] + [0] * (NRANKS - 1), [1] + [0] * (NRANKS - 1))


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "output of all_gather_single": (
        lambda: dist.group.WORLD.all_gather_single(torch.ones(3), ONES),
        f"must have {2 * NRANKS**2} elements, got 3",
    ),
    "outputs of all_gather": (
        lambda: dist.group.WORLD.allgather([[torch.ones(2)] * (NRANKS + 1)], [torch.ones(2)]),
        f"needs {NRANKS} outputs.* got {NRANKS + 1}",
    ),
    "rows of all_to_all_single": (uneven_rows, r"sizes that sum to its 1 rows, got \[2"),
    "tag": (lambda: dist.group.WORLD.send([ONES], 0, -1), "tag must be at least 0 .* got -1"),
    "several tensors in a message": (lambda: dist.group.WORLD.send([ONES, ONES], 0, 0), "one tensor, got 2"),
}


@pytest.mark.parametrize(("call", "text"), WRONG.values(), ids=WRONG)
def test_wrong_size(call: Callable[[], object], text: str) -> None:
    with pytest.raises(ArgumentError, match=f"rank {RANK}: .*{text}"):
        call()


def test_wrong_element_type() -> None:
    with pytest.raises(
        ArgumentTypeError,
        match=f"rank {RANK}: all_gather_single needs .*float64 on cpu and torch.float32 on cpu",
    ):
        dist.group.WORLD.all_gather_single(torch.ones(2 * NRANKS), torch.ones(2, dtype=torch.float64))


def test_tensor_without_memory() -> None:
    emptied = torch.ones(3)
    emptied.untyped_storage().resize_(0)
    for one in (emptied, torch.ones(3, device="meta")):
        with pytest.raises(ArgumentTypeError, match=f"needs memory .* got 3 elements on {one.device}"):
            dist.group.WORLD.allreduce([one])


def test_operator_that_an_element_type_lacks() -> None:
    with pytest.raises(ArgumentTypeError, match=r"torch.bool.*AVG"):
        dist.all_reduce(torch.ones(2, dtype=torch.bool), dist.ReduceOp.AVG)


@pytest.mark.parametrize(("more", "more_ranks"), [(1, 0), (0, 1), (1, 1)])
def test_ranks_that_are_not_those_of_mpi(more: int, more_ranks: int) -> None:
    rank, nranks = RANK + more, NRANKS + more_ranks
    with pytest.raises(ArgumentError, match=f"rank {RANK} of {NRANKS}, got rank {rank} of {nranks}"):
        check_world(rank, nranks)
    check_world(RANK, NRANKS)
    check_world(-1, -1)


def alone(*words: str) -> subprocess.CompletedProcess[str]:
    """A Python program that no MPI launcher started."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    return subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, timeout=slowed(100)
    )


@pytest.mark.skipif(RANK > 0, reason="for one rank")
def test_torchrun_is_told_what_to_run(tmp_path: Path) -> None:
    """Open MPI's ranks are started by its mpirun: each process would be alone."""
    program = tmp_path / "program.py"
    program.write_text("import torch.distributed as dist, hpcoll.torch; dist.init_process_group('hpcoll')")
    told = alone("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program))
    assert told.returncode == 1
    assert "mpi4py has loaded Open MPI" in told.stderr
    assert "or start the program by mpirun" in told.stderr


@pytest.mark.skipif(RANK > 0, reason="for one rank")
def test_torch_is_imported_by_nobody_else() -> None:
    told = alone(
        "-c", "import sys, hpcoll, hpcoll.cli, hpcoll.comm.communicator; sys.exit('torch' in sys.modules)"
    )
    assert told.returncode == 0


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("in_flight", [False, True], ids=["blocking", "in flight"])
def test_late_rank(in_flight: bool) -> None:
    """Others hear in time which operation did not end, and on which rank."""
    world, group = MPI.COMM_WORLD, dist.new_group(timeout=timedelta(seconds=LIMIT_S))
    if RANK == 0:
        world.Barrier()  # of MPI: the others have given up
    else:
        begun, by = time.monotonic(), Caller(in_flight, torch.device("cpu"))
        with pytest.raises(dist.DistBackendError, match=f"rank {RANK}: all_reduce"):
            by(dist.all_reduce, torch.ones(3), group=group)
        assert LIMIT_S - 0.2 <= time.monotonic() - begun < LIMIT_S + slowed(20)  # of whoever began first
        world.Barrier()


@pytest.mark.mpi(min_size=2)
def test_wait_with_a_limit_of_its_own() -> None:
    """The operation goes on, and may be waited for again."""
    world, group, tensor = MPI.COMM_WORLD, dist.new_group(), torch.ones(3)
    if RANK == 0:
        world.Barrier()
        dist.all_reduce(tensor, group=group)
    else:
        work = dist.all_reduce(tensor, group=group, async_op=True)
        with pytest.raises(
            dist.DistBackendError, match=f"rank {RANK}: all_reduce.* the timeout of {LIMIT_S} s"
        ):
            work.wait(timedelta(seconds=LIMIT_S))
        assert not work.is_completed()
        world.Barrier()
        work.wait()
    assert (tensor == NRANKS).all()
    dist.destroy_process_group(group)


@pytest.mark.mpi(min_size=2)
def test_message_that_does_not_come() -> None:
    group = dist.new_group(timeout=timedelta(seconds=LIMIT_S))
    with pytest.raises(dist.DistBackendError, match=f"rank {RANK}: recv.* the timeout of {LIMIT_S} s"):
        dist.recv(torch.ones(1), RANKS[RANK - 1], group=group, tag=3)
    dist.barrier()


@pytest.mark.mpi(min_size=2)
def test_group_is_freed_though_a_collective_never_ends() -> None:
    """Programs end that gave up by a limit of their own."""
    group = dist.new_group(timeout=timedelta(seconds=LIMIT_S))
    if RANK:
        work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
        with pytest.raises(dist.DistBackendError):
            work.wait(timedelta(seconds=LIMIT_S / 5))
    dist.destroy_process_group(group)
    dist.barrier()
