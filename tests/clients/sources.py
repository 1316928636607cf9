"""The clients' sources, and what they need installed: fetched by pip into ``build/clients``, once for each version, by hash (`lock.py`)."""

import ctypes.util
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path

from clients.table import CLIENTS, TOOLS, Client
from environments import ROOT
from lock import locked

FOLDER = ROOT / "build" / "clients"


def packages(name: str) -> Path:
    """Return where the packages are that a client needs besides those of the environments."""
    return FOLDER / name / "packages"


def tests(name: str) -> Path:
    """Return where a client's tests are."""
    client = CLIENTS[name]
    return (
        FOLDER / name / "sources" if client.package else Path(os.environ.get("CLIENT_SOURCES", "."), name)
    ) / client.tests


def missing(name: str) -> str:
    """Why a client's tests cannot run on this machine; an empty text where they can."""
    client = CLIENTS[name]
    if client.library and not ctypes.util.find_library(client.library):
        return f"{name} needs the library {client.library}"
    if not client.package and not tests(name).is_dir():
        return f"the tests of {name} are not on the package index: CLIENT_SOURCES names a folder that has its sources"
    return ""


def make(names: Iterable[str], python: str) -> str:
    """Fetch and install what is not there yet; an empty text, or what went wrong."""
    try:
        for name in names:
            _make(name, CLIENTS[name], python)
    except (OSError, subprocess.CalledProcessError, tarfile.TarError) as error:
        return str(error)
    return ""


def _make(name: str, client: Client, python: str) -> None:
    """A client's folder; what is in it is said by its stamp."""
    where, tools, sources, installs = (
        FOLDER / name,
        locked(TOOLS),
        locked([client.package]),
        locked(client.installs),
    )
    unlocked = "\n".join(client.unlocked)
    stamp, wanted = where / "stamp", tools + sources + installs + unlocked
    if missing(name) or (stamp.exists() and stamp.read_text() == wanted):
        return
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    if client.package:
        _pip(python, where, tools, "install", "--no-compile", "--target", where / "tools")
        _pip(python, where, sources, "download", "--no-binary", ":all:", "--dest", where)
        (archive,) = where.glob("*.tar.gz")
        with tarfile.open(archive) as file:
            file.extractall(where, filter="data")
        (unpacked,) = where.glob("*/PKG-INFO")
        unpacked.parent.rename(where / "sources")
    for some in filter(None, (installs, unlocked)):
        _pip(python, where, some, "install", "--no-compile", "--target", packages(name))
    stamp.write_text(wanted)


def _pip(python: str, where: Path, packages: str, command: str, *options: str | Path) -> None:
    """Nothing is fetched but these packages: sources are built with those of the environment and the tools."""
    (where / "packages.txt").write_text(packages)
    words = (
        python,
        "-m",
        "pip",
        command,
        "-qq",
        "--no-deps",
        "--no-build-isolation",
        "--requirement",
        where / "packages.txt",
        *options,
    )
    subprocess.run(
        words, check=True, stdin=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": str(where / "tools")}
    )
