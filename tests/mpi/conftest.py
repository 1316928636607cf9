"""The driver's double for one test: messages leave its memory by way of the host, directly, or either way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cuda_double import Double
from gpu_double import installed
from mpi4py import MPI

import hpcoll


@pytest.fixture
def double() -> Iterator[Double]:
    yield from installed(takes=False)


@pytest.fixture(params=[False, True], ids=["by way of the host", "directly"])
def either(request: pytest.FixtureRequest) -> Iterator[Double]:
    yield from installed(request.param)


@pytest.fixture
def comm(double: Double) -> Iterator[hpcoll.Communicator]:
    one = hpcoll.Communicator(MPI.COMM_WORLD.Dup())
    yield one
    one.Free()
