"""Hypothesis draws the same examples every time and has no deadline: cores are shared. Garbage is looked for seldom. MPI does not start."""

import gc
from collections.abc import Iterator
from pathlib import Path

import mpi4py
import pytest
from cuda_double import install
from hypothesis import settings

mpi4py.rc.initialize = False  # when hpcoll.comm is imported
gc.set_threshold(20_000, 10, 1000)  # a third of all time goes into collections of everything otherwise
settings.register_profile("hpcoll", deadline=None, derandomize=True, database=None, max_examples=80)
settings.load_profile("hpcoll")


@pytest.fixture
def no_driver() -> Iterator[None]:
    """A process that sees no GPU."""
    one = install(0, current=None)
    yield
    one.uninstall()


@pytest.fixture
def node_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder in which a node keeps temporary files; it was looked for before."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path
