"""All checks of a change, in three runs of which each has more than the one before.

  tests/run.sh                         the short run, with the making of its environments (tests/README.md says how long)
  tests/run.sh ci                      what must pass before a change goes in: every case somewhere, PyTorch's too (5 GB from the index)
  tests/run.sh full                    everything: all cases on 1 to 5 ranks with both MPI libraries, and proofs up to 64 ranks
  tests/run.sh lint                    ruff, mypy, the words of docstrings and pages, shellcheck where it is installed
  tests/run.sh docs                    the site, from docs/ into build/site; a warning is an error
  tests/run.sh unit                    all tests that need no MPI
  tests/run.sh cluster                 the tests that emulate several hosts and Slurm, where the machine allows that
  tests/run.sh mpi [NRANKS] [LIBRARY]  all tests under mpiexec; LIBRARY is openmpi or mpich
  tests/run.sh launch [LIBRARY]        ranks that no launcher of MPI starts
  tests/run.sh clients [NRANKS] [LIBRARY] [CLIENT ...]
                                       tests of other people's packages, with hpcoll in the place of MPI.COMM_WORLD and without (25 minutes)
  tests/run.sh torch [NRANKS]          the backend of torch.distributed, by our tests and by torch's own (5 GB from the index)
  tests/run.sh platforms [WORD ...]    other releases of Python, packages and MPI libraries: those of tests/platforms.py with all words
  tests/run.sh platforms aarch64       an emulated ARM processor, as root, with debootstrap and qemu-user-static (15 minutes)
  tests/run.sh gpu [FOLDER]            the tests for GPUs and benchmarks, on a machine that has a GPU (9 minutes): tests/gpu_check.py
  tests/run.sh mutations               whether the short run notices a runtime that was broken on purpose (20 minutes)
  tests/run.sh lock [UV ARGUMENTS]     makes the lock files in requirements/ anew, see tests/lock.py

All other arguments go to pytest: tests/run.sh mpi 3 openmpi -x -k ring
"""

import os
import re
import shutil
import sys
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import environments
import stages
from clients import sources
from clients.table import CLIENTS
from environments import ROOT
from stages import Stage

LIBRARIES = ("openmpi", "mpich")
TORCH, TORCH_MPICH = environments.TORCH, environments.TORCH_MPICH
NRANKS = (1, 2, 3, 4, 5)
LOGS = ROOT / "build" / "tests"
PARTS = ("lint", "docs", "unit", "cluster", "launch", "mpi", "clients", "torch", "platforms")

# Folder, ranks, and whether `.ci/run` has it. Some of torch's own cases need four ranks.
TORCH_RUNS = (
    ("tests/torch_backend", 2, True),
    ("tests/torch_backend", 4, False),
    ("tests/torch_suite", 4, True),
)

# What the short run and `.ci/run` take of the markers (README.md here).
SHORT, CI = "not full and not ci", "not full"

# Files of a folder that the short run leaves to `.ci/run`: of what tests stand on, of played drivers and machines, of what others wrote, of
# commands that take seconds, of jobs and hosts beyond a choice.
LATER = {
    "unit": "bench_plot budget children cuda_double* digits docs_commands doctor* exact_kernels fuzz gpu_check "
    "kernels_device msccl_bad_input mscclpp_json one_shot_* predict reference_* ring_model second_user synthesize "
    "verify_mutations",
    "mpi": "bench* buffer_specs_gpu checkpoint_jobs children doctor early_exit endurance fallbacks file_programs gpu_[!c]* in_flight_* "
    "inspect_live interrupted* jobs local_failures many_ranks messages_gpu* metrics own_algorithms_jobs parallel_patterns "
    "parameter_server_errors pending_starts revoked settings_jobs shm_full shm_jobs soak stopped_run summary_interrupted "
    "symmetric_refused timeouts trace tune*",
    "cluster": "hosts hosts_bundles hosts_clocks hosts_grids slurm",
}


class Ranks(NamedTuple):
    """A part of a run of tests/mpi.

    Attributes:
        markers: What it takes of what the run takes.
        names: Of the only files that it has, where there are some.
        part: How its title ends. A stage is cut in two, since communicators that tests leave behind map memory, of which HPCOLL_SHM allows
            half of the machine's.
    """

    library: str
    nranks: int
    markers: str
    names: tuple[str, ...] = ()
    part: str = ""


