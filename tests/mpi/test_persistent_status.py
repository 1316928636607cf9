"""Persistent requests as mpi4py's own functions see them: what `Wait` and its relatives say of them, and `Startall`."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from forms import Case, prepare
from mpi4py import MPI
from reference import communicator, ensure_none, unless
from test_nonblocking import free
from test_persistent import ours

from hpcoll.base.errors import ArgumentError
from hpcoll.comm.requests.persistent_request import PersistentRequest

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("count", [3, 50_000])
def test_statuses(count: int) -> None:
    """Whichever way the program waits, and where nothing was started, a status is filled as one of a request that received nothing."""
    comm = communicator()
    requests: list[Any] = [prepare(comm, ours(comm, count=count), algorithm="direct") for _ in range(2)]
    ways: dict[str, Callable[[Any, MPI.Status], Any]] = {
        "Wait": lambda one, status: one.Wait(status),
        "wait": lambda one, status: one.wait(status),
        "Waitall": lambda one, status: MPI.Request.Waitall([one], [status]),
        "Waitany": lambda one, status: MPI.Request.Waitany([one], status),
        "Waitsome": lambda one, status: MPI.Request.Waitsome([one], [status]),
    }
    wrong = []
    for name, wait in ways.items():
        for started in (True, True, False):
            status = MPI.Status()
            status.Set_source(77), status.Set_tag(99), status.Set_cancelled(True)
            if started:
                MPI.Prequest.Startall(requests)
                requests[1].Wait()
            wait(requests[0], status)
            found = status.Get_source(), status.Get_tag(), status.Get_count(MPI.BYTE), status.Is_cancelled()
            nobody = not started and name == "Waitsome"  # which then sets none
            wrong += unless(
                nobody or found == (MPI.ANY_SOURCE, MPI.ANY_TAG, 0, False), (name, started, found)
            )
    free(requests)
    ensure_none(wrong)


def test_startall() -> None:
    """Of requests of hpcoll's, of the library's that hpcoll made, and of plain ones; the library's own class has it, too."""
    comm, wrong = communicator(), []
    cases = [ours(comm), ours(comm, count=3000), Case(comm, "Bcast"), ours(comm)]
    requests = [
        prepare(comm, case, **more)
        for case, more in zip(cases, ({}, {}, {"algorithm": "native"}, {}), strict=True)
    ]
    number, found = np.full(1, comm.rank), np.zeros(1, int)
    plain = [MPI.COMM_SELF.Send_init(number, 0), MPI.COMM_SELF.Recv_init(found, 0)]
    for start in (MPI.Prequest.Startall, PersistentRequest.Startall):
        for case in cases:
            case.fill(0)
        start([*plain, *requests])
        MPI.Request.Waitall([*requests, *plain])
        wrong += [case for case in cases if not case.good()] + unless(found[0] == comm.rank, found)
        found[0] = -1
        start(plain)
        MPI.Request.Waitall(plain)
        with pytest.raises(ArgumentError, match="was started and not waited for yet"):
            start([requests[1], requests[1]])
        requests[1].Wait()
    free([*requests, *plain])
    ensure_none(wrong)
