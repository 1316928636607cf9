"""Tests of messages on GPU arrays: they leave its memory by way of the host, or directly."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cuda_double import Double, installed
from mpi4py import MPI

import hpcoll


@pytest.fixture(params=[False, True], ids=["by way of the host", "directly"])
def either(request: pytest.FixtureRequest) -> Iterator[Double]:
    """The double of the CUDA driver, whose memory the MPI library takes or not."""
    with installed(takes=request.param) as one:
        yield one


@pytest.fixture
def comm(double: Double) -> Iterator[hpcoll.Communicator]:
    one = hpcoll.Communicator(MPI.COMM_WORLD.Dup())
    yield one
    one.Free()
