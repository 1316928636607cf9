"""``jobs/copy_limits.c``: what plain C reaches compiles without a warning, and its sums are right."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "jobs" / "copy_limits.c"


@pytest.mark.skipif(shutil.which("gcc") is None or platform.machine() != "x86_64", reason="needs gcc on x86-64")
def test_copy_limits(tmp_path: Path) -> None:
    program = tmp_path / "copy_limits"
    subprocess.run(["gcc", "-O3", "-Wall", "-Wextra", "-Werror", "-o", program, SOURCE], check=True)
    done = subprocess.run([program, "128"], capture_output=True, text=True, timeout=60, check=False)
    if "Operation not permitted" in done.stderr:
        pytest.skip("this system lets no process read another one's memory")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split(";")[0].split() for line in done.stdout.splitlines()] == [[str(1 << k), "KiB"] for k in range(6, 8)]
    assert all(line.count("; ") == 6 for line in done.stdout.splitlines())