SMOKE = " and smoke"
# On four ranks there are two nodes of two, on three the other library, and no power of two.
ON_FOUR = ("collectives", "hierarchical", "symmetric", "team_cache")
ON_THREE = (
    "collectives",
    "nonblocking",
    "persistent",
    "derived_types",
    "same_bits",
    "team_free",
)
MPI = {
    SHORT: (
        Ranks("openmpi", 2, ""),
        Ranks("openmpi", 4, " and not once and not twice", ON_FOUR),
        Ranks("mpich", 3, " and not once", ON_THREE),
        Ranks("openmpi", 1, SMOKE),
    ),
    CI: (
        Ranks("openmpi", 2, " and not once"),
        Ranks("openmpi", 2, " and once", part=", once"),
        Ranks("openmpi", 4, " and not once and not twice"),
        Ranks("mpich", 3, " and not once and not double"),
        Ranks("openmpi", 1, SMOKE),
        Ranks("openmpi", 5, SMOKE),
    ),
}
ENDS = ("peer_failures", "early_exit")  # of ranks: launchers differ in what they do then

# Seconds of each stage on two idle cores, in the short run and in `.ci/run`; 0 where a run has no such stage. The run says which took more:
# make their tests cheaper (README.md here). Those from tests/unit on run one after another; the others run beside them.
BUDGETS = {
    "warm-up": (60, 60),
    "ruff": (15, 15),
    "first words of docstrings, sentences of pages": (10, 10),
    "mypy of hpcoll, jobs, examples": (90, 120),
    "shellcheck": (10, 10),
    "the site": (60, 60),
    "environment of torch": (0, 150),
    "tests/cluster, openmpi": (60, 240),
    "tests/cluster, mpich": (0, 60),
    "tests/mpi on 1 rank, mpich": (0, 80),
    "tests/mpi on 1 rank, openmpi": (150, 400),
    "tests/launch, mpich": (90, 120),
    "tests/launch, openmpi": (0, 60),
    "tests/unit": (190, 460),
    "tests/mpi on 2 ranks, openmpi": (110, 130),
    "tests/mpi on 2 ranks, openmpi, once": (0, 150),
    "tests/mpi on 4 ranks, openmpi": (35, 100),
    "tests/mpi on 3 ranks, mpich": (35, 120),
    "tests/mpi on 5 ranks, openmpi": (0, 25),
    "tests/torch_backend on 2 ranks": (0, 30),
    "tests/torch_suite on 4 ranks": (0, 50),
    "tests/launch_torch": (0, 180),
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


def files(folder: str, level: str, names: Iterable[str] = ("*",), markers: str = "") -> tuple[str, ...]:
    """Return the files of a run in tests/FOLDER: to import all others takes longer than the few that are wanted."""
    left = LATER[folder].split() if level == SHORT else ()
    found = sorted(file for name in names for file in ROOT.glob(f"tests/{folder}/test_{name}.py"))
    if markers == SMOKE:
        found = [file for file in found if re.search("mark.smoke|STARTS_JOBS", file.read_text())]
    found = [file for file in found if not any(fnmatch(file.stem, f"test_{one}") for one in left)]
    return tuple(str(file.relative_to(ROOT)) for file in found)


def unit(library: str, arguments: tuple[str, ...], where: tuple[str, ...] = ("tests/unit",)) -> Stage:
    command = (python(library), "-m", "pytest", "-q", *workers(), *where, *arguments)
    return Stage("tests/unit", command, nranks=1, cores=os.cpu_count() or 1)


def workers() -> tuple[str, ...]:
    """Return the options by which cases run on all cores."""
    return ("-n", str(os.cpu_count() or 1), "--dist", "worksteal")


def cluster(library: str, arguments: tuple[str, ...], level: str = CI, name: str = "") -> Stage:
    """Emulated hosts; with the first library Slurm too, which starts jobs of both."""
    where = files("cluster", level, [name or ("*" if library == LIBRARIES[0] else "hosts*")])
    command = (python(library), "-m", "pytest", "-q", *where, *arguments)
    return Stage(f"tests/cluster, {library}", command, nranks=1, cores=0)


def launch(library: str, arguments: tuple[str, ...]) -> Stage:
    """Ranks that are started as plain processes."""
    command = (python(library), "-m", "pytest", "-q", *workers(), "tests/launch", *arguments)
    return Stage(f"tests/launch, {library}", command, nranks=1, cores=os.cpu_count() or 1)


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


def launch_torch(arguments: tuple[str, ...]) -> Stage:
    """Ranks that torchrun and the like start, with MPICH; alone on the machine, since it looks at what is left in shared memory."""
    command = (python(TORCH_MPICH), "-m", "pytest", "-q", "tests/launch_torch", "-m", "not full", *arguments)
    return Stage("tests/launch_torch", command, nranks=1, cores=os.cpu_count() or 1)


def warm_up(library: str) -> Stage:
    """Compile what every job needs, with whatever library, once, before jobs whose ranks would all wait for it."""
    return Stage("warm-up", (python(library), "-m", "hpcoll", "warmup"), cores=0)


def environment_of_torch() -> Stage:
    """Five gigabytes, which are fetched and unpacked while other tests run."""
    return Stage(
        "environment of torch",
        (sys.executable, "tests/environments.py", LIBRARIES[0], TORCH, TORCH_MPICH),
        cores=0,
    )


def clients(library: str, nranks: int, name: str, arguments: tuple[str, ...]) -> Stage:
    title = f"{name} on {nranks} rank{'s' if nranks > 1 else ''}, {library}"
    command = (python(library), "tests/client_run.py", str(nranks), name, *arguments)
    return Stage(title, command, nranks=1, cores=nranks, told=True)


def platforms(library: str, words: tuple[str, ...]) -> Stage:
    """Other releases, one platform after the other, in environments that the stage makes; its output ends with the table for docs."""
    return Stage("platforms", (python(library), "tests/platforms.py", *words), nranks=1, cores=2, told=True)


def change(level: str, arguments: tuple[str, ...]) -> list[Stage]:
    """Return the stages of the short run, or of what a change must pass: that has both libraries everywhere, and PyTorch."""
    base, compiled, packages = LIBRARIES[0], warm_up(LIBRARIES[0]), environment_of_torch()
    wanted, once = ("-m", level, *arguments), ("-m", f"{level} and not once", *arguments)
    parts = [mpi_part(level, one, arguments) for one in MPI[level]]
    beside = [
        cluster(base, wanted, level),
        *(one for one in parts if one.nranks == 1),
    ]
    last: list[Stage] = []
    if level == CI:
        for library in LIBRARIES[1:]:
            beside.append(cluster(library, once, level, "hosts_[lt]*"))
            beside.append(mpi(library, 1, once, files("mpi", level, ENDS)))
        backend = [torch(n, folder, arguments) for folder, n, always in TORCH_RUNS if always]
        last = [one._replace(after=packages.title) for one in (*backend, launch_torch(()))]
    stages = [
        compiled,
        *lint(base),
        docs(base),
        *[packages][: len(last)],
        *(one._replace(cores=0, after=compiled.title) for one in beside),  # of their own, which mostly wait
        unit(base, wanted, files("unit", level)),
        *(launch(library, wanted) for library in LIBRARIES[1:] + LIBRARIES[:1] * (level == CI)),
        *(one for one in parts if one.nranks > 1),
        *last,
    ]
    return [one._replace(budget=BUDGETS[one.title][level == CI]) for one in stages]


def mpi_part(level: str, part: Ranks, arguments: tuple[str, ...]) -> Stage:
    """Return the stage of a part."""
    where = files("mpi", level, part.names or ("*",), part.markers)
    return mpi(part.library, part.nranks, ("-m", level + part.markers, *arguments), where, part.part)


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
            "launch": lambda: [launch(library, arguments) for library in libraries],
            "mpi": lambda: [mpi(library, n, arguments) for library in libraries for n in nranks],
            "clients": lambda: [clients(*one, arguments) for one in its_own],
            "platforms": lambda: [platforms(libraries[0], arguments)],
            "torch": lambda: [
                *(torch(n, folder, arguments) for folder, n, _ in TORCH_RUNS if n in nranks),
                launch_torch(arguments),
            ],
        }[part]()
    return found


