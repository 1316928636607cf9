"""The clients' sources, and what they need installed: fetched by pip into ``build/clients``, once for each version."""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path

from clients.table import CLIENTS, Client
from environments import ROOT

FOLDER = ROOT / "build" / "clients"


def packages(name: str) -> Path:
    """Where the packages are that a client needs besides those of the environments."""
    return FOLDER / name / "packages"


def tests(name: str) -> Path:
    """Where a client's tests are."""
    client = CLIENTS[name]
    return (FOLDER / name / "sources" if client.package else Path(os.environ.get("CLIENT_SOURCES", "."), name)) / client.tests


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
    package = client.package
    if package and "==" not in package:
        package += f"=={_installed(package, python)}"
    where, wanted = FOLDER / name, "\n".join([package, *client.installs])
    stamp = where / "stamp"
    if missing(name) or (stamp.exists() and stamp.read_text() == wanted):
        return
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    if package:
        _pip(python, "download", "--no-deps", "--no-binary", ":all:", "--dest", where, package)
        (archive,) = where.glob("*.tar.gz")
        with tarfile.open(archive) as file:
            file.extractall(where, filter="data")
        (unpacked,) = (one for one in where.iterdir() if one.is_dir())
        unpacked.rename(where / "sources")
    if client.installs:
        _pip(python, "install", "--no-deps", "--no-compile", "--target", packages(name), *client.installs)
    stamp.write_text(wanted)


def _installed(package: str, python: str) -> str:
    command = (python, "-c", "import sys; from importlib import metadata; print(metadata.version(sys.argv[1]))", package)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _pip(python: str, *arguments: str | Path) -> None:
    subprocess.run((python, "-m", "pip", arguments[0], "-qq", *arguments[1:]), check=True, stdin=subprocess.DEVNULL)
