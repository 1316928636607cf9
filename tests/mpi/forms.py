"""Every upper-case collective as a call whose buffers can be filled again and whose result can be checked, started in any way."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
from mpi4py import MPI
from reference import (
    COLLECTIVES,
    GUARD,
    REDUCING,
    Array,
    Guarded,
    contribution,
    contributions,
    expected,
    prefilled,
)

import hpcoll
from hpcoll.schedules.catalogue import CATALOGUE

PLAIN = {method: collective for collective, method in COLLECTIVES.items()}
VARYING = {
    "Allgatherv": "allgather",
    "Gatherv": "gather",
    "Scatterv": "scatter",
    "Alltoallv": "alltoall",
    "Reduce_scatter": "reduce_scatter",
}
COLLECTIVE = PLAIN | VARYING | {"Barrier": "barrier"}
ROOTED = ("Reduce", "Bcast", "Gather", "Scatter", "Gatherv", "Scatterv")


def names(method: str) -> list[str | None]:
    """The MPI library, the choice, and every algorithm that serves a method."""
    found = hpcoll.algorithms(COLLECTIVE[method])
    return [
        "native",
        None,
        *(
            name
            for name in found
            if method not in VARYING or not CATALOGUE[f"{COLLECTIVE[method]}/{name}"].uniform
        ),
    ]


def spread(sizes: list[int]) -> list[int]:
    """Displacements of blocks in reverse order, one element apart."""
    return [sum(sizes[r + 1 :]) + len(sizes) - r for r in range(len(sizes))]


def laid_out(blocks: list[Array], displs: list[int], nelements: int) -> Array:
    """Memory of a `Guarded` with blocks at their displacements."""
    whole = Guarded(nelements)
    for displ, block in zip(displs, blocks, strict=True):
        whole.inner[displ : displ + block.size] = block
    return whole.memory


class Case:
    """A call on one rank.

    Attributes:
        method: Name of the blocking form.
        shape: Elements of each rank's block, where blocks vary; else ``count`` times 1, 2, 0 in turn.
        op: Of reductions; results are those of a sum.
        room: Memory for the buffers; else they are arrays of their own.
        arguments: Positional arguments of every form.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        method: str,
        count: int = 5,
        root: int = 0,
        in_place: bool = False,
        dtype: Any = np.float64,
        shape: Callable[[int], int] | None = None,
        op: MPI.Op = MPI.SUM,
        room: Array | None = None,
    ) -> None:
        self.rank, self.nranks, self.method, self.count, self.root = comm.rank, comm.size, method, count, root
        self.in_place = in_place and (method not in ROOTED or comm.rank == root)
        self._dtype, self._shape = np.dtype(dtype), shape or (lambda rank: count * ((rank + 1) % 3))
        before, _ = self._memories(0)
        self._op, self._buffers = op, list[Guarded]()
        for memory in before:
            self._buffers.append(Guarded(memory.size - 2 * GUARD, dtype, room))
            room = room if room is None else room[memory.size :]
        self.arguments = self._arguments()
        self.fill(0)

    def __repr__(self) -> str:
        return f"{self.method}(count={self.count}, root={self.root}, in_place={self.in_place}, {self._dtype})"

    def fill(self, turn: int) -> None:
        """Put in what this rank contributes to a turn; every turn has other numbers."""
        before, self._wanted = self._memories(turn)
        for buffer, memory in zip(self._buffers, before, strict=True):
            buffer.memory[:] = memory

    def good(self) -> bool:
        """Say whether every buffer holds what it must, and nothing around it changed."""
        found = self._open([buffer.memory.astype(np.float64) for buffer in self._buffers])
        return all(
            np.array_equal(one, wanted) for one, wanted in zip(found, self._open(self._wanted), strict=True)
        )

    def _open(self, memories: list[Array]) -> list[Array]:
        """Return the arrays without what in-place reduce_scatter leaves undefined behind its result."""
        if self.in_place and COLLECTIVE[self.method] == "reduce_scatter":
            return [np.concatenate([one[: GUARD + self._own], one[-GUARD:]]) for one in memories]
        return memories

    def _memories(self, turn: int) -> tuple[list[Array], list[Array]]:
        if self.method == "Barrier":
            return [], []
        return (self._plain if self.method in PLAIN else self._varying)(turn)

    def _plain(self, turn: int) -> tuple[list[Array], list[Array]]:
        collective = PLAIN[self.method]
        inputs = [one + turn for one in contributions(collective, self.nranks, self.count)]
        wanted, self._own = expected(collective, self.rank, self.root, inputs), self.count
        given = inputs[self.rank]
        if self.in_place or self.method == "Bcast":
            held = prefilled(collective, self.rank, self.root, inputs)
            assert held is not None
            after = held.copy()
            if wanted is not None and self.method != "Scatter":
                after[: wanted.size] = wanted
            return [Guarded(held).memory], [Guarded(after).memory]
        recv = Guarded(self.count if wanted is None else wanted.size)
        result = recv.memory if wanted is None else Guarded(wanted).memory
        if self.method == "Scatter" and self.rank != self.root:
            return [recv.memory], [result]
        return [Guarded(given).memory, recv.memory], [Guarded(given).memory, result]

    def _sizes(self) -> list[int]:
        """Elements of every rank's block: also none."""
        return [self._shape(r) for r in range(self.nranks)]

    def _varying(self, turn: int) -> tuple[list[Array], list[Array]]:
        sizes, n, me = self._sizes(), self.nranks, self.rank
        total, displs = sum(sizes) + n + 1, spread(sizes)
        blocks = [contribution(r, size) + turn for r, size in enumerate(sizes)]
        self._own = sizes[me]
        whole, empty = laid_out(blocks, displs, total), Guarded(total).memory
        mine, nothing = Guarded(blocks[me]).memory, Guarded(sizes[me]).memory
        if self.method == "Allgatherv" or (self.method == "Gatherv" and me == self.root):
            own = laid_out([blocks[me]], [displs[me]], total)
            return ([own], [whole]) if self.in_place else ([mine, empty], [mine, whole])
        if self.method == "Gatherv":
            return [mine], [mine]
        if self.method == "Scatterv":
            if me != self.root:
                return [nothing], [mine]
            return ([whole], [whole]) if self.in_place else ([whole, nothing], [whole, mine])
        if self.method == "Reduce_scatter":
            inputs = [contribution(r, sum(sizes)) + turn for r in range(n)]
            block = sum(inputs[1:], inputs[0])[sum(sizes[:me]) : sum(sizes[: me + 1])]
            after = inputs[me].copy()
            after[: block.size] = block
            given = Guarded(inputs[me]).memory
            return (
                ([given], [Guarded(after).memory])
                if self.in_place
                else ([given, nothing], [given, Guarded(block).memory])
            )
        pairs = {
            (i, j): contribution(i * n + j, sizes[(i + j) % n]) + turn for i, j in product(range(n), repeat=2)
        }
        places = spread([pairs[me, j].size for j in range(n)])
        sent, received = (
            [pairs[i, j] for i, j in order]
            for order in ([(me, j) for j in range(n)], [(i, me) for i in range(n)])
        )
        before, after = laid_out(sent, places, total), laid_out(received, places, total)
        return ([before], [after]) if self.in_place else ([before, empty], [before, after])

    def _arguments(self) -> tuple[Any, ...]:
        arrays: list[Any] = [buffer.inner for buffer in self._buffers]
        first, n = self.method in ("Scatter", "Scatterv"), self.nranks
        sizes = self._sizes()
        if self.method == "Alltoallv":
            sizes = [sizes[(self.rank + j) % n] for j in range(n)]
            arrays = [[one, (sizes, spread(sizes))] for one in arrays]
        elif self.method == "Allgatherv" or (
            self.method in ("Gatherv", "Scatterv") and self.rank == self.root
        ):
            many = 0 if first else -1
            arrays[many] = [arrays[many], (sizes, spread(sizes))]
        if self.method not in ("Barrier", "Bcast") and len(arrays) == 1:  # the other one is not there
            absent = MPI.IN_PLACE if self.in_place else None
            arrays = (
                [*arrays, absent]
                if first and self.in_place
                else [absent, *arrays]
                if first or self.in_place
                else [*arrays, absent]
            )
        arrays += [sizes] if self.method == "Reduce_scatter" else []
        arrays += [self._op] if COLLECTIVE[self.method] in REDUCING else []
        return (*arrays, self.root) if self.method in ROOTED else tuple(arrays)


