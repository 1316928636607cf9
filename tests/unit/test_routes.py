"""Routes: the best that reaches a peer is taken."""

import pytest

from hpcoll.analysis.cost import Levels, Network
from hpcoll.runtime.gpu.routes import CudaAwareRoute, IpcRoute, PinnedMpiRoute, PinnedRingRoute, gpu_routes
from hpcoll.runtime.program.route import Route, Routes, in_words
from hpcoll.runtime.transports.host_routes import MpiRoute, RingRoute, host_routes

LOCAL_PEERS = {4: 0, 6: 2}  # of rank 5, which is local rank 1


def kinds(routes: Routes) -> list[tuple[type[Route], int]]:
    return [(type(routes[rank]), routes[rank].peer) for rank in (3, 4, 6)]


def test_host_routes() -> None:
    assert kinds(host_routes(LOCAL_PEERS)) == [(MpiRoute, 3), (RingRoute, 0), (RingRoute, 2)]
    assert kinds(host_routes({})) == [(MpiRoute, 3), (MpiRoute, 4), (MpiRoute, 6)]


@pytest.mark.parametrize("mpi_takes_gpu", [False, True])
def test_gpu_routes(mpi_takes_gpu: bool) -> None:
    by_mpi = CudaAwareRoute if mpi_takes_gpu else PinnedMpiRoute
    some = gpu_routes(LOCAL_PEERS, frozenset({6}), (True, True), mpi_takes_gpu=mpi_takes_gpu)
    assert kinds(some) == [(by_mpi, 3), (PinnedRingRoute, 0), (IpcRoute, 2)]
    # IPC announces messages in rings
    unreached = gpu_routes({}, frozenset({6}), (True, True), mpi_takes_gpu=mpi_takes_gpu)
    assert kinds(unreached) == [(by_mpi, 3), (by_mpi, 4), (by_mpi, 6)]


def test_a_peer_that_no_route_reaches() -> None:
    with pytest.raises(KeyError):
        Routes((RingRoute, LOCAL_PEERS))[3]


def test_what_messages_cost() -> None:
    """Those that stay on a node have its constants; the log names each route once."""
    routes = host_routes({1: 0, 2: 1})
    levels = Levels(Network(alpha=1e-6, beta=1e-10), Network(alpha=2e-5, beta=1e-9))
    assert [routes[peer].cost(levels).alpha for peer in (1, 3)] == [1e-6, 2e-5]
    text = in_words(routes, (1, 2, 3), levels)
    assert text == "2 get them through shared memory (1 us, 10 GB/s); 1 get them by MPI (20 us, 1 GB/s)"
    assert in_words(routes, (), levels) == "one rank"
