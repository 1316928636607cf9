"""Another user connects to a job whose ranks wait for each other: it hears nothing but nonces, and the job ends right."""

import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from slowness import slowed
from starting import TORCHRUN, Job, script, tokens

SECOND = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="needs root and setpriv, to act as a second user",
)
LATER = """
import os, time
if os.environ["RANK"] == "1":
    while not os.path.exists(os.environ["NOW"]):
        time.sleep(0.05)
"""
THE_END = """
print(f"sum {rank} of {nranks}: {x[0]:.0f}\\n", end="", flush=True)
"""
OF_TORCH = (
    """
import torch
import torch.distributed as dist
import hpcoll.torch
""",
    LATER,
    """
dist.init_process_group("hpcoll")
rank, nranks = dist.get_rank(), dist.get_world_size()
x = torch.full((10,), rank + 1.0)
dist.all_reduce(x)
""",
    THE_END,
)
OF_MPI = (
    LATER,
    """
import numpy as np
import hpcoll
from mpi4py import MPI
rank, nranks = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
x = np.full(10, rank + 1.0)
hpcoll.Communicator(MPI.COMM_WORLD).Allreduce(MPI.IN_PLACE, x)
""",
    THE_END,
)
# Says to each address what it is given: a name of a socket of this host, or a port of loopback. Keeps all connections until the end.
STRANGER = """
import socket, sys
kept = []
for place in sys.argv[1:]:
    for said in (b"", b"\\0" * 200, b"cmd=init pmi_version=1 pmi_subversion=1\\n", b"x" * 40, b"y" * 64, b'[0, 2, "", ""]\\n' * 8):
        sock = socket.socket() if place.isdecimal() else socket.socket(socket.AF_UNIX)
        sock.settimeout(0.3)
        heard = b""
        try:
            sock.connect(("127.0.0.1", int(place)) if place.isdecimal() else "\\0" + place[1:])
            sock.sendall(said)
            while more := sock.recv(4096):
                heard += more
        except OSError as error:
            pass
        kept.append(sock)
        print(place, len(heard), heard[32:].hex() or "-")
"""


@pytest.mark.parametrize("parts", [OF_TORCH, OF_MPI], ids=["torch", "mpi4py"])
def test_stranger(job: Job, tmp_path: Path, parts: tuple[str, ...]) -> None:
    now = tmp_path / "now"
    program = script(tmp_path, *parts)
    words = ("--standalone", "--nproc-per-node=2", program)
    torchrun = job.start(*TORCHRUN, *words, NOW=str(now))
    try:
        meeting = _meeting(job)
        ours, others = _places(meeting), {place for pid in job.processes() for place in _places(pid)}
        assert len(ours) == 1
        said = subprocess.run(
            [*SECOND, sys.executable, "-I", "-c", STRANGER, *ours, *(others - ours)],
            capture_output=True,
            text=True,
            check=True,
            timeout=slowed(60),
            cwd="/",
        ).stdout
    finally:
        now.touch()
    heard = [line.split() for line in said.splitlines() if line.split()[0] in ours]
    assert len(heard) == 6
    for _, nbytes, more in heard:  # the nonce, and to a proof that is wrong zeros
        assert int(nbytes) in (32, 64), said
        assert set(more) <= {"-", "0"}, said
    tokens(job.ended([torchrun]), 2)


def _meeting(job: Job) -> int:
    """Return the process in which ranks meet, once it listens."""
    end = time.monotonic() + slowed(40)
    while time.monotonic() < end:
        for pid, words in job.processes().items():
            if "meeting.main" in words and _places(pid):
                return pid
        time.sleep(0.05)
    raise AssertionError(job.processes())


def _places(pid: int) -> set[str]:
    """Return the addresses at which a process listens: ports, and names of sockets of this host without a file."""
    inodes = set()
    with suppress(OSError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                inodes.add(os.readlink(path).removeprefix("socket:[").rstrip("]"))
    found = set()
    for name in ("tcp", "tcp6"):
        for row in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            words = row.split()
            if words[3] == "0A" and words[9] in inodes:
                found.add(str(int(words[1].rpartition(":")[2], 16)))
    for row in Path("/proc/net/unix").read_text().splitlines()[1:]:
        words = row.split()
        if (
            len(words) == 8
            and words[7].startswith("@hpcoll-")
            and words[6] in inodes
            and words[3] == "00010000"
        ):
            found.add(words[7])
    return found
