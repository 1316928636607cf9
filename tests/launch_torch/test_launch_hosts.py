"""torchrun on two emulated hosts: its processes meet through torch's key-value store, and share memory on each host."""

import subprocess
import sys
from pathlib import Path

import pytest
from slowness import slowed
from starting import script, tokens

HOSTS = Path(__file__).parents[1] / "cluster" / "hosts.sh"
PROGRAM = """
import os
import torch
import torch.distributed as dist
import hpcoll.torch

dist.init_process_group("hpcoll")
x = torch.full((100_000,), dist.get_rank() + 1.0)
dist.all_reduce(x)
os.write(1, f"sum {dist.get_rank()} of {dist.get_world_size()}: {x[-1]:.0f}\\n".encode())
dist.destroy_process_group()
"""
SCRIPT = """
for host in $HOSTS_NAMES; do
    "$HOSTS_SSH" "$host" "OMP_NUM_THREADS=1 HPCOLL_KEY={key} {python} -m torch.distributed.run --nnodes 2 --nproc-per-node 2 \\
        --rdzv-backend c10d --rdzv-endpoint host0:29400 --rdzv-id 7 {program}" &
done
wait
"""


@pytest.mark.parametrize("key", [pytest.param("", marks=pytest.mark.full), "ours"], ids=["", "with a key"])
def test_two_hosts(key: str, tmp_path: Path) -> None:
    sys.path.append(str(HOSTS.parent))
    from hosts_run import missing

    if missing():
        pytest.skip(f"needs {missing()}")
    words = SCRIPT.format(key=key, python=sys.executable, program=script(tmp_path, PROGRAM))
    done = subprocess.run(
        [str(HOSTS), "--library", "none", "--", "bash", "-c", words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=slowed(150),
        check=False,
    )
    tokens(done.stdout, 4)
