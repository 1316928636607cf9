"""The right results of collectives, by NumPy, from contributions that every rank can compute; and the communicators that tests run on."""

import time
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
import pytest
from internals import free_kept, resources
from mpi4py import MPI
from slowness import slowed

import hpcoll

Array = np.ndarray[Any, Any]
GUARD = 9  # elements on either side of a receive buffer that nobody may touch
UNTOUCHED = 77
COLLECTIVES = {
    "allreduce": "Allreduce",
    "reduce": "Reduce",
    "reduce_scatter": "Reduce_scatter_block",
    "scan": "Scan",
    "exscan": "Exscan",
    "bcast": "Bcast",
    "allgather": "Allgather",
    "gather": "Gather",
    "scatter": "Scatter",
    "alltoall": "Alltoall",
}
ROOTED = ("reduce", "bcast", "gather", "scatter")
ALGORITHMS = [
    (collective, name) for collective in COLLECTIVES for name in (*hpcoll.algorithms(collective), "native")
]
REPRESENTATIVE = {  # one for each thing that schedules ask of the engine
    "allreduce/ring",
    "allreduce/double_tree",
    "allreduce/recursive_doubling",
    "allreduce/hierarchical",
    "reduce_scatter/direct",
    "allgather/circulant",
    "gather/binomial",
    "alltoall/bruck",
}
REDUCING = ("allreduce", "reduce", "reduce_scatter", "scan", "exscan")
REDUCTIONS = [
    (collective, name) for collective, name in ALGORITHMS if collective in REDUCING and name != "native"
]


# most seconds for what is promised in about one: other programs may use the cores, and what would hang hangs for ever
SOON_S = slowed(15)


def representative(cases: Iterable[tuple[str, str]]) -> list[Any]:
    """Collectives and algorithms for `parametrize`, of which the short run has a few: the engine knows no names."""
    return [
        case if "/".join(case) in REPRESENTATIVE else pytest.param(*case, marks=pytest.mark.full)
        for case in cases
    ]


@cache
def communicator(name: str = "world") -> hpcoll.Communicator:
    """The world, this rank alone, or all ranks in reverse order; the first call for a name is collective."""
    if name == "self":
        return hpcoll.Communicator(MPI.COMM_SELF)
    world = hpcoll.Communicator(MPI.COMM_WORLD)
    return world.Split(0, -world.rank) if name == "reversed" else world


def fresh() -> hpcoll.Communicator:
    """A duplicate of the world that has nothing of others, freed or yet to come, with settings as they are now; collective."""
    free_kept()
    return hpcoll.Communicator(MPI.COMM_WORLD.Dup())


def works(comm: MPI.Intracomm) -> bool:
    """Say whether a sum and a broadcast from the last rank are right, by an algorithm of ours."""
    x, y = np.full(3, comm.rank + 1.0), np.full(3, float(comm.rank))
    comm.Allreduce(MPI.IN_PLACE, x, algorithm="direct")
    comm.Bcast(y, root=comm.size - 1, algorithm="direct")
    return x.tolist() == [comm.size * (comm.size + 1) / 2] * 3 and y.tolist() == [comm.size - 1] * 3


def set_from_here(comm: hpcoll.Communicator, **settings: Any) -> None:
    """Settings for the calls that follow, as if the environment said so: what is made and compiled before has no limit."""
    on = resources(comm)
    on.config = on.config._replace(**settings)


def comes(what: Callable[[], bool], most_s: float = SOON_S) -> bool:
    """Wait for what others do; whether it came."""
    end = time.monotonic() + most_s
    while not what() and time.monotonic() < end:
        time.sleep(0.01)
    return what()


def agreed(wrong: list[Any]) -> list[Any]:
    """Return what went wrong on any rank, with the rank: the same list everywhere, so that all ranks fail the same test."""
    return [(rank, what) for rank, found in enumerate(MPI.COMM_WORLD.allgather(wrong)) for what in found]


