"""Step 5: the tests of tests/gpu, one part per file and way of GPU arrays, the most telling first, on 2 ranks before other numbers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from knobs import ROOT, Knobs
from parts import Parts

WAY = "GPU_TESTS_WAY"  # of tests/gpu/conftest.py: only tests of one way run; PICKED: the tests whose way hpcoll picks
PICKED, DIRECT = "picked", "direct"
_TELLING = "collectives"
_KERNELS = "kernels"  # the file that needs no ranks
_TORCH = "torch"  # not a file: what tests/torch_backend has for GPUs
_ASK = "import ctypes; from mpi4py import MPI; ask = getattr(ctypes.CDLL(MPI.__file__), 'MPIX_Query_cuda_support', None)"
_ANSWER, _YES = "print('CUDA-aware:', int(bool(ask and ask())))", "CUDA-aware: 1"


def run(parts: Parts) -> None:
    """Run all parts but those of ways that do not exist here."""
    knobs = parts.knobs
    if _KERNELS in knobs.files:
        kernels(parts)
    aware = DIRECT in knobs.ways and is_aware(parts)
    for nranks in knobs.nranks:
        for file, way in order(knobs):
            prefix = [] if way != DIRECT or aware else around_direct(knobs)
            if prefix is not None:
                cases(parts, f"{file}-{way}-{nranks}", nranks, [f"tests/gpu/test_gpu_{file}.py"], way, prefix)
        if _TORCH in knobs.files and nranks == knobs.nranks[0]:
            cases(
                parts,
                f"{_TORCH}-{nranks}",
                nranks,
                ["tests/torch_backend"],
                PICKED,
                [],
                options=["-m", "gpu", *knobs.test_options],
            )


def is_aware(parts: Parts) -> bool:
    """Say whether the MPI library takes GPU memory, as it says itself."""
    parts("cuda-aware", [*parts.knobs.ranks(1), "-c", f"{_ASK}; {_ANSWER}"], 20)
    return _YES in (parts.folder / "cuda-aware.txt").read_text(errors="replace").splitlines()


def order(knobs: Knobs) -> list[tuple[str, str]]:
    """Return files and ways, the most telling first.

    Collectives that are forced onto a route say whether it works at all; then what hpcoll picks, and the rest; last what MPI carries.
    """
    files = [one for one in knobs.files if one not in (_KERNELS, _TORCH)]
    pairs = [(file, way) for file in files for way in knobs.ways]

    def rank(pair: tuple[str, str]) -> tuple[bool, bool, bool, bool]:
        file, way = pair
        return way == DIRECT, file != _TELLING and way != PICKED, way == PICKED, file != _TELLING

    return sorted(pairs, key=rank)


def kernels(parts: Parts) -> None:
    """Test kernels against NumPy, in several processes of one rank each."""
    name, folder = "kernels", parts.folder / "kernels"
    folder.mkdir()
    processes = ["-n", str(min(12, len(os.sched_getaffinity(0))))] if parts.knobs.test_limit_s > 20 else []
    command = [
        parts.knobs.interpreter(),
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *processes,
        *parts.knobs.test_options,
    ]
    file = f"tests/gpu/test_gpu_{_KERNELS}.py"
    parts(
        name,
        [*command, file],
        parts.knobs.test_limit_s,
        environment={"TEST_TOKENS": str(folder)},
        nranks=0,
        cases=[file],
    )


def around_direct(knobs: Knobs) -> list[str] | None:
    """Return the start of a command under an MPI library that is made CUDA-aware, or None where that cannot be."""
    found = subprocess.run(
        [knobs.interpreter(), "-c", "import libucx"], capture_output=True, timeout=20, check=False
    )
    return [str(ROOT / "jobs" / "cuda_aware_mpi.sh")] if found.returncode == 0 else None


def cases(
    parts: Parts,
    name: str,
    nranks: int,
    chosen: list[str],
    way: str,
    prefix: list[str],
    more: dict[str, str] | None = None,
    options: list[str] | None = None,
    folder: Path | None = None,
) -> str:
    """Run tests on some ranks, by one way, and return the part's status."""
    folder = folder or parts.folder / name
    folder.mkdir(parents=True, exist_ok=True)
    limit = min(parts.knobs.test_limit_s, parts.remaining_s())
    python, program = parts.knobs.interpreter(), str(ROOT / "tests" / "mpi_run.py")
    command = [
        *prefix,
        python,
        program,
        str(nranks),
        *chosen,
        *(parts.knobs.test_options if options is None else options),
    ]
    environment = {
        "TEST_TOKENS": str(folder),
        WAY: way,
        "MPI_LIMIT_S": str(max(1, int(limit + 10))),
        "PYTHON": python,
    } | (more or {})
    facts = {"nranks": nranks, "way": way, "cases": chosen, "prefix": prefix}
    return parts(name, command, parts.knobs.test_limit_s, environment=environment, **facts).status
