"""Fixtures that several files use: communicators and doubles for GPU arrays, how ranks exchange what they say, which calls are planned."""

from collections.abc import Iterator
from typing import Any

import pytest
from cuda_double import Double, installed
from mpi4py import MPI
from reference import fresh

import hpcoll
from hpcoll.comm.context.context import Context
from hpcoll.schedules.catalogue import CATALOGUE, registered


@pytest.fixture(params=[False, True], ids=["by way of the host", "directly"])
def either(request: pytest.FixtureRequest) -> Iterator[Double]:
    """The double of the CUDA driver, whose memory the MPI library takes or not."""
    with installed(takes=request.param) as one:
        yield one


@pytest.fixture(params=["shared memory", "messages"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let ranks exchange messages as on a node, and as between nodes."""
    if request.param == "messages":
        monkeypatch.setenv("HPCOLL_SHM", "0")
    return str(request.param)


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The methods of calls that took the long way."""
    found: list[str] = []
    prepare = Context.prepare

    def noted(self: Context, method: str, *arguments: Any) -> Any:
        found.append(method)
        return prepare(self, method, *arguments)

    monkeypatch.setattr(Context, "prepare", noted)
    return found


@pytest.fixture
def comm(double: Double) -> Iterator[hpcoll.Communicator]:
    one = hpcoll.Communicator(MPI.COMM_WORLD.Dup())
    yield one
    one.Free()


@pytest.fixture
def registering() -> Iterator[hpcoll.Communicator]:
    """A communicator of its own; the algorithms that a test registers are gone after it."""
    made = fresh()
    yield made
    made.Free()
    for row in registered():
        del CATALOGUE[row.key]
