"""All checks that a change must pass; on two idle cores in some twenty minutes, the making of the environments included.

  tests/run.sh                         the short run: every case somewhere, representative ones for other numbers of ranks
  tests/run.sh full                    everything: all cases on 1 to 5 ranks with both MPI libraries, and proofs up to 64 ranks
  tests/run.sh lint                    ruff, mypy, the words of docstrings and pages, shellcheck where it is installed
  tests/run.sh docs                    the site, from docs/ into build/site; a warning is an error
  tests/run.sh unit                    all tests that need no MPI
  tests/run.sh cluster                 the tests that emulate several hosts and Slurm, where the machine allows that
  tests/run.sh mpi [NRANKS] [LIBRARY]  all tests under mpiexec; LIBRARY is openmpi or mpich
  tests/run.sh clients [NRANKS] [LIBRARY] [CLIENT ...]
                                       tests of other people's packages, with hpcoll in the place of MPI.COMM_WORLD and without (25 minutes)
  tests/run.sh torch [NRANKS]          the backend of torch.distributed, by our tests and by torch's own (5 GB from the index)
  tests/run.sh platforms [WORD ...]    other releases of Python, packages and MPI libraries: those of tests/platforms.py with all words
  tests/run.sh mutations               whether the short run notices a runtime that was broken on purpose (20 minutes)
  tests/run.sh lock [UV ARGUMENTS]     makes the lock files in requirements/ anew, see tests/lock.py

All other arguments go to pytest: tests/run.sh mpi 3 openmpi -x -k ring
"""

import os
import re
import shutil
import sys
from pathlib import Path

import environments
import stages
from clients import sources
from clients.table import CLIENTS
from environments import ROOT
from stages import Stage

LIBRARIES = ("openmpi", "mpich")
TORCH = environments.TORCH
NRANKS = (1, 2, 3, 4, 5)
LOGS = ROOT / "build" / "tests"
PARTS = ("lint", "docs", "unit", "cluster", "mpi", "clients", "torch", "platforms")

# Folder, ranks, and whether the short run has it. Some of torch's own cases need four ranks.
TORCH_RUNS = (
    ("tests/torch_backend", 2, True),
    ("tests/torch_backend", 4, False),
    ("tests/torch_suite", 4, True),
)

# The short run of tests/mpi: library, ranks, pytest's choice of markers (README.md here), and what that leaves, where a stage is cut in
# two: communicators that tests leave behind map memory, of which HPCOLL_SHM allows half of the machine's.
SMOKE = "smoke and not full"
JOBS = (
    "tests/mpi/test_peer_failures.py",
    "tests/mpi/test_early_exit.py",
)  # of ranks that end: launchers differ in what they do then
SHORT = (
    ("openmpi", 2, "not full and not once", ""),
    ("openmpi", 2, "not full and once", ", once"),
    ("openmpi", 4, "not full and not once and not twice", ""),
    ("mpich", 3, "not full and not once and not double", ""),
    ("openmpi", 1, SMOKE, ""),
    ("openmpi", 5, SMOKE, ""),
)

# Seconds of each stage of the short run on two idle cores. The run says which took more: make their tests cheaper (README.md here). Those
# from tests/unit on run one after another; the others run beside them.
BUDGETS = {
    "warm-up, openmpi": 60,
    "warm-up, mpich": 60,
    "ruff": 15,
    "first words of docstrings, sentences of pages": 10,
    "mypy of hpcoll, jobs, examples": 120,
    "shellcheck": 10,
    "the site": 60,
    "environment of torch": 150,
    "tests/cluster, openmpi": 240,
    "tests/cluster, mpich": 60,
    "tests/mpi on 1 rank, mpich": 80,
    "tests/mpi on 1 rank, openmpi": 380,
    "tests/unit": 460,
    "tests/mpi on 2 ranks, openmpi": 130,
    "tests/mpi on 2 ranks, openmpi, once": 150,
    "tests/mpi on 4 ranks, openmpi": 100,
    "tests/mpi on 3 ranks, mpich": 120,
    "tests/mpi on 5 ranks, openmpi": 25,
    "tests/torch_backend on 2 ranks": 30,
    "tests/torch_suite on 4 ranks": 50,
}


def python(library: str) -> str:
    return str(environments.folder(library) / "bin" / "python")


