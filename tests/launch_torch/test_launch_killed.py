"""Jobs that end at random moments leave nothing behind, and those after them start as if they had not been."""

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from starting import TORCHRUN, Job, script, tokens

PROGRAM = """
import sys
import torch
import torch.distributed as dist
import hpcoll.torch

dist.init_process_group("hpcoll")
x = torch.full((1000,), dist.get_rank() + 1.0)
dist.all_reduce(x)
print(f"sum {dist.get_rank()} of {dist.get_world_size()}: {x[0]:.0f}\\n", end="", flush=True)
while "--on" in sys.argv:
    dist.all_reduce(x)
dist.destroy_process_group()
"""
FEW, MANY = 5, 20
TIMES = [FEW, pytest.param(MANY, marks=[pytest.mark.full, pytest.mark.timeout(1800)])]


@pytest.mark.parametrize("times", TIMES)
def test_starts_in_a_row(job: Job, tmp_path: Path, times: int) -> None:
    program = script(tmp_path, PROGRAM)
    for _ in range(times):
        tokens(job.run(*TORCHRUN, "--standalone", "--nproc-per-node=2", program), 2)
        job.leaves_nothing()


@pytest.mark.parametrize("times", TIMES)
def test_killed_at_random_moments(job: Job, tmp_path: Path, times: int) -> None:
    """Of torchrun's processes each has a group of its own; the one in which ranks meet goes by itself."""
    program, moment = script(tmp_path, PROGRAM), random.Random(times)
    for _ in range(times):
        torchrun = job.start(*TORCHRUN, "--standalone", "--nproc-per-node=2", program, "--on")
        ranks = _ranks(job, program)
        time.sleep(moment.uniform(0, 3))
        for pid in [torchrun.pid, *ranks]:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        torchrun.communicate()
        job.leaves_nothing()
    tokens(job.run(*TORCHRUN, "--standalone", "--nproc-per-node=2", program), 2)


def _ranks(job: Job, program: Path) -> list[int]:
    """Return the processes of two ranks, once there are both."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = [
            pid
            for pid, words in job.processes().items()
            if str(program) in words and "distributed.run" not in words
        ]
        if len(found) == 2:
            return found
        time.sleep(0.02)
    raise AssertionError(job.processes())
