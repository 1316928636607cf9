"""A Communicator does with unusual arguments what mpi4py's own communicators do."""

import pickle
import weakref
from time import sleep
from typing import Any

import numpy as np
import pytest
from forms import COLLECTIVE, Case, blocking, issue, prepare
from memory_kinds import Cai, describe
from mpi4py import MPI
from reference import communicator, ensure

import hpcoll
from hpcoll.comm.arguments.buffers import resolve

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("form", [issue, prepare, None], ids=["in flight", "persistent", "blocking"])
@pytest.mark.parametrize("method", [name for name in COLLECTIVE if name not in ("Bcast", "Barrier")])
def test_none_is_in_place(method: str, form: Any) -> None:
    comm = communicator()
    case = Case(comm, method, root=comm.size - 1, in_place=True)
    case.arguments = tuple(None if one is MPI.IN_PLACE else one for one in case.arguments)
    request = form(comm, case) if form else blocking(comm, case)
    if form is prepare:
        request.Start()
    if form:
        request.Wait()
    ensure(case.good(), case)


class Lender:
    """Lends memory that goes with the capsule."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self) -> Any:  # as before DLPack 1.0
        memory = np.full(3, 7.0)
        self.memory = weakref.ref(memory)
        self.capsule = memory.__dlpack__()
        return self.capsule


def test_lent_memory_is_kept_and_not_consumed() -> None:
    lender = Lender()
    described = describe(lender, writable=True)
    assert '"dltensor"' in repr(lender.capsule)
    del lender.capsule
    assert isinstance(described.owner, np.ndarray)
    assert described.owner.tolist() == [7.0] * 3
    del described
    assert lender.memory() is None


X = np.zeros(4)
FROZEN = np.zeros(4)
FROZEN.flags.writeable = False


class Malformed:
    """Exports something that is no CUDA array interface."""

    def __init__(self, interface: Any) -> None:
        self.__cuda_array_interface__ = interface


BAD: dict[str, Any] = {
    "no memory": 5,
    "list": [[1, 2], 4, "d"],
    "none": None,
    "count of float": [X, 1.5, MPI.DOUBLE],
    "negative count": [X, -1, "d"],
    "displacement": [X, 0, 9, "d"],
    "type": [X, 4, 5],
    "objects": np.array([None] * 4),
    "strided": np.zeros(8)[::2],
    "byte order": np.zeros(4, ">f8"),
    "read-only": FROZEN,
    "interface is a list": Malformed([1, 2]),
    "no pointer": Cai(X, data=(None, False)),
    "shape": Cai(X, shape=4),
    "typestr": Cai(X, typestr=5),
    "mask": Cai(X, mask=1),
}


@pytest.mark.once
@pytest.mark.parametrize("name", BAD)
def test_errors_are_those_of_mpi4py_too(name: str) -> None:
    """Bad buffers of this rank alone: nobody is waited for."""
    comm, bad = hpcoll.Communicator(MPI.COMM_SELF), BAD[name]
    with pytest.raises((ValueError, TypeError, BufferError, KeyError)) as theirs:
        MPI.COMM_SELF.Allreduce(X, bad)
    for call in (
        lambda: comm.Allreduce(X, bad),
        lambda: comm.Allreduce_init(X, bad),
        lambda: comm.Iallreduce(X, bad),
    ):
        with pytest.raises(theirs.type):
            call()


@pytest.mark.parametrize("algorithm", [None, "direct", "native"])
def test_derived_datatype_beyond_declared_memory(algorithm: str | None) -> None:
    """The even ranks declare less memory than the type walks; all ranks have it."""
    comm, column = communicator(), MPI.DOUBLE.Create_vector(4, 1, 4).Commit()
    matrix, everybody = np.arange(16.0) + 100 * comm.rank, np.zeros(4 * comm.size)
    declared = MPI.memory.fromaddress(matrix.ctypes.data, 8 * (13 if comm.rank % 2 else 2))
    comm.Allgather([declared, 1, column], everybody, algorithm=algorithm)
    right = everybody.tolist() == [100 * rank + i for rank in range(comm.size) for i in (0, 4, 8, 12)]
    comm.Bcast([declared, 1, column], algorithm=algorithm)
    right &= matrix[::4].tolist() == [0, 4, 8, 12] and matrix[1] == 100 * comm.rank + 1
    column.Free()
    ensure(right, (everybody, matrix))


def test_elements_of_2_gib_are_the_librarys() -> None:
    huge = MPI.BYTE.Create_contiguous(2**31).Commit()
    assert resolve([np.zeros(1), 0, huge], name="buf", rank=3) is None
    communicator().Bcast([np.zeros(1), 0, huge])
    huge.Free()


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> hpcoll.Communicator:
    """A Communicator in the place of ``MPI.COMM_WORLD``."""
    comm = hpcoll.Communicator(MPI.COMM_WORLD)
    monkeypatch.setattr(MPI, "COMM_WORLD", comm)
    return comm


def test_replaced_world_is_pickled_by_name(replaced: hpcoll.Communicator) -> None:
    assert pickle.loads(pickle.dumps(replaced)) is replaced
    plain = MPI.Intracomm(replaced)
    again = pickle.loads(pickle.dumps(plain))
    assert (again == plain, again is plain, type(again)) == (True, False, MPI.Intracomm)
    with pytest.raises(ValueError, match=r"cannot (pickle|serialize)"):
        pickle.dumps(MPI.Intracomm(replaced.Split(0)))


def test_plain_constants_are_pickled_as_before() -> None:
    for comm in (MPI.COMM_WORLD, MPI.COMM_SELF):
        assert pickle.loads(pickle.dumps(comm)) is comm
    assert pickle.loads(pickle.dumps(MPI.Intracomm())) == MPI.COMM_NULL


def test_null_communicator() -> None:
    kind = type(communicator())
    comm = kind.__new__(kind)  # as mpi4py makes the result of Idup
    assert (comm == MPI.COMM_NULL, bool(comm)) == (True, False)
    assert pickle.loads(pickle.dumps(comm)) == MPI.COMM_NULL
    comm.free()
    with pytest.raises(hpcoll.ArgumentError, match="cannot be used"):
        comm.Barrier()


def test_handles_keep_the_type() -> None:
    comm = communicator()
    grid = comm.Create_cart([comm.size])
    for one in (comm, grid):
        again = type(one).fromhandle(one.handle)
        assert (again == one, type(again)) == (True, type(one))
    again.Barrier()
    assert type(comm).fromhandle(MPI.COMM_NULL.handle) == MPI.COMM_NULL
    grid.free()
    assert not grid


def test_what_stands_for_a_constant_is_not_freed() -> None:
    comm = hpcoll.Communicator(MPI.COMM_WORLD)
    comm.free()
    assert comm
    second = type(comm)(comm)
    second.free()
    assert (bool(second), bool(comm)) == (False, True)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("form", ["blocking", "wait", "test"])
def test_what_waits_moves_the_librarys_messages(form: str) -> None:
    """Rank 0 comes late, because its message ends only when rank 1, which is in the barrier by then, calls the MPI library."""
    comm, message = communicator(), np.full(1 << 21, MPI.COMM_WORLD.rank + 1.0)
    comm.Barrier()
    received = MPI.Intracomm(comm).Irecv(message, 0) if comm.rank == 1 else None
    if comm.rank == 0:
        sleep(0.2)
        MPI.Intracomm(comm).Send(message, 1)
    if form == "blocking":
        comm.Barrier(algorithm="dissemination")
    else:
        request = comm.Ibarrier(algorithm="dissemination")
        while form == "test" and not request.Test():
            pass
        request.Wait()
    if received is not None:
        received.Wait()
    ensure(comm.rank != 1 or message[-1] == 1, message)


@pytest.mark.mpi(min_size=2)
def test_a_barrier_lets_others_access_windows() -> None:
    comm = communicator()
    window = MPI.Win.Allocate(8, comm=comm)
    for turn in range(comm.size):
        if turn == comm.rank:
            target = (turn + 1) % comm.size
            window.Lock(target)
            window.Flush(target)
            window.Unlock(target)
        comm.Barrier()
    window.Free()
