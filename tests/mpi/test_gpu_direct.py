"""GPU arrays on an MPI library that takes their addresses: over a double whose GPU memory the host can read, as such a library can."""

from collections.abc import Iterator

import pytest
from cuda_double import Double
from forms import COLLECTIVE
from gpu_cases import check_method, check_requests, communicator

import hpcoll

pytestmark = [
    pytest.mark.mpi(min_size=1),
    pytest.mark.double(takes=True),
    pytest.mark.usefixtures("blame"),
    pytest.mark.once,
]


@pytest.fixture(scope="module")
def comm(shared_double: Double) -> Iterator[hpcoll.Communicator]:
    one = communicator("direct", lambda count, dtype: shared_double.Array(count, dtype))
    yield one
    one.Free()


@pytest.mark.parametrize("method", [one for one in COLLECTIVE if one != "Barrier"])
def test_messages_leave_from_gpu_memory(
    method: str, comm: hpcoll.Communicator, shared_double: Double
) -> None:
    check_method(comm, method, lambda count, dtype: shared_double.Array(count, dtype))


def test_requests(comm: hpcoll.Communicator, shared_double: Double) -> None:
    check_requests(comm, lambda count, dtype: shared_double.Array(count, dtype), "nonblocking")