def lint(library: str) -> list[Stage]:
    """Return the checks of the text."""
    bin = environments.folder(library) / "bin"
    found = [
        Stage("ruff", (str(bin / "ruff"), "check", "."), cores=0),
        Stage(
            "first words of docstrings, sentences of pages",
            (str(bin / "python"), "tests/wording.py"),
            cores=0,
        ),
        Stage("mypy of hpcoll, jobs, examples", (str(bin / "mypy"), "hpcoll", "jobs", "examples"), cores=0),
    ]
    if shutil.which("shellcheck"):
        scripts = [
            *ROOT.glob("tests/**/*.sh"),
            *ROOT.glob("jobs/*.sh"),
            *ROOT.glob("jobs/*.sbatch"),
            ROOT / ".ci" / "run",
        ]
        found.append(Stage("shellcheck", ("shellcheck", *map(str, scripts)), cores=0))
    return found


def docs(library: str) -> Stage:
    """The site; nothing is fetched to make it, nor to read it (docs_site.py)."""
    mkdocs = str(environments.folder(library) / "bin" / "mkdocs")
    return Stage("the site", ("env", "NO_MKDOCS_2_WARNING=1", mkdocs, "build", "--strict"), cores=0)


def unit(library: str, arguments: tuple[str, ...]) -> Stage:
    cores = os.cpu_count() or 1
    command = (
        python(library),
        "-m",
        "pytest",
        "-q",
        "-n",
        str(cores),
        "--dist",
        "worksteal",
        "tests/unit",
        *arguments,
    )
    return Stage("tests/unit", command, nranks=1, cores=cores)


def cluster(library: str, arguments: tuple[str, ...], where: str = "") -> Stage:
    """Emulated hosts; with the first library Slurm too, which starts jobs of both."""
    pattern = where or ("test_*.py" if library == LIBRARIES[0] else "test_hosts*.py")
    files = sorted(str(file.relative_to(ROOT)) for file in ROOT.glob(f"tests/cluster/{pattern}"))
    return Stage(
        f"tests/cluster, {library}",
        (python(library), "-m", "pytest", "-q", *files, *arguments),
        nranks=1,
        cores=0,
    )


def files(markers: str) -> tuple[str, ...]:
    """Return where tests with these markers are: to import all others takes longer than the few that are wanted."""
    if markers != SMOKE:
        return ("tests/mpi",)
    found = [
        file
        for file in ROOT.glob("tests/mpi/test_*.py")
        if re.search("mark.smoke|STARTS_JOBS", file.read_text())
    ]
    return tuple(sorted(str(file.relative_to(ROOT)) for file in found))


def mpi(
    library: str,
    nranks: int,
    arguments: tuple[str, ...],
    where: tuple[str, ...] = ("tests/mpi",),
    part: str = "",
) -> Stage:
    title = f"tests/mpi on {nranks} rank{'s' if nranks > 1 else ''}, {library}{part}"
    return Stage(
        title, (python(library), "tests/mpi_run.py", str(nranks), *where, *arguments), nranks, cores=nranks
    )


def torch(nranks: int, folder: str, arguments: tuple[str, ...]) -> Stage:
    title = f"{folder} on {nranks} rank{'s' if nranks > 1 else ''}"
    return Stage(
        title,
        (python(TORCH), "tests/mpi_run.py", str(nranks), folder, "-m", "not gpu", *arguments),
        nranks,
        cores=nranks,
    )


def warm_up(library: str) -> Stage:
    """Compile what every job needs, once, before jobs whose ranks would all wait for it."""
    return Stage(f"warm-up, {library}", (python(library), "-m", "hpcoll", "warmup"), cores=0)


def environment_of_torch() -> Stage:
    """Five gigabytes, which are fetched and unpacked while other tests run."""
    return Stage(
        "environment of torch", (sys.executable, "tests/environments.py", LIBRARIES[0], TORCH), cores=0
    )


def clients(library: str, nranks: int, name: str, arguments: tuple[str, ...]) -> Stage:
    title = f"{name} on {nranks} rank{'s' if nranks > 1 else ''}, {library}"
    command = (python(library), "tests/client_run.py", str(nranks), name, *arguments)
    return Stage(title, command, nranks=1, cores=nranks, told=True)


def platforms(library: str, words: tuple[str, ...]) -> Stage:
    """Other releases, one platform after the other, in environments that the stage makes; its output ends with the table for docs."""
    return Stage("platforms", (python(library), "tests/platforms.py", *words), nranks=1, cores=2, told=True)


