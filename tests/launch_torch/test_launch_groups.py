"""Process groups as programs make them: backends by device, addresses and files for the start, spawned processes, groups of groups."""

from pathlib import Path

import pytest
from starting import Job, free_port, script, tokens

HEAD = """
import os, sys
from datetime import timedelta
import torch
import torch.distributed as dist
import hpcoll.torch

def check(token="sum", group=None):
    rank, nranks = dist.get_rank(group), dist.get_world_size(group)
    x = torch.full((1000,), rank + 1.0)
    dist.all_reduce(x, group=group)
    assert (x == x[0]).all()
    print(f"{token} {rank} of {nranks}: {x[0]:.0f}\\n", end="", flush=True)

def me():
    return {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
"""
# Ways to make the group of all ranks, where RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set.
BY_VARIABLES = {
    "name": 'dist.init_process_group("hpcoll")',
    "device": 'dist.init_process_group("cpu:hpcoll")',
    "devices": 'dist.init_process_group("cpu:gloo,cuda:hpcoll")',
    "options": """dist.init_process_group("hpcoll", pg_options=hpcoll.torch.GroupOptions(order="rank"),
                                          timeout=timedelta(seconds=60))""",
}
END = "check()\ndist.destroy_process_group()\n"


@pytest.mark.parametrize("way", BY_VARIABLES)
def test_variables(job: Job, tmp_path: Path, way: str) -> None:
    tokens(job.run_ranks(2, script(tmp_path, HEAD, BY_VARIABLES[way], "\n", END)), 2)


@pytest.mark.parametrize("way", ["tcp", "file"])
def test_address_for_the_start(job: Job, tmp_path: Path, way: str) -> None:
    """MASTER_ADDR is not set."""
    place = f"tcp://127.0.0.1:{free_port()}" if way == "tcp" else f"file://{tmp_path}/meet"
    program = script(
        tmp_path, HEAD, f'dist.init_process_group("hpcoll", init_method="{place}", **me())\n', END
    )
    ranks = [job.start(program, RANK=str(rank), WORLD_SIZE="2") for rank in range(2)]
    tokens(job.ended(ranks), 2)


SPAWNED = """
import torch.multiprocessing as mp

def work(rank, nranks, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("hpcoll", rank=rank, world_size=nranks)
    check()
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(work, (3, int(sys.argv[1])), 3)
"""


def test_spawned_processes(job: Job, tmp_path: Path) -> None:
    tokens(job.run(script(tmp_path, HEAD, SPAWNED), str(free_port())), 3)


AGAIN = """
for i in range(3):
    dist.init_process_group("hpcoll")
    check(f"sum{i}")
    dist.destroy_process_group()
"""


def test_group_that_is_made_again(job: Job, tmp_path: Path) -> None:
    said = job.run_ranks(2, script(tmp_path, HEAD, AGAIN))
    for i in range(3):
        tokens(said, 2, f"sum{i}")


GLOO = """
dist.init_process_group("gloo", init_method="env://" if "MASTER_ADDR" in os.environ else sys.argv[1], **me())
assert MPI.Is_initialized() is ("MASTER_ADDR" in os.environ)
try:
    some = dist.new_group([0, 2], backend="hpcoll")
    if dist.get_rank() != 1:
        check("some", some)
except hpcoll.ArgumentError as error:
    print(f"refused: {error}\\n", end="", flush=True)
dist.barrier()
check("gloo")
check("all", dist.new_group(backend="hpcoll"))
some = dist.new_group([0, 1], backend="hpcoll")
if dist.get_rank() != 2:
    check("more", some)
dist.destroy_process_group()
"""
HEAD_MPI = HEAD + "import mpi4py; mpi4py.rc.initialize = False\nfrom mpi4py import MPI\n"


def test_groups_beside_gloo(job: Job, tmp_path: Path) -> None:
    """Where variables tell the ranks, MPI begins with the group of gloo."""
    said = job.run_ranks(3, script(tmp_path, HEAD_MPI, GLOO))
    for token, nranks in (("gloo", 3), ("all", 3), ("some", 2), ("more", 2)):
        tokens(said, nranks, token)
    assert "refused" not in said


def test_groups_of_some_ranks_first(job: Job, tmp_path: Path) -> None:
    """Where the program tells them, MPI begins with the first group of backend hpcoll, which must have all ranks."""
    program, place = script(tmp_path, HEAD_MPI, GLOO), f"tcp://127.0.0.1:{free_port()}"
    said = job.ended([job.start(program, place, RANK=str(rank), WORLD_SIZE="3") for rank in range(3)])
    for token, nranks in (("gloo", 3), ("all", 3), ("more", 2)):
        tokens(said, nranks, token)
    told = "MPI has not begun, and does so with a group of all ranks: make one of backend hpcoll first"
    assert [said.count(f"refused: rank {rank}: {told}") for rank in range(3)] == [1, 0, 1]
    assert "some" not in said.replace("some ranks", "")
