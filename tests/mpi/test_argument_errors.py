"""Calls that are refused on the rank that makes them, before any message: the text says what, and the communicator goes on working."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from forms import Case
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
    "orders of blocks": (
        lambda c: c.Allgather(F, np.zeros((c.size, 2, 3))),
        "need one memory order, got Fortran and C",
    ),
    "orders of a share": (
        lambda c: c.Scatter(np.zeros((c.size, 2, 3)), F, root=c.rank),
        "need one memory order, got C and Fortran",
    ),
    "root": (lambda c: c.Bcast(ones(3), root=c.size), "root must be a rank below"),
    "root of no type": (
        lambda c: c.Gather(ones(3), ones(3 * c.size), root=1.5),
        "root must be an integer, got 1.5",
    ),
    "blocks": (lambda c: c.Allgather(ones(3), ones(3 * c.size + 1)), "recvbuf needs"),
    "own block": (
        lambda c: c.Allgatherv(ones(3), [ones(2 * c.size), [2] * c.size]),
        "of recvbuf needs 24 bytes, got 16",
    ),
    "recvcounts": (lambda c: c.Reduce_scatter(ones(3), ones(3), [3] * (c.size + 1)), "recvcounts needs"),
    "sum of recvcounts": (
        lambda c: c.Reduce_scatter(ones(3 * c.size), ones(3), [2] * c.size),
        "elements sent and 2 received, got",
    ),
    "algorithm": (
        lambda c: c.Bcast(ones(3), algorithm="fast"),
        "bcast algorithm must be one of binomial, bine, tree, chain",
    ),
    "segment": (lambda c: c.Bcast(ones(3), segment=0), "segment must be at least 1 byte, got 0"),
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
    comm, wrong = communicator(), []
    for method in ("Allreduce", "Reduce", "Allgather", "Gather", "Scatter", "Alltoall"):
        case = Case(comm, method, in_place=True)
        *_, array = (one for one in case.arguments if isinstance(one, np.ndarray))
        block = array[case.count * comm.rank :][: case.count]
        own = block if method in ("Allgather", "Gather", "Scatter") else array
        given = [own if one is MPI.IN_PLACE else one for one in case.arguments]
        getattr(comm, method)(*given, algorithm=algorithm)
        wrong += unless(case.good(), case)
    ensure_none(wrong)
