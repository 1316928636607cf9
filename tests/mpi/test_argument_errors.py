"""Calls that are refused on the rank that makes them, before any message: the text says what, and the communicator goes on working."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from reference import communicator, ensure, ensure_none, unless

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
    "other type": (
        lambda c: c.Scan(ones(4), ones(4, int)),
        "recvbuf needs 4 elements of float64, got 4 of int64",
    ),
    "read-only again": (
        lambda c: c.Allreduce(MPI.IN_PLACE, frozen(3)),
        "recvbuf must be writable, got a read-only ndarray",
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
    "nothing": (lambda c: c.Bcast(None), "buf needs a buffer, got None"),
    "algorithm": (
        lambda c: c.Bcast(ones(3), algorithm="fast"),
        "bcast algorithm must be one of binomial, bine, tree, chain",
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
    ensure(x.tolist() == [comm.size] * 4, x)


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
    wrong += unless((x == total).all(), "allreduce")
    x = np.full(n, rank + 1.0)
    comm.Reduce(x, x, algorithm=algorithm)
    wrong += unless((x == (total if rank == 0 else rank + 1)).all(), "reduce")
    x = np.full(n, float(rank))
    comm.Allgather(x[rank : rank + 1], x, algorithm=algorithm)
    wrong += unless(x.tolist() == list(range(n)), "allgather")
    x = np.full(n, float(rank))
    comm.Gatherv(x[rank : rank + 1], [x, [1] * n], algorithm=algorithm)
    wrong += unless(x.tolist() == (list(range(n)) if rank == 0 else [rank] * n), "gatherv")
    x = np.arange(float(n)) + n * rank
    comm.Scatter(x, x[:1], algorithm=algorithm)
    wrong += unless(x[0] == rank, "scatter")
    x = np.arange(float(n)) + n * rank
    comm.Alltoall(x, x, algorithm=algorithm)
    wrong += unless(x.tolist() == [rank + n * peer for peer in range(n)], "alltoall")
    ensure_none(wrong)
