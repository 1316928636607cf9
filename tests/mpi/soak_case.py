"""Calls of the soaks: random collectives of random sizes in all forms, with what each must give."""

import random
from typing import Any

import numpy as np
from mpi4py import MPI

import hpcoll

SIZES = (0, 1, 5, 7, 64, 511, 4096, 40_001, 300_000)
VARYING = ("Allgatherv", "Alltoallv", "Reduce_scatter")  # whose blocks have sizes of their own
METHODS = (
    "Allreduce",
    "Reduce",
    "Bcast",
    "Allgather",
    "Alltoall",
    "Scan",
    "Reduce_scatter_block",
    "Gather",
    "Scatter",
    *VARYING,
)
COMBINE = ("Allreduce", "Reduce", "Scan", "Reduce_scatter_block", "Reduce_scatter")
FORMS = ("blocking", "blocking", "in flight", "persistent")


class Case:
    """A call that all ranks make, and its right result."""

    def __init__(self, comm: Any, chance: random.Random) -> None:
        self.comm, self.method, self.count = comm, chance.choice(METHODS), chance.choice(SIZES)
        self.root = (
            chance.randrange(comm.size) if self.method in ("Reduce", "Bcast", "Gather", "Scatter") else None
        )
        self.op, self.dtype, self.turn = (
            chance.choice((MPI.SUM, MPI.MAX)),
            chance.choice(("f8", "f4", "i8")),
            chance.randrange(100),
        )
        self.form, self.late = (
            chance.choice(FORMS),
            chance.randrange(comm.size) if chance.random() < 0.03 else None,
        )
        collective = {
            "Reduce_scatter_block": "reduce_scatter",
            "Allgatherv": "allgather",
            "Alltoallv": "alltoall",
        }.get(self.method)
        every = hpcoll.algorithms(collective or self.method.lower())  # the library's own checks nothing
        self.algorithm = chance.choice(
            [name for name in every if self.method != "Alltoallv" or name in ("pairwise", "direct")]
        )

    def vector(self, rank: int, nblocks: int = 1) -> np.ndarray:
        """A rank's contribution: small numbers, so that sums are exact."""
        return ((np.arange(nblocks * self.count) + 3 * rank + self.turn) % 50).astype(self.dtype)

    def sizes(self, sender: int = 0) -> list[int]:
        """Elements of each block that a rank gives: to whom, or of whom, it is."""
        return [(self.count + sender + 2 * other) % (self.count + 5) for other in range(self.comm.size)]

    def block(self, sender: int, receiver: int) -> np.ndarray:
        """The one that a rank gives to another, where sizes vary."""
        sizes = self.sizes(sender if self.method == "Alltoallv" else 0)
        begin, end = sum(sizes[:receiver]), sum(sizes[: receiver + 1])
        return ((np.arange(begin, end) + 3 * sender + self.turn) % 50).astype(self.dtype)

    def blocks(self) -> list[Any]:
        """Arguments of a call whose sizes vary, where this rank receives first."""
        me, every = self.comm.rank, range(self.comm.size)
        if self.method == "Allgatherv":
            sizes, given = self.sizes(), self.block(me, me)
            return [np.full(sum(sizes), 77, self.dtype), given, sizes]
        given = np.concatenate([self.block(me, other) for other in every])
        if self.method == "Reduce_scatter":
            return [np.full(self.sizes()[me], 77, self.dtype), given, self.sizes()]
        sizes = [self.sizes(other)[me] for other in every]
        return [np.full(sum(sizes), 77, self.dtype), [given, self.sizes(me)], sizes]

    def buffers(self) -> tuple[np.ndarray, np.ndarray]:
        """Return what this rank gives, and where it receives."""
        n, wide = self.comm.size, self.method in ("Alltoall", "Reduce_scatter_block", "Scatter")
        gathers = self.method in ("Allgather", "Gather", "Alltoall")
        return self.vector(self.comm.rank, n if wide else 1), np.full(
            (n if gathers else 1) * self.count, 77, self.dtype
        )

    def expected(self) -> np.ndarray | None:
        """Return what this rank must receive; None: nothing."""
        comm, n, me = self.comm, self.comm.size, self.comm.rank
        fold = np.add if self.op == MPI.SUM else np.maximum
        if self.method == "Reduce_scatter":
            return fold.reduce([self.block(rank, me) for rank in range(n)]).astype(self.dtype)
        if self.method in VARYING:
            return np.concatenate(
                [self.block(rank, me if self.method == "Alltoallv" else rank) for rank in range(n)]
            )
        mine = slice(me * self.count, (me + 1) * self.count)
        if self.method in ("Reduce", "Gather") and comm.rank != self.root:
            return None
        if self.method in ("Allreduce", "Reduce", "Scan"):
            return fold.reduce(
                [self.vector(rank) for rank in range(me + 1 if self.method == "Scan" else n)]
            ).astype(self.dtype)
        if self.method == "Reduce_scatter_block":
            return fold.reduce([self.vector(rank, n)[mine] for rank in range(n)]).astype(self.dtype)
        if self.method == "Alltoall":
            return np.concatenate([self.vector(rank, n)[mine] for rank in range(n)])
        if self.method == "Scatter":
            return self.vector(self.root or 0, n)[mine]
        return (
            self.vector(self.root or 0)
            if self.method == "Bcast"
            else np.concatenate([self.vector(rank) for rank in range(n)])
        )

    def changed(self, fault: str) -> "Case":
        """The same call with one thing that is another."""
        other: Case = object.__new__(Case)
        other.__dict__ |= vars(self)
        if fault == "count":
            other.count = self.count + 1
        elif fault == "type":
            other.dtype = "i8" if self.dtype == "f8" else "f8"
        elif fault == "operator":
            other.op = MPI.PROD
        elif fault == "root":
            other.root = (self.root + 1) % self.comm.size if self.root is not None else None
        elif fault == "collective":
            other.algorithm = "direct"
            other.method, other.root = ("Allreduce", None) if self.method != "Allreduce" else ("Bcast", 0)
        return other

    def arguments(self) -> tuple[np.ndarray, list[Any]]:
        """Return where this rank receives, and what it calls with."""
        if self.method in VARYING:
            got, given, sizes = self.blocks()
            return got, [given, got, sizes, self.op] if self.method == "Reduce_scatter" else [
                given,
                [got, sizes],
            ]
        given, got = self.buffers()
        if self.method == "Bcast":
            got = self.vector(self.comm.rank) if self.comm.rank == self.root else got
        found = [got] if self.method == "Bcast" else [given, got]
        return got, [
            *found,
            *([self.op] if self.method in COMBINE else []),
            *([] if self.root is None else [self.root]),
        ]

    def start(self) -> MPI.Request | None:
        """Call; what there is to wait for."""
        self.got, arguments = self.arguments()
        name = {
            "blocking": self.method,
            "in flight": f"I{self.method.lower()}",
            "persistent": f"{self.method}_init",
        }[self.form]
        request: MPI.Request | None = getattr(self.comm, name)(*arguments, algorithm=self.algorithm)
        if isinstance(request, MPI.Prequest):
            request.Start()
        return request

    def right(self) -> bool:
        """Say whether the answer is."""
        wanted = self.expected()
        return wanted is None or np.array_equal(self.got, wanted)

    def run(self) -> bool:
        """Call; whether the answer is right."""
        request = self.start()
        if request is not None:
            request.Wait()
        return self.right()
