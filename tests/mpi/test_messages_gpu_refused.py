"""What only the MPI library has, on GPU arrays over the driver's double: by way of the host, directly, or refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cuda_double import Double
from gpu_cases import forced
from gpu_double import made
from mpi4py import MPI
from reference import agreed

import hpcoll
from hpcoll.base.errors import ArgumentError
from hpcoll.comm.arguments import point_to_point_buffers
from hpcoll.comm.point_to_point import Receive

pytestmark = [pytest.mark.mpi(min_size=1), pytest.mark.double(takes=False), pytest.mark.once]


def test_neighbours(double: Double) -> None:
    """Collectives that only the MPI library has."""
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
        wrong += [] if (recv.get() == host).all() and (want is None or host.tolist() == want) else [name]
    recv, types = double.Array((2, n)).fill(-1), [MPI.FLOAT, MPI.FLOAT]
    cart.Neighbor_alltoallw([two, ([n, n], [0, 4 * n]), types], [recv, ([n, n], [0, 4 * n]), types])
    wrong += [] if (recv.get() == host).all() else ["alltoallw"]
    p = cart.size
    recv, types, places = double.Array(p).fill(-1), [MPI.FLOAT] * p, [4 * i for i in range(p)]
    cart.Alltoallw([double.Array(p).fill(cart.rank), ([1] * p, places), types], [recv, ([1] * p, places), types])
    wrong += [] if recv.get().tolist() == list(range(p)) else ["Alltoallw"]
    assert agreed(wrong) == []
    cart.Free()


REFUSED: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    **dict.fromkeys(("Send_init", "Bsend_init", "Ssend_init", "Rsend_init", "Recv_init"), lambda x: (x, 0)),
    **dict.fromkeys(("Psend_init", "Precv_init"), lambda x: (x, 1, 0)),
    "Isendrecv": lambda x: (np.zeros(4), 0, 0, [x, 4], 0),
    "Isendrecv_replace": lambda x: (x, 0),
    **dict.fromkeys(("Ialltoallw", "Alltoallw_init"), lambda x: ([x, [1], [0], [MPI.INT]], [np.zeros(4), [1], [0], [MPI.INT]])),
    **{
        form.format(what): lambda x: (np.zeros(4), x)
        for form in ("Ineighbor_{}", "Neighbor_{}_init")
        for what in ("allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw")
    },
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
    return {name for name in vars(owner) if name[0].isupper() and "buf" in str(getattr(owner, name).__doc__).splitlines()[0]}


def test_every_method_with_buffers_is_ours() -> None:
    """mpi4py's methods of communicators that take buffers: none is left that would read GPU memory on the host."""
    for owner in (MPI.Comm, MPI.Intracomm, MPI.Topocomm):
        inherited = {name for name in covered(owner) if getattr(hpcoll.comm.communicator.CartCommunicator, name) is getattr(owner, name)}
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
    assert agreed([] if (recv.get() == 5).all() else [recv.get()[:3]]) == []
    with pytest.raises(ArgumentError, match="Attach_buffer needs host memory, got"):
        comm.Attach_buffer(either.Array(1000))
    comm.Free()


def test_forced_ways(double: Double) -> None:
    """A way that the MPI library does not have is an error before anything leaves; one by the host is taken, whatever it has."""
    with forced("direct"):
        comm = hpcoll.Communicator(MPI.COMM_WORLD.Dup())
    x = double.Array(4)
    for call in (comm.Send, comm.Recv, comm.Isend, comm.Irecv, comm.Sendrecv_replace, comm.Send_init):
        with pytest.raises(ArgumentError, match=f"rank {comm.rank}: HPCOLL_CUDA_PATH is direct, but the MPI library does not take"):
            call(x, comm.rank)
    assert comm.Iprobe() is False
    comm.Free()
    with pytest.MonkeyPatch.context() as patch:  # undone before the double's
        patch.setattr(point_to_point_buffers, "takes_gpu_memory", lambda gpu: True)
        for way in ("host", "staged", "ipc"):
            point_to_point_buffers._takes.cache_clear()
            with forced(way):
                comm = hpcoll.Communicator(MPI.COMM_WORLD.Dup())
            request = comm.Irecv(x.fill(-1), comm.rank)
            comm.Send(double.Array(4).fill(3), comm.rank)
            request.Wait()
            assert (type(request), x.get().tolist()) == (Receive, [3] * 4)
            comm.Free()
