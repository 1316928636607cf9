"""Messages of GPU arrays as far as no MPI is needed: which bytes came, and what mpi4py's methods look like on a Communicator."""

import inspect

import numpy as np
import pytest
from mpi4py import MPI

from hpcoll.comm.arguments.buffers import Resolved
from hpcoll.comm.arguments.point_to_point_buffers import written
from hpcoll.comm.communicator import CartCommunicator, Communicator
from hpcoll.comm.point_to_point import Message

POINT_TO_POINT = ("Send", "Ssend", "Bsend", "Rsend", "Isend", "Issend", "Ibsend", "Irsend", "Recv", "Irecv", "Sendrecv", "Sendrecv_replace")


def test_a_message_of_plain_elements_is_one_stretch() -> None:
    memory = np.zeros(10)
    at = memory.ctypes.data
    place = Resolved(at + 16, 5, memory.dtype, 40, False, memory)
    assert written(place, memory, 24) == [(at + 16, at + 40)]
    assert written(place, memory, 0) == []


@pytest.mark.parametrize("name", POINT_TO_POINT)
def test_signatures_are_those_of_mpi4py(name: str) -> None:
    """With ``stream`` behind them, by keyword only."""
    ours, theirs = getattr(Communicator, name), getattr(MPI.Comm, name)
    follow = inspect.signature(ours, follow_wrapped=False).parameters
    expected = inspect.signature(theirs).parameters.values()
    assert [(p.name, p.default) for p in list(follow.values())[:-1]] == [(p.name, p.default) for p in expected]
    assert (follow["stream"].kind, follow["stream"].default) == (inspect.Parameter.KEYWORD_ONLY, None)
    assert ours.__name__ == name
    assert ours.__doc__
    assert ours.__doc__ != theirs.__doc__


@pytest.mark.parametrize("name", ["Recv", "Irecv"])
def test_signatures_of_messages(name: str) -> None:
    ours, theirs = (list(inspect.signature(getattr(one, name)).parameters) for one in (Message, MPI.Message))
    assert ours == [*theirs, "stream"]


def test_methods_are_documented_and_where_they_belong() -> None:
    for owner, name in ((Communicator, "Alltoallw"), (Communicator, "Send_init"), (CartCommunicator, "Neighbor_alltoallw")):
        assert getattr(owner, name).__name__ == name
        assert str(getattr(owner, name).__doc__).startswith(f"mpi4py's `{name}`; GPU arrays ")
    assert not hasattr(Communicator, "Neighbor_alltoallw")
