"""Receives into GPU memory over the driver's double: their order and errors; what only the MPI library has is refused or staged."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cuda_double import Double
from gpu_cases import forced
from gpu_double import around, made
from mpi4py import MPI
from reference import ensure, ensure_none, unless

import hpcoll
from hpcoll.base.errors import ArgumentError, TransportError
from hpcoll.comm.gpu import messages
from hpcoll.comm.methods.point_to_point import Receive

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
    requests += [
        comm.Irecv(host, left, 9),
        comm.Iallreduce(np.ones(1), total),
        comm.Iallreduce(either.Array(40_000).fill(2), sums),
    ]
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
        wrong += unless((recv.get()[:n] == left + n).all() and recv.get()[n] == -1, n)
    ensure_none(wrong)
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
    ensure_none([i for i, recv in enumerate(recvs) if (recv.get() != i).any()])


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
    ensure(total[0] == comm.size and (x.get() == comm.size).all(), total)


def test_requests_of_receives(comm: hpcoll.Communicator, double: Double) -> None:
    right, left = around(comm)
    recv = double.Array(4).fill(-1)
    request = comm.Irecv(recv, left)
    assert type(request) is Receive
    assert request.Test() is False
    with pytest.raises(
        ArgumentError, match="a receive into GPU memory in flight cannot be cancelled: wait for it"
    ):
        request.Cancel()
    with pytest.raises(
        ArgumentError, match="a receive into GPU memory in flight cannot be freed: wait for it"
    ):
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


def test_neighbours(double: Double) -> None:
    """Neighbourhood collectives, and one that only the MPI library has."""
    cart = hpcoll.Communicator(MPI.COMM_WORLD).Create_cart([MPI.COMM_WORLD.size], [True])
    assert not hasattr(hpcoll.Communicator, "Neighbor_allgather")
    n, (left, right) = 3, cart.Shift(0, 1)
    one = double.Array(n).fill(cart.rank)
    two = double.Array((2, n)).fill([[cart.rank] * n, [cart.rank + 100] * n])
    wrong = []
    for name, send in (("allgather", one), ("allgatherv", one), ("alltoall", two), ("alltoallv", two)):
        recv = double.Array((2, n)).fill(-1)
        getattr(cart, f"Neighbor_{name}")(send, [recv, [n, n], MPI.FLOAT] if name.endswith("v") else recv)
        shift = 100 if "all2" in name or "alltoall" in name else 0
        want = [[left + shift] * n, [right] * n] if cart.size > 2 else None
        host = np.full((2, n), -1, np.float32)
        plain: Any = getattr(MPI.Cartcomm(cart), f"Neighbor_{name}")
        plain(send.get(), [host, [n, n], MPI.FLOAT] if name.endswith("v") else host)
        wrong += unless((recv.get() == host).all() and (want is None or host.tolist() == want), name)
        recv.fill(-1)
        getattr(cart, f"Ineighbor_{name}")(
            send, [recv, [n, n], MPI.FLOAT] if name.endswith("v") else recv
        ).Wait()
        wrong += unless((recv.get() == host).all(), f"I{name}")
    recv, types = double.Array((2, n)).fill(-1), [MPI.FLOAT, MPI.FLOAT]
    cart.Neighbor_alltoallw([two, ([n, n], [0, 4 * n]), types], [recv, ([n, n], [0, 4 * n]), types])
    wrong += unless((recv.get() == host).all(), "alltoallw")
    p = cart.size
    recv, types, places = double.Array(p).fill(-1), [MPI.FLOAT] * p, [4 * i for i in range(p)]
    cart.Alltoallw(
        [double.Array(p).fill(cart.rank), ([1] * p, places), types], [recv, ([1] * p, places), types]
    )
    wrong += unless(recv.get().tolist() == list(range(p)), "Alltoallw")
    ensure_none(wrong)
    cart.Free()


REFUSED: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    **dict.fromkeys(("Send_init", "Bsend_init", "Ssend_init", "Rsend_init", "Recv_init"), lambda x: (x, 0)),
    **dict.fromkeys(("Psend_init", "Precv_init"), lambda x: (x, 1, 0)),
    "Isendrecv": lambda x: (np.zeros(4), 0, 0, [x, 4], 0),
    "Isendrecv_replace": lambda x: (x, 0),
    "Attach_buffer": lambda x: (x,),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, double: Double) -> None:
    """What can be served neither by way of the host nor directly; by position and by name."""
    cart = hpcoll.Communicator(MPI.COMM_WORLD).Create_cart([MPI.COMM_WORLD.size], [True])
    if not hasattr(cart, name):
        pytest.skip(f"this mpi4py has no {name}")
    text = rf"^rank {cart.rank}: {name} needs host memory.*, got an array in GPU memory: copy it to the host"
    with pytest.raises(ArgumentError, match=text):
        getattr(cart, name)(*REFUSED[name](double.Array(4)))
    if name.endswith(("end_init", "ecv_init")):
        with pytest.raises(ArgumentError, match=name):
            getattr(cart, name)(buf=double.Array(4))
    assert getattr(cart, name).__name__ == name
    cart.Free()


def covered(owner: Any) -> set[str]:
    return {
        name
        for name in vars(owner)
        if name[0].isupper() and "buf" in str(getattr(owner, name).__doc__).splitlines()[0]
    }


def test_every_method_with_buffers_is_ours() -> None:
    """mpi4py's methods of communicators that take buffers: none is left that would read GPU memory on the host."""
    for owner in (MPI.Comm, MPI.Intracomm, MPI.Topocomm):
        inherited = {
            name
            for name in covered(owner)
            if getattr(hpcoll.comm.communicator.CartCommunicator, name) is getattr(owner, name)
        }
        assert inherited <= {"Detach_buffer", "Flush_buffer", "Iflush_buffer"}


