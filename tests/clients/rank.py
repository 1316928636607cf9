"""A rank of a client's tests: pytest on its modules, with ``MPI.COMM_WORLD`` as it is or as hpcoll's communicator."""

import importlib
import os
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from clients import sources
from clients.table import CLIENTS, Client
from outcomes import RANK, TOKENS, Recorder
from slowness import slowed

CASE_S = (
    240  # of a case that hangs: it then ends with the stacks of its rank; one of mpi4py-fft takes a minute
)


class Chosen:
    """Pytest plugin that leaves out what the table leaves out, and lets every case draw the same random numbers with hpcoll and without."""

    def __init__(self, client: Client, rank: int) -> None:
        self._client, self._rank = client, rank

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [
            item
            for item in items
            if not any(fnmatch(item.nodeid, pattern) for pattern in self._client.left_out)
        ]

    def pytest_runtest_setup(self) -> None:
        import numpy as np

        np.random.seed(self._rank)


def run(name: str, with_hpcoll: bool, pytest_args: list[str]) -> None:
    """Replace the constant before any of the client's modules is imported, then run them; that cases fail is no status: it ends ranks."""
    client, tests = CLIENTS[name], sources.tests(name)
    sys.path.insert(0, str(tests))
    sys.path.append(str(sources.packages(name)))
    from mpi4py import MPI

    rank, nranks, folder = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, Path(os.environ[TOKENS])
    os.environ[RANK] = str(rank)
    output = os.open(folder / f"output-{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(output, stream)
    if with_hpcoll:
        import hpcoll

        MPI.COMM_WORLD = hpcoll.Communicator(MPI.COMM_WORLD)  # type: ignore[misc]
    sys.modules.update({package: MagicMock() for package in client.mocked})
    for module, hidden in client.hidden.items():
        _import_without(module, hidden)
    patterns = client.runs.get(nranks) or max(client.runs.values(), key=len)
    files = dict.fromkeys(str(file) for pattern in patterns for file in sorted(tests.glob(pattern)))
    if not files:
        raise FileNotFoundError(f"no modules {' '.join(patterns)} in {tests}")
    if client.ours:
        files[str(Path(__file__).with_name(client.ours))] = None
    options = [
        "-c",
        os.devnull,
        f"--rootdir={tests}",
        "--noconftest",
        "-p",
        "no:cacheprovider",
        "--with-mpi",
        "-q",
        "--color=no",
    ]
    options += [f"--timeout={slowed(CASE_S)}", "--timeout-method=thread", "-o", "python_classes="]
    import pytest

    pytest.main([*options, *files, *pytest_args], plugins=[Recorder(folder, rank), Chosen(client, rank)])


def _import_without(module: str, hidden: tuple[str, ...]) -> None:
    """Import a module that is to find some packages missing."""
    saved = {name: sys.modules.pop(name) for name in hidden if name in sys.modules}
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    importlib.import_module(module)
    for name in hidden:
        del sys.modules[name]
    sys.modules.update(saved)
