"""What a newcomer sees of communicators and requests: their texts, and what a communicator is made of."""

import pickle

import numpy as np
import pytest
from mpi4py import MPI

import hpcoll

pytestmark = pytest.mark.once


class Mine(hpcoll.Communicator):
    """A communicator of a program's own."""


def test_texts_of_communicators() -> None:
    world = hpcoll.Communicator(MPI.COMM_WORLD)
    vendor, version = MPI.get_vendor()
    where = f"rank {world.rank} of {world.size}"
    library = f"{vendor} {'.'.join(map(str, version))}>"
    assert repr(world) == f"<hpcoll.Communicator MPI_COMM_WORLD: {where} on 1 node, {library}"
    half = world.Split(0)
    assert repr(half) == f"<hpcoll.Communicator: {where}, {library}", (
        "whose context its first collective makes"
    )
    half.Set_name("half")
    half.Barrier()
    assert repr(half) == f"<hpcoll.Communicator half: {where} on 1 node, {library}"
    assert repr(half.ledger).startswith("<hpcoll ledger: 1 call of 1 operation, ")
    half.Free()
    assert repr(half) == "<hpcoll.Communicator: null>"
    grid = world.Create_cart([world.size])
    assert repr(grid).startswith("<hpcoll.CartCommunicator")
    halo = hpcoll.Halo(grid, np.zeros(8))
    assert repr(halo).endswith("exchange, idle>")
    halo.free()
    assert repr(halo).endswith("exchange, freed>")
    grid.Free()


def test_texts_of_requests() -> None:
    comm = hpcoll.Communicator(MPI.COMM_WORLD).Dup()
    comm.Barrier()
    request = comm.Iallreduce(np.ones(100_000), np.empty(100_000))
    assert "of 100000 elements of float64: " in repr(request)
    request.Wait()
    assert repr(request) == "<hpcoll request of a collective: not in flight>"
    planned = comm.Allreduce_init(np.ones(3), np.empty(3))
    assert repr(planned).endswith("of 3 elements of float64: not in flight>")
    planned.Free()
    comm.Free()


def test_a_communicator_is_made_of_one() -> None:
    """mpi4py makes null ones by ``__new__`` alone, for results of its own."""
    for kind in (hpcoll.Communicator, hpcoll.CartCommunicator, Mine):
        with pytest.raises(
            hpcoll.ArgumentError,
            match=r"needs an intracommunicator, such as MPI\.COMM_WORLD, got no argument",
        ):
            kind()
    with pytest.raises(hpcoll.ArgumentError, match=r"got MPI\.COMM_NULL"):
        hpcoll.Communicator(MPI.COMM_NULL)
    null = hpcoll.Communicator.__new__(hpcoll.Communicator)
    assert null == MPI.COMM_NULL == pickle.loads(pickle.dumps(null))
    mine = Mine(MPI.COMM_WORLD)
    copied, request = mine.Idup()
    request.Wait()
    for one in (mine.Dup(), mine.Clone(), copied):
        assert type(one) is Mine
        assert one.allreduce(1) == one.size
        one.Free()
    kept = pickle.loads(pickle.dumps(mine))
    assert (type(kept), kept == MPI.COMM_WORLD) == (Mine, True)
