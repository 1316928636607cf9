"""A call like an earlier one takes the quick way; what changed since, or only looks alike, gets what a first call would get."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from reference import communicator, ensure_none, unless

import hpcoll
from hpcoll.base.errors import ArgumentError

pytestmark = pytest.mark.mpi
COUNT = 6
ALGORITHMS = [*hpcoll.algorithms("allreduce"), "native"]


def warm(comm: Any, algorithm: str, *, in_place: bool = False) -> tuple[Any, Any]:
    """Arrays with which the quick way has been taken."""
    x, y = np.full(COUNT, comm.rank + 1.0), np.zeros(COUNT)
    for _ in range(3):
        y[:] = comm.rank + 1
        comm.Allreduce(MPI.IN_PLACE if in_place else x, y, algorithm=algorithm)
    assert (y == total(comm)).all()
    return x, y


def total(comm: Any) -> float:
    return comm.size * (comm.size + 1) / 2


def shaped(x: Any, y: Any) -> tuple[Any, Any]:
    x.shape = y.shape = (2, 3)
    return x, y


def shaped_apart(x: Any, y: Any) -> tuple[Any, Any]:
    x.shape, y.shape = (3, 2), (1, 6, 1)
    return x, y


def resized(x: Any, y: Any) -> tuple[Any, Any]:
    """Longer, elsewhere in memory."""
    rank = x[0]
    x.resize(5000, refcheck=False)
    y.resize(5000, refcheck=False)
    x[:] = rank
    return x, y


def retyped(x: Any, y: Any) -> tuple[Any, Any]:
    """Twice as many elements of half the size."""
    rank = x[0]
    x.dtype = y.dtype = np.float32
    x[:], y[:] = rank, 0
    return x, y


class Marked(np.ndarray):
    """A subclass."""


CHANGES: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "shape": shaped,
    "shapes": shaped_apart,
    "resize": resized,
    "dtype": retyped,
    "longer": lambda x, y: (np.tile(x, 3), np.tile(y, 3)),
    "empty": lambda x, y: (x[:0], y[:0]),
    "no dimensions": lambda x, y: (x[:1].reshape(()), y[:1].reshape(())),
    "subclass": lambda x, y: (x.view(Marked), y.view(Marked)),
    "integers": lambda x, y: (x.astype(np.int32), y.astype(np.int32)),
    "complex": lambda x, y: (x.astype(np.complex64), y.astype(np.complex64)),
    "halves": lambda x, y: (x.astype(np.float16), y.astype(np.float16)),
    "own dtype": lambda x, y: (x.view(np.dtype("f8").newbyteorder("=")), y),
    "two names of a type": lambda x, y: (x.astype("l"), y.astype("q")),
    "Fortran order": lambda x, y: (np.asfortranarray(x.reshape(2, 3)), np.asfortranarray(y.reshape(2, 3))),
    "one memory": lambda x, y: (x, x),
    "two views of one memory": lambda x, y: (x[:], x[:]),
    "read-only input": lambda x, y: (frozen(x), y),
    "part of something": lambda x, y: (np.tile(x, 2)[3:9], np.tile(y, 2)[3:9]),
    "memoryview": lambda x, y: (memoryview(x), memoryview(y)),
    "list": lambda x, y: ([x, MPI.DOUBLE], [y, 6, MPI.DOUBLE]),
    "unaligned": lambda x, y: (unaligned(x), unaligned(y)),
}


def frozen(x: Any) -> Any:
    x.flags.writeable = False
    return x


def unaligned(x: Any) -> Any:
    y = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype)
    y[:] = x
    return y


def array_of(spec: Any) -> Any:
    return np.asarray(spec[0] if isinstance(spec, list) else spec)


@pytest.mark.parametrize("algorithm", ["direct", "native"])
def test_changed(algorithm: str) -> None:
    """Out of place, then in place, then as before the change; one table sees all changes."""
    comm, wrong = communicator().Dup(), []
    for name, change in CHANGES.items():
        if algorithm == "native" and name in ("two names of a type", "unaligned"):
            continue  # mpi4py refuses these
        send, recv = change(*warm(comm, algorithm))
        for _ in range(3):
            array_of(recv)[...] = comm.rank + 1 if "one memory" in name else 0
            comm.Allreduce(send, recv, algorithm=algorithm)
            wrong += unless((array_of(recv) == total(comm)).all(), (name, array_of(recv)))
        for _ in range(2):
            array_of(recv)[...] = comm.rank + 1
            comm.Allreduce(MPI.IN_PLACE, recv, algorithm=algorithm)
            wrong += unless((array_of(recv) == total(comm)).all(), (name, "in place", array_of(recv)))
        x, y = np.full(COUNT, comm.rank + 1.0), np.zeros(COUNT)
        comm.Allreduce(x, y, algorithm=algorithm)
        wrong += unless((y == total(comm)).all() and (x == comm.rank + 1).all(), (name, "as before"))
    comm.Free()
    ensure_none(wrong)


def test_one_memory_first() -> None:
    """A call with one array as both buffers is in place; the same shapes with two arrays are not."""
    comm, wrong = communicator().Dup(), []
    for algorithm in ALGORITHMS:
        both = np.full(1009, comm.rank + 1.0)
        comm.Allreduce(both, both, algorithm=algorithm)
        x, y = np.full(1009, comm.rank + 1.0), np.full(1009, -5.0)
        comm.Allreduce(x, y, algorithm=algorithm)
        wrong += unless(
            (both == total(comm)).all() and (y == total(comm)).all() and (x == comm.rank + 1).all(), algorithm
        )
    comm.Free()
    ensure_none(wrong)


REFUSED: dict[str, tuple[Callable[[Any, Any], tuple[Any, Any]], str]] = {
    "read-only": (lambda x, y: (x, frozen(y)), "recvbuf must be writable, got a read-only ndarray"),
    "every second": (lambda x, y: (np.tile(x, 2)[::2], y), "sendbuf must be contiguous"),
    "every second of the result": (lambda x, y: (x, np.tile(y, 2)[::2]), "recvbuf must be contiguous"),
    "byte order": (lambda x, y: (x.astype(">f8"), y), "sendbuf needs native numbers, got dtype >f8"),
    "byte order of the result": (
        lambda x, y: (x, y.view(">f8")),
        "recvbuf needs native numbers, got dtype >f8",
    ),
    "overlap": (lambda x, y: (lapping(x)[:6], lapping(x)[2:]), "must be the same memory or share none"),
    "overlap by one": (lambda x, y: two_of(np.zeros(11)), "must be the same memory or share none"),
    "shorter": (lambda x, y: (x, y[:5]), "recvbuf needs 6 elements of float64, got 5"),
    "longer": (lambda x, y: (x, np.zeros(7)), "recvbuf needs 6 elements of float64, got 7"),
    "shorter input": (lambda x, y: (x[:5], y), "recvbuf needs 5 elements of float64, got 6"),
    "other type": (lambda x, y: (x, y.view(np.int64)), "recvbuf needs 6 elements of float64, got 6 of int64"),
    "orders": (lambda x, y: (x.reshape(2, 3), np.asfortranarray(y.reshape(2, 3))), "need one memory order"),
    "None": (lambda x, y: (x, None), "recvbuf needs a buffer, got None"),
}
_LAPPING = np.zeros(8)


def lapping(x: Any) -> Any:
    return _LAPPING


def two_of(x: Any) -> tuple[Any, Any]:
    return x[:6], x[5:]


@pytest.mark.parametrize("algorithm", ["direct", "native"])
def test_refused(algorithm: str) -> None:
    """In the words of a first call, and the next right one goes on."""
    comm, fresh = communicator().Dup(), communicator().Dup()
    for change, text in REFUSED.values():
        send, recv = change(*warm(comm, algorithm))
        for one in (comm, comm, fresh):
            with pytest.raises(ArgumentError, match=re.escape(text)):
                one.Allreduce(send, recv, algorithm=algorithm)
    warm(comm, algorithm)
    comm.Free()
    fresh.Free()


def test_read_only_where_nothing_is_stored() -> None:
    """The root of a broadcast and everybody who only sends."""
    comm = communicator().Dup()
    n, wrong = comm.size, []
    for _ in range(4):
        x = np.full(3, comm.rank + 1.0)
        if comm.rank == 0:
            x.flags.writeable = False
        comm.Bcast(x, algorithm="direct")
        wrong += unless((x == 1).all(), "bcast")
        given, found = frozen(np.full(3, comm.rank + 1.0)), np.zeros(3 * n)
        comm.Reduce(given, found[:3] if comm.rank == 0 else None, algorithm="direct")
        wrong += unless(comm.rank or (found[:3] == total(comm)).all(), "reduce")
        comm.Gather(given, found if comm.rank == 0 else None, algorithm="direct")
        wrong += unless(comm.rank or found.tolist() == np.repeat(np.arange(n) + 1.0, 3).tolist(), "gather")
    comm.Free()
    ensure_none(wrong)


def test_blocks_around_what_is_sent() -> None:
    """What is sent may lie between the blocks that are received, but not in one of them."""
    comm = communicator()
    memory = np.zeros(2 * COUNT * comm.size + COUNT)
    counts, displs = [COUNT] * comm.size, [2 * COUNT * rank for rank in range(comm.size)]
    spec = [memory, (counts, displs)]
    for value in range(3):
        memory[COUNT : 2 * COUNT] = mine = value * comm.size + comm.rank
        comm.Allgatherv(memory[COUNT : 2 * COUNT], spec)
        assert (memory[COUNT : 2 * COUNT] == mine).all()
        assert [set(memory[at : at + COUNT]) for at in displs] == [
            {value * comm.size + rank} for rank in range(comm.size)
        ]
    with pytest.raises(ArgumentError, match="partial overlap"):
        comm.Allgatherv(memory[COUNT - 1 : 2 * COUNT - 1], spec)
