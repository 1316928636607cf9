"""Life of a communicator: what keeps the type, what ends it, what it shares, and that its messages never meet the application's."""

import os
import pickle
import re
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
from internals import resources
from launching import finished as finished_job
from mpi4py import MPI
from reference import communicator, ensure, fresh, works

import hpcoll
from hpcoll.base.errors import ArgumentError

pytestmark = [pytest.mark.mpi, pytest.mark.twice]


class Special(hpcoll.Communicator):
    """A user's subclass."""


DERIVED: dict[str, Any] = {
    "Dup": lambda comm: comm.Dup(),
    "Dup_with_info": lambda comm: comm.Dup_with_info(MPI.INFO_NULL),
    "Clone": lambda comm: comm.Clone(),
    "Idup": lambda comm: finished(*comm.Idup()),
    "Split": lambda comm: comm.Split(comm.rank % 2, -comm.rank),
    "Split_type": lambda comm: comm.Split_type(MPI.COMM_TYPE_SHARED),
    "Create": lambda comm: comm.Create(comm.Get_group()),
    "Create_group": lambda comm: comm.Create_group(comm.Get_group(), 3),
    "Create_cart": lambda comm: comm.Create_cart([comm.size], [True]),
}


def finished(comm: Any, request: MPI.Request) -> Any:
    request.Wait()
    return comm


@pytest.mark.smoke
@pytest.mark.parametrize("name", DERIVED)
def test_type_is_kept(name: str) -> None:
    made = DERIVED[name](communicator())
    assert isinstance(made, hpcoll.Communicator)
    ensure(works(made), name)
    made.Free()


def test_not_a_member() -> None:
    comm = communicator()
    part = comm.Split(0 if comm.rank == 0 else MPI.UNDEFINED)
    only_first = comm.Create(comm.Get_group().Incl([0]))
    assert (part != MPI.COMM_NULL) == (only_first != MPI.COMM_NULL) == (comm.rank == 0)
    for made in (part, only_first):
        if made != MPI.COMM_NULL:
            assert works(made)
            made.Free()


def test_refused() -> None:
    remote = (
        MPI.COMM_SELF.Create_intercomm(0, MPI.COMM_WORLD, (MPI.COMM_WORLD.rank + 1) % 2, 9)
        if MPI.COMM_WORLD.size == 2
        else None
    )
    for comm in (
        MPI.COMM_NULL,
        MPI.INTERCOMM_NULL if hasattr(MPI, "INTERCOMM_NULL") else None,
        None,
        3,
        remote,
    ):
        with pytest.raises(ArgumentError, match="Communicator needs an intracommunicator, "):
            hpcoll.Communicator(comm)
    if remote is not None:
        remote.Free()


@pytest.mark.parametrize("by_mpi", [False, True])
def test_freed(by_mpi: bool) -> None:
    """Freed through the Communicator or through the MPI handle that it was made from: an error, not a crash."""
    original = MPI.COMM_WORLD.Dup()
    comm = hpcoll.Communicator(original)
    assert works(comm)
    (original if by_mpi else comm).Free()
    calls = (lambda: comm.Allreduce(MPI.IN_PLACE, np.ones(3)), lambda: comm.Bcast(np.ones(3)), comm.Barrier)
    later = (
        lambda: comm.Iallreduce(MPI.IN_PLACE, np.ones(3)),
        lambda: comm.Allreduce_init(MPI.IN_PLACE, np.ones(3)),
    )
    for call in (*calls, *later):
        with pytest.raises(
            ArgumentError, match=r"^rank \d: this communicator cannot be used: the communicator was freed$"
        ):
            call()


def test_two_over_one_share_the_context() -> None:
    base = MPI.COMM_WORLD.Dup()
    one, other = hpcoll.Communicator(base), hpcoll.Communicator(base)
    assert one.ledger is other.ledger
    assert base.Dup() != base
    assert hpcoll.Communicator(one.Dup()).ledger is not one.ledger
    base.Free()


