"""GPU arrays on an MPI library that takes their addresses: over a double whose GPU memory the host can read, as such a library can."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from forms import COLLECTIVE
from gpu_cases import check_method, check_requests, communicator
from gpu_double import installed, ordered

import hpcoll

pytestmark = pytest.mark.mpi(min_size=1)


@pytest.fixture(scope="module")
def double() -> Iterator[Any]:
    yield from installed(takes=True)


no_races = pytest.fixture(autouse=True)(ordered)


@pytest.fixture(scope="module")
def comm(double: Any) -> Iterator[hpcoll.Communicator]:
    one = communicator("direct", lambda count, dtype: double.Array(count, dtype))
    yield one
    one.Free()


@pytest.mark.parametrize("method", [one for one in COLLECTIVE if one != "Barrier"])
def test_messages_leave_from_gpu_memory(method: str, comm: hpcoll.Communicator, double: Any) -> None:
    check_method(comm, method, lambda count, dtype: double.Array(count, dtype))


def test_requests(comm: hpcoll.Communicator, double: Any) -> None:
    check_requests(comm, lambda count, dtype: double.Array(count, dtype), "nonblocking")