@pytest.mark.parametrize("either", [True], indirect=True, ids=["directly"])
def test_persistent_messages(either: Double) -> None:
    comm, right, left, send, recv = made(either)
    stream = either.stream()
    either.later(stream, send.address, np.full(1000, 5.0))
    requests = [comm.Recv_init(recv, left), comm.Send_init(send, right, stream=stream)]
    MPI.Prequest.Startall(requests)
    MPI.Request.Waitall(requests)
    for request in requests:
        request.Free()
    ensure_none([] if (recv.get() == 5).all() else [recv.get()[:3]])
    with pytest.raises(ArgumentError, match="Attach_buffer needs host memory, got"):
        comm.Attach_buffer(either.Array(1000))
    comm.Free()


def test_forced_ways(double: Double) -> None:
    """A way that the MPI library does not have is an error before anything leaves; one by the host is taken, whatever it has."""
    with forced("direct"):
        comm = hpcoll.Communicator(MPI.COMM_WORLD.Dup())
    x = double.Array(4)
    for call in (comm.Send, comm.Recv, comm.Isend, comm.Irecv, comm.Sendrecv_replace, comm.Send_init):
        with pytest.raises(
            ArgumentError,
            match=f"rank {comm.rank}: HPCOLL_CUDA_PATH is direct, but the MPI library does not take",
        ):
            call(x, comm.rank)
    assert comm.Iprobe() is False
    comm.Free()
    with pytest.MonkeyPatch.context() as patch:  # undone before the double's
        patch.setattr(messages, "takes_gpu_memory", lambda gpu: True)
        for way in ("host", "staged", "ipc"):
            messages._takes.cache_clear()
            with forced(way):
                comm = hpcoll.Communicator(MPI.COMM_WORLD.Dup())
            request = comm.Irecv(x.fill(-1), comm.rank)
            comm.Send(double.Array(4).fill(3), comm.rank)
            request.Wait()
            assert (type(request), x.get().tolist()) == (Receive, [3] * 4)
            comm.Free()
