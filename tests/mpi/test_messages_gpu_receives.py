"""Receives into GPU memory, over the driver's double: in which order they end, beside what else, and with which errors."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cuda_double import Double
from gpu_double import around, made
from mpi4py import MPI
from reference import agreed

import hpcoll
from hpcoll.base.errors import ArgumentError, TransportError
from hpcoll.comm.point_to_point import Receive

pytestmark = [pytest.mark.mpi(min_size=1), pytest.mark.double(takes=False), pytest.mark.once]


@pytest.mark.parametrize("call", [MPI.Request.Waitall, lambda every: [one.Wait() for one in every], None])
def test_everything_at_once(call: Callable[[Any], Any] | None, either: Double) -> None:
    """Receives on GPU and host, sends, and collectives of both kinds, completed together; in what order, every rank decides."""
    comm, right, left, *_ = made(either)
    sends = [either.Array(n, np.float64).fill(comm.rank + n) for n in (1, 70_000, 3)]
    recvs = [either.Array(n + 1, np.float64).fill(-1) for n in (1, 70_000, 3)]
    host, total, sums = np.zeros(5), np.zeros(1), either.Array(40_000)
    order = np.random.default_rng(comm.rank).permutation(9)
    requests: list[Any] = [comm.Irecv(recv, left, tag) for tag, recv in enumerate(recvs)]
    requests += [comm.Irecv(host, left, 9), comm.Iallreduce(np.ones(1), total), comm.Iallreduce(either.Array(40_000).fill(2), sums)]
    requests += [comm.Isend(send, right, tag) for tag, send in enumerate(sends)]
    comm.Send(np.full(5, 7.0), right, 9)
    ordered = [requests[i] for i in order]
    if call is not None:
        call(ordered)
    else:
        while (done := MPI.Request.Testsome(ordered)) is not None:
            assert done is not None
    good = (host == 7).all() and total[0] == comm.size and (sums.get() == 2 * comm.size).all()
    wrong: list[Any] = [] if good else [host, total]
    for recv, n in zip(recvs, (1, 70_000, 3)):
        wrong += [] if (recv.get()[:n] == left + n).all() and recv.get()[n] == -1 else [n]
    assert agreed(wrong) == []
    comm.Free()


def test_order_of_receives(comm: hpcoll.Communicator, double: Double) -> None:
    """Messages of one tag meet the receives in the order in which these began, however they are waited for."""
    right, left = around(comm)
    recvs = [double.Array(2, np.float32) for _ in range(20)]
    requests = [comm.Irecv(recv, left, 1) for recv in recvs]
    for i in range(20):
        comm.Send(double.Array(2).fill(i), right, 1)
    for request in reversed(requests):
        request.Wait()
    assert agreed([i for i, recv in enumerate(recvs) if (recv.get() != i).any()]) == []


@pytest.mark.parametrize("way", ["Recv", "Wait", "Test", "Waitall"])
def test_truncated(way: str, comm: hpcoll.Communicator, double: Double) -> None:
    """A message that is too long: an error where it is received, and everything goes on."""
    right, left = around(comm)
    recv = double.Array(4, np.float64).fill(-1)
    mine = comm.Isend(double.Array(8, np.float64).fill(1), right)

    def receive() -> None:
        request = None if way == "Recv" else comm.Irecv(recv, left)
        if request is None:
            comm.Recv(recv, left)
        elif way == "Waitall":
            MPI.Request.Waitall([request])
        else:
            while not getattr(request, way)():
                pass

    with pytest.raises(TransportError if way in ("Wait", "Test") else MPI.Exception) as caught:
        receive()
    if way in ("Wait", "Test"):
        assert re.match(rf"rank {comm.rank}: a receive into GPU memory: .*runcate", str(caught.value))
    mine.Wait()
    assert (recv.get() == -1).all()
    total = np.zeros(1)
    comm.Allreduce(np.ones(1), total)
    comm.Iallreduce(np.ones(1), total).Wait()
    x = double.Array(30_000).fill(1)
    comm.Allreduce(MPI.IN_PLACE, x)
    assert agreed([] if total[0] == comm.size and (x.get() == comm.size).all() else [total]) == []


def test_requests_of_receives(comm: hpcoll.Communicator, double: Double) -> None:
    right, left = around(comm)
    recv = double.Array(4).fill(-1)
    request = comm.Irecv(recv, left)
    assert type(request) is Receive
    assert request.Test() is False
    with pytest.raises(ArgumentError, match="a receive into GPU memory in flight cannot be cancelled: wait for it"):
        request.Cancel()
    with pytest.raises(ArgumentError, match="a receive into GPU memory in flight cannot be freed: wait for it"):
        request.Free()
    comm.Barrier()
    comm.Send(double.Array(4).fill(3), right)
    while not request.Test():
        pass
    assert (request == MPI.REQUEST_NULL, recv.get().tolist()) == (True, [3] * 4)


def test_receive_does_not_wait_for_the_stream(comm: hpcoll.Communicator, double: Double) -> None:
    """It comes after what the caller has queued, on the GPU and not before the call returns."""
    right, left = around(comm)
    stream, recv = double.stream(), double.Array(4)
    double.later(stream, recv.address, np.zeros(4, np.float32))
    request = comm.Irecv(recv, left, stream=stream)
    assert len(double.pending()) >= 1
    comm.Send(double.Array(4).fill(3), right)
    request.Wait()
    assert recv.get().tolist() == [3] * 4


def test_too_many(comm: hpcoll.Communicator, double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    """A receive that has no place is taken back, and takes no message."""
    from hpcoll.comm.requests.progress_thread import board

    monkeypatch.setattr(board(), "free", [])
    recv = double.Array(4).fill(-1)
    with pytest.raises(ArgumentError, match="in flight already: wait for some of them"):
        comm.Irecv(recv, comm.rank)
    monkeypatch.undo()
    request = comm.Isend(np.ones(4, np.float32), comm.rank)
    host = np.zeros(4, np.float32)
    comm.Recv(host, comm.rank)
    request.Wait()
    assert (host.tolist(), recv.get().tolist()) == ([1] * 4, [-1] * 4)