def main(words: list[str]) -> int:
    """Read the command line, make the environments, run the stages."""
    if words and words[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    parts, names, level = list[str](), list[str](), SHORT
    nranks: tuple[int, ...] = NRANKS
    libraries: tuple[str, ...] = LIBRARIES
    while words:
        if words[0] in PARTS:
            parts.append(words[0])
        elif words[0] in CLIENTS:
            names.append(words[0])
        elif words[0] == "full":
            parts = list(PARTS)
        elif words[0] == "ci":
            level = CI
        elif words[0] in LIBRARIES:
            libraries = (words[0],)
        elif words[0].isdecimal():
            nranks = (int(words[0]),)
        else:
            break
        words = words[1:]
    arguments = tuple(words)
    needed = LIBRARIES if not parts or {"mpi", "cluster", "clients", "launch"} & set(parts) else LIBRARIES[:1]
    needed += (TORCH, TORCH_MPICH) * ("torch" in parts)
    problem = stages.prepare("environments", lambda: environments.make(needed))
    names = names or list(CLIENTS)
    if not problem and "clients" in parts:
        problem = stages.prepare("clients", lambda: sources.make(names, python(LIBRARIES[0])))
    if problem:
        print(f"{problem}\n0 passed, 1 failed")
        return 1
    planned = chosen(parts, nranks, libraries, names, arguments) if parts else change(level, arguments)
    return stages.run(planned, LOGS)


if __name__ == "__main__":
    programs = {"mutations": "mutations.py", "lock": "lock.py", "gpu": "gpu_check.py"}
    if program := programs.get("".join(sys.argv[1:2])):
        os.execv(sys.executable, [sys.executable, str(Path(__file__).with_name(program)), *sys.argv[2:]])
    sys.exit(main(sys.argv[1:]))