def unless(good: Any, told: Any) -> list[Any]:
    """Return what to tell of this rank where something is not good."""
    return [] if good else [told]


def ensure(good: Any, told: Any) -> None:
    """Fail on all ranks where something is not good on any; collective."""
    ensure_none(unless(good, told))


def ensure_none(wrong: list[Any]) -> None:
    """Fail on all ranks where something is wrong on any, and say what; collective."""
    found = agreed([one if isinstance(one, str) else repr(one) for one in wrong])
    assert not found, found


def raised(run: Callable[[], Any]) -> BaseException | None:
    """Return what a call raises, for ranks that have to meet the others before they fail; None where it raises nothing."""
    try:
        run()
    except BaseException as error:  # what a signal's handler raises is none of Exception
        return error
    return None


def roots(collective: str, nranks: int) -> range:
    return range(nranks if collective in ROOTED else 1)


def contribution(rank: int, count: int) -> Array:
    """Small integers as float64, so that sums are exact in any order."""
    return (np.arange(count) * 7 + rank * 31 + 3) % 101 - 50.0


def contributions(collective: str, nranks: int, count: int) -> list[Array]:
    """Every rank's input: one block of ``count`` elements, or one for each rank."""
    nblocks = nranks if collective in ("reduce_scatter", "scatter", "alltoall") else 1
    return [contribution(rank, nblocks * count) for rank in range(nranks)]


def expected(collective: str, rank: int, root: int, inputs: list[Array]) -> Array | None:
    """Return what this rank must receive; None where it receives nothing."""
    nranks = len(inputs)
    count = len(inputs[0]) // (nranks if collective in ("reduce_scatter", "scatter", "alltoall") else 1)
    mine = slice(rank * count, (rank + 1) * count)
    if collective in ("reduce", "gather") and rank != root:
        return None
    if collective in ("allreduce", "reduce", "reduce_scatter"):
        total = sum(inputs[1:], inputs[0])
        return total[mine] if collective == "reduce_scatter" else total
    if collective in ("scan", "exscan"):
        upto = inputs[: rank + (collective == "scan")]
        return sum(upto[1:], upto[0]) if upto else None
    if collective == "bcast":
        return inputs[root]
    if collective == "scatter":
        return inputs[root][mine]
    return np.concatenate([one[mine] for one in inputs] if collective == "alltoall" else inputs)


def prefilled(collective: str, rank: int, root: int, inputs: list[Array]) -> Array | None:
    """Return what the one buffer of an in-place call holds before; None on a rank that may not call in place."""
    if rank != root and collective in ("reduce", "gather", "scatter"):
        return None
    if collective == "bcast":
        return inputs[root] if rank == root else np.full(inputs[0].size, -1.0)
    if collective in ("allgather", "gather"):
        everything = np.full(len(inputs) * inputs[0].size, -1.0)
        everything[rank * inputs[0].size : (rank + 1) * inputs[0].size] = inputs[rank]
        return everything
    return inputs[rank]


class Guarded:
    """A buffer in the middle of memory that must stay as it is."""

    def __init__(self, content: Array | int, dtype: Any = np.float64, room: Array | None = None) -> None:
        nelements = content if isinstance(content, int) else content.size
        whole = nelements + 2 * GUARD
        self.memory = np.empty(whole, dtype) if room is None else room[:whole]
        self.memory[:] = UNTOUCHED
        self.inner = self.memory[GUARD : GUARD + nelements]
        if not isinstance(content, int):
            self.inner[:] = content

    def holds(self, content: Array | None) -> bool:
        """Say whether it starts with ``content`` (None: was not touched) and nothing around it changed."""
        around = np.concatenate([self.memory[:GUARD], self.memory[GUARD + self.inner.size :]])
        if content is None:
            content = np.full(self.inner.size, UNTOUCHED)
        return bool((around == UNTOUCHED).all()) and np.array_equal(self.inner[: content.size], content)