def short(arguments: tuple[str, ...]) -> list[Stage]:
    """Return what a change must pass."""
    base = LIBRARIES[0]
    parts = [one for one in SHORT if one[1] > 1]
    mpi_stages = [
        mpi(library, nranks, ("-m", markers, *arguments), files(markers), part)
        for library, nranks, markers, part in parts
    ]
    fast = ("-m", "not full", *arguments)
    once = ("-m", "not full and not once", *arguments)
    emulated = [cluster(base, fast), *(cluster(one, once, "test_hosts_trouble.py") for one in LIBRARIES[1:])]
    jobs = [
        mpi(base, 1, ("-m", SMOKE, *arguments), files(SMOKE)),
        *(mpi(one, 1, once, JOBS) for one in LIBRARIES[1:]),
    ]
    jobs = [one._replace(cores=0) for one in jobs]  # of their own, which mostly wait
    compiled = [warm_up(one) for one in LIBRARIES]
    emulated, jobs = (
        [one._replace(after=first.title) for one, first in zip(group, compiled, strict=True)]
        for group in (emulated, jobs)
    )
    packages = environment_of_torch()
    backend = [
        torch(n, folder, arguments)._replace(after=packages.title)
        for folder, n, always in TORCH_RUNS
        if always
    ]
    stages = [
        *compiled,
        *lint(base),
        docs(base),
        packages,
        *emulated,
        *jobs,
        unit(base, fast),
        *mpi_stages,
        *backend,
    ]
    return [one._replace(budget=BUDGETS[one.title]) for one in stages]


def chosen(
    parts: list[str],
    nranks: tuple[int, ...],
    libraries: tuple[str, ...],
    names: list[str],
    arguments: tuple[str, ...],
) -> list[Stage]:
    """Everything of some parts, and of some clients."""
    every = [
        (library, n, name)
        for library in libraries
        for name in names
        for n in CLIENTS[name].runs
        if n in nranks
    ]
    its_own = [(library, n, name) for library, n, name in every if (library, n) not in CLIENTS[name].exhausts]
    found = []
    for part in parts:
        found += {
            "lint": lambda: lint(libraries[0]),
            "docs": lambda: [docs(libraries[0])],
            "unit": lambda: [unit(libraries[0], arguments)],
            "cluster": lambda: [cluster(library, arguments) for library in libraries],
            "mpi": lambda: [mpi(library, n, arguments) for library in libraries for n in nranks],
            "clients": lambda: [clients(*one, arguments) for one in its_own],
            "platforms": lambda: [platforms(libraries[0], arguments)],
            "torch": lambda: [torch(n, folder, arguments) for folder, n, _ in TORCH_RUNS if n in nranks],
        }[part]()
    return found


def main(words: list[str]) -> int:
    """Read the command line, make the environments, run the stages."""
    if words and words[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    parts, names = list[str](), list[str]()
    nranks: tuple[int, ...] = NRANKS
    libraries: tuple[str, ...] = LIBRARIES
    while words:
        if words[0] in PARTS:
            parts.append(words[0])
        elif words[0] in CLIENTS:
            names.append(words[0])
        elif words[0] == "full":
            parts = list(PARTS)
        elif words[0] in LIBRARIES:
            libraries = (words[0],)
        elif words[0].isdecimal():
            nranks = (int(words[0]),)
        else:
            break
        words = words[1:]
    arguments = tuple(words)
    needed = LIBRARIES if not parts or {"mpi", "cluster", "clients"} & set(parts) else LIBRARIES[:1]
    needed += (TORCH,) * ("torch" in parts)
    problem = stages.prepare("environments", lambda: environments.make(needed))
    names = names or list(CLIENTS)
    if not problem and "clients" in parts:
        problem = stages.prepare("clients", lambda: sources.make(names, python(LIBRARIES[0])))
    if problem:
        print(f"{problem}\n0 passed, 1 failed")
        return 1
    return stages.run(chosen(parts, nranks, libraries, names, arguments) if parts else short(arguments), LOGS)


if __name__ == "__main__":
    if sys.argv[1:2] in (["mutations"], ["lock"]):
        os.execv(
            sys.executable,
            [sys.executable, str(Path(__file__).with_name(f"{sys.argv[1]}.py")), *sys.argv[2:]],
        )
    sys.exit(main(sys.argv[1:]))
