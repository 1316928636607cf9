"""``hpcoll --version``: the versions of hpcoll and of what it uses."""

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import hpcoll
from hpcoll.base.errors import HpcollError
from hpcoll.launch.ranks import library

_PACKAGES = {"mpi4py": "mpi4py", "NumPy": "numpy", "Numba": "numba"}


def versions(verbose: bool) -> list[str]:
    """Return the versions in one line; or a line for each, with the paths of hpcoll and Python."""
    found = [f"{name} {_installed(package)}" for name, package in _PACKAGES.items()]
    try:
        mpi = library()[1]
    except HpcollError:
        mpi = "no MPI library"
    own, python = f"hpcoll {hpcoll.__version__}", f"Python {platform.python_version()}"
    if verbose:
        where = Path(hpcoll.__file__).parent
        return [f"{own}, {where}", f"{python}, {sys.executable}", mpi, *found]
    return [f"{own} ({', '.join([python, mpi, *found])})"]


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
