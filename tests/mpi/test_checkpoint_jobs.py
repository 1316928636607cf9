"""Files of jobs that end in the middle of a write, and of disks that are full: the earlier checkpoint is whole."""

import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from launching import LIMIT_S, STARTS_JOBS, command, environment, finished
from mpi_run import OPEN_MPI_ROOT

pytestmark = STARTS_JOBS

COUNT = 1 << 22
AGAIN_AND_AGAIN = f"""
say("pid", os.getpid())
shared = hpcoll.Distribution(({COUNT},), comm.size, split=0, block=1000)
for step in range(1_000_000):
    hpcoll.save("x.npy", np.full(shared.local_shape(comm.rank), float(step)), shared, comm)
"""


def test_killed_in_the_middle_of_a_write(tmp_path: Path) -> None:
    """What is there is one whole array; what the killed job has left does not disturb the next one."""
    for _ in range(3):
        said = tmp_path / "said"
        said.write_text("")
        path, part = tmp_path / "x.npy", tmp_path / "x.npy.part"
        before = path.stat().st_mtime_ns if path.exists() else 0
        job = subprocess.Popen(
            command(2, AGAIN_AND_AGAIN),
            cwd=tmp_path,
            env=environment({"SAID": str(said)}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        limit = time.monotonic() + LIMIT_S
        while time.monotonic() < limit:  # until the job has replaced the file, and writes the next one
            if path.exists() and path.stat().st_mtime_ns > before and part.exists() and part.stat().st_size:
                break
        for line in said.read_text().splitlines():
            os.kill(int(line.split()[-1]), signal.SIGKILL)
        job.wait(LIMIT_S)
        found = np.load(path)
        assert part.exists(), "killed before a write or after one"
        assert found.shape == (COUNT,)
        assert (found == found[0]).all()


FULL = """
from pathlib import Path
folder = Path("small")
def save(n, value):
    shared = hpcoll.Distribution((n,), comm.size, split=0)
    hpcoll.save(folder / "x.npy", np.full(shared.local_shape(comm.rank), value), shared, comm)
def load(n):
    return hpcoll.load(folder / "x.npy", hpcoll.Distribution((n,), comm.size, split=0), comm).sum()
save(1000, 1.0)
try:
    save(1 << 20, 2.0)
except hpcoll.FileError as error:
    say("refused", error)
say("sum", load(1000), os.listdir(folder))
save(2000, 3.0)
say("sum", load(2000))
"""
ISOLATED = ["unshare", "--mount" if os.geteuid() == 0 else "-rm"]


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks raise one error; the earlier file is as it was, and the next save finds room."""
    (tmp_path / "small").mkdir()
    monkeypatch.chdir(tmp_path)
    mount = "mount -t tmpfs -o size=4m tmpfs small"
    if subprocess.run([*ISOLATED, "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("needs a mount namespace")
    done = finished([*ISOLATED, "sh", "-c", f'{mount} && exec "$@"', "sh", *command(2, FULL)], OPEN_MPI_ROOT)
    lines = done.stdout.splitlines()
    refused = {line.split(" refused ")[1] for line in lines if " refused " in line}
    (error,) = refused
    assert error.startswith("rank ")
    assert ": save needs a path to write to, got " in error
    assert sum("sum 500.0 ['x.npy']" in line for line in lines) == 2, lines
    assert sum("sum 3000.0" in line for line in lines) == 2, lines
    assert done.returncode == 0
