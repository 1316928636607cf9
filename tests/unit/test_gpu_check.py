"""``jobs/gpu_check.sh``: the environment that it makes over another finds what that one has, CUDA's libraries and compiler too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_PROGRAM = """
from cuda.pathfinder import load_nvidia_dynamic_lib
print(*(load_nvidia_dynamic_lib(name).found_via for name in ("nvrtc", "nvJitLink", "nvvm")))
from numpy import dtype
from hpcoll.base.ops import SUM
from hpcoll.kernels import device
print(b".entry" in device.fold(SUM, dtype("f4"), (9, 0)).ptx)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("over") / "venv"
    subprocess.run([sys.executable, ROOT / "jobs" / "environment_over.py", folder], check=True)
    return folder / "bin" / "python"


def answer(python: Path, program: str, tmp_path: Path) -> list[str]:
    """What a program prints that has neither this process's folder nor kernels that were kept."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "CUDA_HOME": ""}
    run = subprocess.run([python, "-c", program], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


def test_cuda_libraries_of_the_outer_environment_are_found_and_compile(python: Path, tmp_path: Path) -> None:
    pytest.importorskip("cuda.pathfinder")
    assert answer(python, _PROGRAM, tmp_path) == ["site-packages"] * 3 + ["True"]


def test_what_is_installed_in_it_comes_first(python: Path, tmp_path: Path) -> None:
    (packages,) = python.parents[1].glob("lib/python3*/site-packages")
    (packages / "numpy.py").write_text("where = 'inner'\n")
    try:
        assert answer(python, "import numpy; print(numpy.where)", tmp_path) == ["inner"]
    finally:
        (packages / "numpy.py").unlink()
