"""Programs under torchrun, as its users start them: on one host, by whatever rendezvous, and started again where a rank fails."""

import re
import sys
from pathlib import Path

import pytest
from starting import TORCHRUN, Job, free_port, script, tokens

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import os, sys
import torch
import torch.distributed as dist
import hpcoll.torch

dist.init_process_group("hpcoll")
rank, nranks = dist.get_rank(), dist.get_world_size()
x = torch.full((1000,), rank + 1.0)
dist.all_reduce(x)
assert (x == x[0]).all()
generation = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if "--fail" in sys.argv and rank == 1 and generation == 0:
    sys.exit("rank 1 fails")
dist.barrier()
print(f"sum{generation} {rank} of {nranks}: {x[0]:.0f}\\n", end="", flush=True)
dist.destroy_process_group()
"""
WAYS = {
    "standalone": ("--standalone",),
    "c10d": ("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=one"),
    "static": ("--nnodes=1", "--node-rank=0", "--master-addr=127.0.0.1"),
}


@pytest.mark.parametrize("way", WAYS)
def test_way_of_meeting(job: Job, tmp_path: Path, way: str) -> None:
    program = script(tmp_path, PROGRAM)
    port = (f"--master-port={free_port()}",) if way == "static" else ()
    tokens(job.run(*TORCHRUN, *WAYS[way], *port, "--nproc-per-node=2", program), 2, "sum0")


@pytest.mark.parametrize("way", ["standalone", "static"])
def test_ranks_that_are_started_again(job: Job, tmp_path: Path, way: str) -> None:
    program = script(tmp_path, PROGRAM)
    port = (f"--master-port={free_port()}",) if way == "static" else ()
    again = ("--max-restarts=2", "--monitor-interval=0.1", "--nproc-per-node=2")
    said = job.run(*TORCHRUN, *WAYS[way], *port, *again, program, "--fail")
    tokens(said, 2, "sum1")
    assert "rank 1 fails" in said
    assert "sum0" not in said


def test_training_has_the_bits_of_mpirun(job: Job) -> None:
    pytest.importorskip("sklearn")
    options = ("--backend=hpcoll", "--batches=16", "--steps=10", "--order=rank")
    words = (str(ROOT / "jobs" / "train_torch.py"), *options)
    mpiexec = Path(sys.executable).with_name("mpiexec")
    by_torchrun = job.run(*TORCHRUN, "--nproc-per-node=4", *words)
    by_mpirun = job.ended([job.start(*words, before=(str(mpiexec), "-n", "4"))])
    (one,), (other,) = (re.findall("parameters (\\w{16})", said) for said in (by_torchrun, by_mpirun))
    assert one == other
