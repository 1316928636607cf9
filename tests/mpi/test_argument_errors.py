"""Calls that are refused on the rank that makes them, before any message: the text says what, and the communicator goes on working."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from reference import agreed, communicator

import hpcoll
from hpcoll.base.errors import ArgumentError

pytestmark = [pytest.mark.mpi, pytest.mark.once]

Comm = hpcoll.Communicator


def ones(count: int, dtype: Any = float) -> Any:
    return np.ones(count, dtype)


def frozen(count: int) -> Any:
    x = ones(count)
    x.flags.writeable = False
    return x


C, F = np.zeros((2, 3)), np.zeros((2, 3), order="F")
ALONE = "only the MPI library can serve this call"
REFUSED: dict[str, tuple[Callable[[Comm], Any], str]] = {
    "short": (
        lambda c: c.Allreduce(ones(4), ones(3)),
        "recvbuf needs 4 elements of float64, got 3 of float64",
    ),
    "long": (
        lambda c: c.Allreduce(ones(4), ones(5)),
        "recvbuf needs 4 elements of float64, got 5 of float64",
    ),
    "other type": (
        lambda c: c.Scan(ones(4), ones(4, int)),
        "recvbuf needs 4 elements of float64, got 4 of int64",
    ),
    "read-only": (
        lambda c: c.Allreduce(ones(4), frozen(4)),
        "recvbuf must be writable, got a read-only ndarray",
    ),
    "read-only again": (
        lambda c: c.Allreduce(MPI.IN_PLACE, frozen(3)),
        "recvbuf must be writable, got a read-only ndarray",
    ),
    "strides": (
        lambda c: c.Allreduce(MPI.IN_PLACE, ones(8)[::2]),
        "recvbuf must be contiguous, got strides (16,) for shape (4,) float64",
    ),
    "orders": (
        lambda c: c.Allreduce(C, F),
        "sendbuf of shape (2, 3) and recvbuf of shape (2, 3) need one memory order, got C and Fortran",
    ),
    "orders of blocks": (
        lambda c: c.Allgather(F, np.zeros((c.size, 2, 3))),
        "need one memory order, got Fortran and C",
    ),
    "orders of many rows": (
        lambda c: c.Gather(F, np.zeros((c.size * 2, 3)), root=c.rank),
        "need one memory order, got Fortran and C",
    ),
    "orders of a share": (
        lambda c: c.Scatter(np.zeros((c.size, 2, 3)), F, root=c.rank),
        "need one memory order, got C and Fortran",
    ),
    "overlap": (
        lambda c: overlapping(c),
        "sendbuf and recvbuf must be the same memory or share none, got a partial overlap",
    ),
    "root": (lambda c: c.Bcast(ones(3), root=c.size), "root must be a rank below"),
    "negative root": (lambda c: c.Reduce(ones(3), ones(3), root=-1), "root must be a rank below"),
    "root of no type": (
        lambda c: c.Gather(ones(3), ones(3 * c.size), root=1.5),
        "root must be an integer, got 1.5",
    ),
    "count": (lambda c: c.Bcast([ones(3), 4, MPI.DOUBLE]), "buf needs 4 elements of float64, got 3"),
    "blocks": (lambda c: c.Allgather(ones(3), ones(3 * c.size + 1)), "recvbuf needs"),
    "no shares": (lambda c: c.Alltoall(ones(c.size), ones(2 * c.size)), "recvbuf needs"),
    "own block": (
        lambda c: c.Allgatherv(ones(3), [ones(2 * c.size), [2] * c.size]),
        "of recvbuf needs 24 bytes, got 16",
    ),
    "counts": (lambda c: c.Allgatherv(ones(3), [ones(3), [3] * (c.size + 1)]), "recvbuf needs"),
    "recvcounts": (lambda c: c.Reduce_scatter(ones(3), ones(3), [3] * (c.size + 1)), "recvcounts needs"),
    "sum of recvcounts": (
        lambda c: c.Reduce_scatter(ones(3 * c.size), ones(3), [2] * c.size),
        "elements sent and 2 received, got",
    ),
    "objects": (
        lambda c: c.Bcast(np.array([None])),
        "buf needs numbers, got Python objects (dtype object): use the lower-case method",
    ),
    "byte order": (lambda c: c.Bcast(ones(3, ">f8")), "buf needs native numbers, got dtype >f8"),
    "nothing": (lambda c: c.Bcast(None), "buf needs a buffer, got None"),
    "algorithm": (
        lambda c: c.Bcast(ones(3), algorithm="fast"),
        "bcast algorithm must be one of binomial, bine, tree, chain",
    ),
    "root where there is none": (
        lambda c: c.Allreduce(ones(3), ones(3), MPI.SUM, 0),
        "allreduce algorithm must be one of ring",
    ),
    "segment": (lambda c: c.Bcast(ones(3), segment=0), "segment must be at least 1 byte, got 0"),
    "segment text": (lambda c: c.Bcast(ones(3), segment="many"), "'many'"),
    "unfit": (
        lambda c: c.Alltoallv(uneven(c), uneven(c), algorithm="bruck"),
        "bruck cannot serve this call: it needs equal blocks",
    ),
    "no algorithm": (
        lambda c: c.Allreduce(ones(3, "g"), ones(3, "g"), algorithm="ring"),
        f"{ALONE}, got algorithm='ring'",
    ),
    "native": (
        lambda c: c.Allreduce(ones(3), ones(3), hpcoll.AVG, algorithm="native"),
        "allreduce/native cannot serve this call",
    ),
}


def uneven(comm: Comm) -> list[Any]:
    return [ones(comm.size), [1] * comm.size]


def overlapping(comm: Comm) -> None:
    x = ones(5)
    comm.Allreduce(x[:4], x[1:])


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    comm = communicator()
    call, text = REFUSED[name]
    for _ in range(2):  # what was refused once is refused again
        with pytest.raises(ArgumentError, match=re.escape(text)) as caught:
            call(comm)
        buffer_is_wrong = (
            "algorithm" not in name and "segment" not in name and name not in ("native", "unfit")
        )
        assert str(caught.value).startswith(f"rank {comm.rank}: ") or not buffer_is_wrong
    x = ones(4)
    comm.Allreduce(MPI.IN_PLACE, x, algorithm="direct")
    assert agreed([] if x.tolist() == [comm.size] * 4 else [x]) == []


def test_refused_after_a_good_one_of_the_same_shape() -> None:
    """The quick way for repeated calls looks at the buffers, too."""
    comm = communicator()
    x, y, both = ones(4), ones(4), ones(7)
    for _ in range(3):
        comm.Allreduce(x, y, algorithm="direct")
    for send, recv, text in (
        (x, frozen(4), "must be writable"),
        (x, ones(8)[::2], "contiguous"),
        (both[:4], both[3:], "overlap"),
    ):
        with pytest.raises(ArgumentError, match=text):
            comm.Allreduce(send, recv, algorithm="direct")
    comm.Allreduce(both[:4], both[:4], algorithm="direct")  # the same memory is in place
    assert both.tolist() == [comm.size] * 4 + [1] * 3
    comm.Allreduce(np.asfortranarray(C), F, algorithm="direct")


def test_in_place_is_the_roots() -> None:
    comm = communicator()
    if comm.size == 1:
        pytest.skip("needs a rank that is not the root")
    if comm.rank:
        for call in (
            lambda: comm.Reduce(MPI.IN_PLACE, None),
            lambda: comm.Gather(MPI.IN_PLACE, None),
            lambda: comm.Gatherv(MPI.IN_PLACE, None),
            lambda: comm.Scatter(None, MPI.IN_PLACE),
            lambda: comm.Scatterv(None, MPI.IN_PLACE),
        ):
            with pytest.raises(
                ArgumentError,
                match=rf"^rank {comm.rank}: only the root .*may pass MPI.IN_PLACE as (send|recv)buf$",
            ):
                call()
    comm.Barrier()


@pytest.mark.parametrize("algorithm", [None, "native", "direct"])
def test_same_memory_is_in_place(algorithm: str | None) -> None:
    """The MPI library refuses one buffer given twice; whoever serves the call, it is in place."""
    comm = communicator()
    n, rank = comm.size, comm.rank
    total = n * (n + 1) / 2
    wrong = []
    x = np.full(n, rank + 1.0)
    comm.Allreduce(x, x, algorithm=algorithm)
    wrong += [] if (x == total).all() else ["allreduce"]
    x = np.full(n, rank + 1.0)
    comm.Reduce(x, x, algorithm=algorithm)
    wrong += [] if (x == (total if rank == 0 else rank + 1)).all() else ["reduce"]
    x = np.full(n, float(rank))
    comm.Allgather(x[rank : rank + 1], x, algorithm=algorithm)
    wrong += [] if x.tolist() == list(range(n)) else ["allgather"]
    x = np.full(n, float(rank))
    comm.Gatherv(x[rank : rank + 1], [x, [1] * n], algorithm=algorithm)
    wrong += [] if x.tolist() == (list(range(n)) if rank == 0 else [rank] * n) else ["gatherv"]
    x = np.arange(float(n)) + n * rank
    comm.Scatter(x, x[:1], algorithm=algorithm)
    wrong += [] if x[0] == rank else ["scatter"]
    x = np.arange(float(n)) + n * rank
    comm.Alltoall(x, x, algorithm=algorithm)
    wrong += [] if x.tolist() == [rank + n * peer for peer in range(n)] else ["alltoall"]
    assert agreed(wrong) == []