@pytest.mark.parametrize("algorithm", ["direct", "recursive_doubling"])
def test_messages_of_the_application(algorithm: str, way: str) -> None:
    """An open receive for anything gets the application's message, none of ours; one sent before is still there after."""
    comm = fresh()
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    early = comm.isend("early", right, tag=0)
    box = np.zeros(1000, np.uint8)
    status = MPI.Status()
    assert works(comm)
    assert comm.recv(source=left, tag=0) == "early"
    early.wait()
    comm.Barrier()
    anything = comm.Irecv(box, MPI.ANY_SOURCE, MPI.ANY_TAG)
    assert works(comm)
    assert works(comm.Split(0, -comm.rank))
    total = np.zeros(8)
    request = comm.Allreduce_init(np.ones(8), total, algorithm=algorithm)
    if comm.rank == 0:
        time.sleep(0.4)  # the others wait and ask, by messages
    for run in (
        lambda: comm.Iallreduce(np.ones(8), total, algorithm=algorithm).Wait(),
        lambda: (request.Start(), request.Wait()),
    ):
        total[:] = 0
        run()
        assert (total == comm.size).all()
    taken = anything.Test()
    comm.Barrier(algorithm="dissemination")
    comm.Send(np.full(3, 7, np.uint8), right, tag=5)
    anything.Wait(status)
    found = (taken, status.Get_count(), status.tag, box[:4].tolist())
    ensure(found == (False, 3, 5, [7, 7, 7, 0]), found)


def test_threads() -> None:
    """A thread waits inside a collective; a second collective on the same communicator is refused, on another one it works."""
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE or MPI.COMM_WORLD.size < 2:
        pytest.skip("needs two ranks and MPI.THREAD_MULTIPLE")
    comm, other = communicator().Dup(), communicator().Dup()
    x = np.ones(3)
    assert works(comm)  # a communicator's first collective waits for all its ranks
    if comm.rank == 0:
        inside = threading.Thread(target=lambda: comm.Allreduce(MPI.IN_PLACE, x, algorithm="direct"))
        inside.start()
        while not resources(comm).lock[0]:
            pass
        why = "rank 0: another thread is inside a collective on this communicator: give each thread its own Dup()"
        with pytest.raises(ArgumentError, match=f"^{re.escape(why)}$"):
            comm.Allreduce(MPI.IN_PLACE, np.ones(3), algorithm="direct")
    assert works(other)  # the others come to the first collective after this
    if comm.rank == 0:
        inside.join()
    else:
        comm.Allreduce(MPI.IN_PLACE, x, algorithm="direct")
    assert x.tolist() == [comm.size] * 3
    comm.Free()
    other.Free()


def test_fork() -> None:
    """Calls are refused in the child, and so are waits for what is in flight; the parent goes on."""
    comm, total = communicator(), np.zeros(100_000)
    running = comm.Barrier_init()
    request = comm.Iallreduce(np.ones(100_000), total)
    child = os.fork()
    if child == 0:
        refused = 0
        new = (lambda: comm.Allreduce(MPI.IN_PLACE, np.ones(3)), comm.Ibarrier, comm.Barrier_init)
        for call in (*new, running.Start, request.Wait, request.Test):
            try:
                call()
            except ArgumentError as error:
                refused += "this process is a fork: MPI belongs to its parent" in str(error)
        os._exit(40 + refused)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    request.Wait()
    ensure(status == 46 and (total == comm.size).all() and works(comm), status)


SCRIPT = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
import hpcoll, numpy
def refusal(call):
    try:
        call()
    except hpcoll.ArgumentError as error:
        print(error)
refusal(lambda: hpcoll.Communicator(MPI.COMM_WORLD))
refusal(lambda: hpcoll.Communicator.Create_from_group(MPI.GROUP_NULL))
MPI.Init()
freed = hpcoll.Communicator(MPI.COMM_WORLD.Dup())
freed.Barrier()
freed.Free()
refusal(freed.recover)
comm = hpcoll.Communicator(MPI.COMM_WORLD)
again = lambda: comm.Allreduce(MPI.IN_PLACE, numpy.ones(3), algorithm="ring")
again(), again()
MPI.Finalize()
refusal(again)
refusal(comm.recover)
refusal(lambda: hpcoll.Communicator(MPI.COMM_WORLD))
"""


@pytest.mark.once
def test_before_and_after_mpi() -> None:
    """In a process of its own, outside this job."""
    if MPI.COMM_WORLD.rank:
        return
    done = finished_job([sys.executable, "-c", SCRIPT], {})
    missing = "Communicator cannot be made: MPI is not initialised: call MPI.Init_thread(); communicators of sessions can be used then, too"
    assert done.stdout.splitlines() == [
        missing,
        missing,
        "rank 0: this communicator cannot be recovered: the communicator was freed",
        "rank 0: this communicator cannot be used: MPI is finalised",
        "rank 0: this communicator cannot be recovered: MPI is finalised",
        "Communicator cannot be made: MPI is finalised",
    ], done.stderr
    assert done.returncode == 0


class Mine(hpcoll.Communicator):
    """A communicator of a program's own."""


@pytest.mark.once
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


@pytest.mark.once
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


@pytest.mark.once
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