def blocking(comm: Any, case: Case, **options: Any) -> bool:
    """Call, and say whether the result is right."""
    getattr(comm, case.method)(*case.arguments, **options)
    return case.good()


def issue(comm: Any, case: Case, **options: Any) -> MPI.Request:
    """The non-blocking form."""
    request: MPI.Request = getattr(comm, f"I{case.method.lower()}")(*case.arguments, **options)
    return request


def prepare(comm: Any, case: Case, **options: Any) -> MPI.Prequest:
    """The persistent form."""
    request: MPI.Prequest = getattr(comm, f"{case.method}_init")(*case.arguments, **options)
    return request


def every(comm: MPI.Intracomm, count: int, in_place: bool = False, roots: Any = None) -> list[Case]:
    """A case of each method, rooted ones for each root."""
    cases = []
    for method in COLLECTIVE:
        for root in (range(comm.size) if roots is None else roots) if method in ROOTED else (0,):
            cases.append(Case(comm, method, count, root, in_place))
    return cases


def in_every_form(
    comm: Any, cases: list[Case], turns: tuple[Any, ...] = (issue, prepare, prepare), **options: Any
) -> list[Any]:
    """Run cases blocking, all in flight, and all persistent twice, waited for in an order of each rank's own. Return what was wrong."""
    wrong, requests = list[Any](), list[Any]()
    wrong += [("blocking", case) for case in cases if not blocking(comm, case, **options)]
    for turn, form in enumerate(turns):
        for case in cases:
            case.fill(1 + turn)
        requests = requests if turn == 2 else [form(comm, case, **options) for case in cases]
        for request in requests if turn else ():
            request.Start()
        for i in own_order(requests, comm):
            requests[i].Wait()
        wrong += [(form.__name__, turn, case) for case in cases if not case.good()]
    for request in filter(None, requests):
        request.Free()
    return wrong


def own_order(requests: list[Any], comm: MPI.Intracomm) -> list[int]:
    """Indices in an order that every rank has for itself."""
    order: list[int] = np.random.default_rng(comm.rank + 1).permutation(len(requests)).tolist()
    return order
