"""Collectives in flight that MPI fails, that are interrupted, or that are refused: who hears of it, when, and that the rest goes on."""

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from failed_calls import not_refused
from internals import context
from mpi4py import MPI
from reference import communicator, ensure, ensure_none, fresh, raised, unless
from test_nonblocking import FINISH

import hpcoll
from hpcoll.base.errors import ArgumentError, PeerFailed, TransportError
from hpcoll.comm.requests.progress_thread import board
from hpcoll.comm.team.team import IN_FLIGHT
from hpcoll.runtime.program import progress_fields as progress

pytestmark = [pytest.mark.mpi, pytest.mark.twice]
SEVERAL = pytest.mark.mpi(min_size=2)
MEBIBYTE = 1 << 17  # elements
X = np.ones(4)


def error_of(call: Callable[[], Any]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize(
    ("way", "length", "through"),
    [
        ("issued", "short", "Wait"),
        ("issued late", "short", "Test"),
        ("issued", "long", "Waitall"),
        ("started", "short", "Wait"),
    ],
)
@SEVERAL
def test_mpi_fails(
    way: str, length: str, through: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In pairs, one rank sends longer messages than the other expects, which hears of it when it waits, once, in our words or MPI's."""
    monkeypatch.setenv("HPCOLL_SHM", "0")
    comm = communicator().Split(communicator().rank // 2)
    big = 400 if length == "long" else 8
    given, taken = ([1, big], [1, 1]) if comm.rank == 0 else ([1, 1], [big // 2, 1])
    arguments: Any = [np.ones(1 + big), given[: comm.size]], [np.zeros(1 + big), taken[: comm.size]]
    if way == "issued late" and comm.rank:
        time.sleep(0.02)
    make: Any = comm.Alltoallv_init if way == "started" else comm.Ialltoallv
    request = make(*arguments, algorithm="direct")
    if way == "started":
        request.Start()
    finish: dict[str, Callable[[], Any]] = {"Wait": request.Wait, "Test": lambda: until(request.Test)}
    error = error_of(finish.get(through, lambda: FINISH[through]([request])))
    wrong: list[Any] = []
    if comm.rank:
        if through == "Waitall":
            wrong += unless(isinstance(error, MPI.Exception) and context(comm).closed, repr(error))
        else:
            text = r"^rank 1: (Ialltoallv|Alltoallv_init)\(.* on rank \d: .*runcate"
            known = isinstance(error, TransportError) and re.search(text, str(error))
            known = known and MPI.Get_error_class(error.code) == MPI.ERR_TRUNCATE
            wrong += unless(known, repr(error))
            wrong += [said] if (said := capfd.readouterr().err) else []
        after = error_of(comm.Ibarrier)
        wrong += unless(
            isinstance(after, ArgumentError) and "an earlier collective did not end" in str(after),
            repr(after),
        )
        wrong += unless(request.Wait(), "not done")
    ensure_none(wrong + ([repr(error)] if error and not comm.rank else []))


def until(function: Callable[[], bool]) -> None:
    while not function():
        pass


ARGUMENTS: dict[str, tuple[str, Callable[[hpcoll.Communicator], tuple[Any, ...]], dict[str, Any]]] = {
    "recvbuf needs 4 elements": ("Allreduce", lambda c: (X, np.ones(3)), {}),
    "must be contiguous": ("Bcast", lambda c: (X[::2],), {}),
    "root must be a rank below": ("Bcast", lambda c: (X, c.size), {}),
    "recvbuf needs": ("Allgather", lambda c: (X, np.ones(4 * c.size + 1)), {}),
    "allreduce algorithm must be one of": ("Allreduce", lambda c: (X, np.ones(4)), {"algorithm": "fast"}),
    "native cannot serve this call": (
        "Allreduce",
        lambda c: (X, np.ones(4), hpcoll.AVG),
        {"algorithm": "native"},
    ),
    "segment must be at least 1 byte": ("Barrier", lambda c: (), {"segment": 0}),
}


def test_cancel_and_free() -> None:
    """Refused while it runs; afterwards there is nothing to free."""
    comm, last = communicator(), communicator().size - 1
    if comm.rank == last:  # which lets the others come to the end of their attempts
        for rank in range(last):
            assert MPI.COMM_WORLD.recv(source=rank) == "tried"
    request = comm.Iallreduce(np.ones(MEBIBYTE), np.ones(MEBIBYTE), algorithm="ring")
    for call in (request.Cancel, request.cancel):
        with pytest.raises(ArgumentError, match="a collective in flight cannot be cancelled: wait for it"):
            call()
    if comm.rank < last:
        with pytest.raises(ArgumentError, match="a collective in flight cannot be freed: wait for it"):
            request.Free()
        MPI.COMM_WORLD.send("tried", last)
    request.Wait()
    ensure(request == MPI.REQUEST_NULL, request)


def until_full(start: Callable[[], MPI.Request]) -> list[MPI.Request]:
    """As many requests as there is room for."""
    requests = [start()]  # which makes room where what has ended was never waited for
    while board().free:
        requests.append(start())
    return requests


@pytest.mark.skipif(MPI.COMM_WORLD.size > 2, reason="thousands of messages: enough between two ranks")
def test_too_many() -> None:
    """A thousand at once are possible, and what is too much is refused before any message."""
    comm = communicator().Dup()
    comm.Ibarrier().Wait()  # calls before that wait for all ranks, and have no room yet
    long = np.ones(4096)  # short ones may end at once
    requests = until_full(lambda: comm.Ibcast(long, algorithm="direct"))
    with pytest.raises(
        ArgumentError, match=r"^rank \d: 1024 collectives are in flight already: wait for some of them$"
    ):
        comm.Ibcast(long, algorithm="direct")
    MPI.Request.Waitall(requests)
    x = np.ones(3)
    comm.Iallreduce(MPI.IN_PLACE, x, algorithm="direct").Wait()
    ensure((x == comm.size).all(), x)
    comm.Free()


@pytest.mark.skipif(MPI.COMM_WORLD.size != 2, reason="thousands of messages: enough between two ranks")
def test_too_many_on_one_rank() -> None:
    """What has not begun can be called again; of what has begun, which others may have got messages of, all ranks are told."""
    full, begun, new = fresh(), fresh(), hpcoll.Communicator(MPI.COMM_WORLD.Dup())
    x, y, wrong = np.ones(3), np.zeros(3), list[str]()
    for comm in (full, begun, new):
        comm.Ibarrier().Wait()
    for _ in range(2 * IN_FLIGHT):
        begun.Iallreduce(x, y).Wait()
    requests = []
    if full.rank == 0:
        requests = until_full(lambda: full.Ibarrier(algorithm="dissemination"))
        errors = [raised(lambda to=comm: to.Iallreduce(x, y).Wait()) for comm in (begun, new)]
        wrong += [
            repr(one)
            for one in errors
            if not isinstance(one, ArgumentError) or "are in flight already" not in str(one)
        ]
        MPI.COMM_WORLD.send(len(requests), 1)
    MPI.COMM_WORLD.Barrier()
    if full.rank == 1:
        error = raised(lambda: begun.Iallreduce(x, y).Wait())
        wrong += unless(
            isinstance(error, PeerFailed) and "rank 0 gave up: ArgumentError" in str(error), repr(error)
        )
        requests = [full.Ibarrier(algorithm="dissemination") for _ in range(MPI.COMM_WORLD.recv(source=0))]
    MPI.Request.Waitall(requests)
    wrong += not_refused(raised(begun.Barrier), "an earlier collective did not end")
    new.Iallreduce(x, y).Wait()
    wrong += unless((y == 2).all(), repr(y))
    ensure_none(wrong)


@SEVERAL
def test_ctrl_c_in_wait() -> None:
    """Rank 0 is interrupted while it waits; nothing is lost by that: it waits once more, and the communicator goes on."""
    comm = fresh()
    if comm.rank == 0:
        request = comm.Ibarrier(algorithm="dissemination")
        timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            request.Wait()
        for rank in range(1, comm.size):
            comm.send("now", rank)
    else:
        assert comm.recv(source=0) == "now"
        request = comm.Ibarrier(algorithm="dissemination")
    request.Wait()
    x = np.ones(3)
    comm.Allreduce(MPI.IN_PLACE, x, algorithm="direct")
    ensure((x == comm.size).all() and board().words[progress.WAITERS] == 0, x)
    comm.Free()
