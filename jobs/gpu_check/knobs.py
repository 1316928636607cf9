"""The knobs of the check, from environment variables, and the places that follow from them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent


def _text(name: str, default: str) -> str:
    """Return a variable, also one that is set and empty, or the default."""
    return os.environ.get(name, default)


def _words(name: str, default: str) -> tuple[str, ...]:
    return tuple(shlex.split(_text(name, default)))


def _numbers(name: str, default: str) -> tuple[int, ...]:
    return tuple(map(int, _words(name, default)))


def _scratch(name: str) -> str:
    """Return a folder of the checkout, where later calls find it; one in the folder for temporary files could be another user's."""
    return str(ROOT / "build" / "gpu_check" / name)


@dataclass(frozen=True)
class Knobs:
    """The knobs that jobs/gpu_check.sh documents, in its order."""

    python: str = field(default_factory=lambda: _text("PYTHON", "") or sys.executable)
    cuda: str = field(default_factory=lambda: _text("CUDA", "13"))
    wheels: str = field(default_factory=lambda: _text("WHEELS", ""))
    packages: tuple[str, ...] = field(default_factory=lambda: _words("PACKAGES", "all"))
    out: Path = field(default_factory=lambda: Path(_text("OUT", "") or "jobs/results").absolute())
    venv: Path = field(default_factory=lambda: Path(_text("VENV", "") or _scratch("venv")).absolute())
    work: Path = field(default_factory=lambda: Path(_text("WORK", "") or _scratch("work")).absolute())
    probes: tuple[str, ...] = field(default_factory=lambda: _words("PROBES", "all"))
    copy_sizes: str = field(default_factory=lambda: _text("COPY_SIZES", "4K 64K 1M 16M 256M"))
    small: tuple[str, ...] = field(default_factory=lambda: _words("SMALL", "64K 64M"))
    nranks: tuple[int, ...] = field(default_factory=lambda: _numbers("NRANKS", "2 4 1 8"))
    files: tuple[str, ...] = field(
        default_factory=lambda: _words("FILES", "kernels collectives memory streams torch")
    )
    ways: tuple[str, ...] = field(default_factory=lambda: _words("WAYS", "ipc staged host picked direct"))
    test_options: tuple[str, ...] = field(
        default_factory=lambda: _words("TEST_OPTIONS", "--maxfail=3 --timeout=50")
    )
    failures: int = field(default_factory=lambda: int(_text("FAILURES", "3")))
    bench_nranks: tuple[int, ...] = field(default_factory=lambda: _numbers("BENCH_NRANKS", "2 4"))
    collectives: tuple[str, ...] = field(
        default_factory=lambda: _words("COLLECTIVES", "bcast allgather reduce_scatter alltoall")
    )
    largest: str = field(default_factory=lambda: _text("LARGEST", "256M"))
    bench_options: tuple[str, ...] = field(default_factory=lambda: _words("BENCH_OPTIONS", ""))
    probe_limit_s: float = field(default_factory=lambda: float(_text("PROBE_LIMIT_S", "20")))
    test_limit_s: float = field(default_factory=lambda: float(_text("TEST_LIMIT_S", "60")))
    bench_limit_s: float = field(default_factory=lambda: float(_text("BENCH_LIMIT_S", "45")))
    limit_s: float = field(default_factory=lambda: float(_text("LIMIT_S", "530")))
    limits: dict[int, float] = field(
        default_factory=lambda: {int(n): float(s) for n, s in (w.split("=") for w in _words("LIMITS", ""))}
    )

    def interpreter(self) -> str:
        """Return the environment's Python, where there is an environment that works; else the one it would be made over."""
        mine = self.venv / "bin" / "python"
        return str(mine) if mine.exists() else self.python

    def program(self, name: str) -> str:
        """Return the path of a program of the environment, of the Python it lies over, of the CUDA toolkit, or of the system."""
        home = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
        outer = Path(self.python).parent if "/" in self.python else Path("/nowhere")
        for folder in (self.venv / "bin", outer):
            if (folder / name).exists():
                return str(folder / name)
        return shutil.which(name) or next((str(p) for p in Path(home, "bin").glob(name)), name)

    def has(self, name: str) -> bool:
        """Say whether such a program is there."""
        return shutil.which(self.program(name)) is not None

    def ranks(self, nranks: int) -> list[str]:
        """Return the start of a command that runs a Python program on some ranks."""
        return [self.program("mpirun"), "-n", str(nranks), self.interpreter()]

    def as_json(self) -> str:
        """Return all knobs, for the archive."""
        return json.dumps(self.__dict__, indent=1, default=str)


def run_variables(knobs: Knobs) -> dict[str, str]:
    """Return variables for programs of this check: more ranks than cores may run, as root too, by the mpirun that was found."""
    given = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_mpi_yield_when_idle": "1"}
    if os.geteuid() == 0:
        given |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if Path("/usr/local/cuda").is_dir():
        given["CUDA_HOME"] = "/usr/local/cuda"
    given = {name: value for name, value in given.items() if name not in os.environ}
    mpi = Path(knobs.program("mpirun")).parent
    if mpi.is_absolute() and str(mpi) not in os.environ.get("PATH", "").split(":"):
        given["PATH"] = f"{mpi}:{os.environ.get('PATH', '')}"
        # mpi4py looks only in its own environment
        if mpi.parent != knobs.venv and any(mpi.parent.glob("lib/libmpi.so*")):
            given["LD_LIBRARY_PATH"] = ":".join(
                filter(None, [str(mpi.parent / "lib"), os.environ.get("LD_LIBRARY_PATH")])
            )
    return given
