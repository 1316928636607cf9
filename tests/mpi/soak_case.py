"""Calls of the soaks: random collectives of random sizes in all forms, with what each must give."""

import copy
import random
from typing import Any

from forms import COLLECTIVE, ROOTED, Case, issue, names, prepare
from mpi4py import MPI
from reference import REDUCING

SIZES = (0, 1, 5, 7, 64, 511, 4096, 40_001, 300_000)
METHODS = [name for name in COLLECTIVE if name not in ("Barrier", "Exscan", "Gatherv", "Scatterv")]
COMBINE = [name for name in METHODS if COLLECTIVE[name] in REDUCING]
FORMS = ("blocking", "blocking", "in flight", "persistent")


class Call:
    """A call that all ranks make."""

    def __init__(self, comm: Any, chance: random.Random) -> None:
        self.comm, self.method, self.count = comm, chance.choice(METHODS), chance.choice(SIZES)
        self.root = chance.randrange(comm.size) if self.method in ROOTED else None
        self.dtype, self.op, self.turn = chance.choice(("f8", "f4", "i8")), MPI.SUM, chance.randrange(100)
        self.form = chance.choice(FORMS)
        self.late = chance.randrange(comm.size) if chance.random() < 0.03 else None
        self.algorithm = chance.choice(names(self.method)[2:])  # the library's own checks nothing

    def changed(self, fault: str) -> "Call":
        """The same call with one thing that is another."""
        other = copy.copy(self)
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

    def start(self) -> MPI.Request | None:
        """Call; what there is to wait for."""
        self.case = Case(self.comm, self.method, self.count, self.root or 0, dtype=self.dtype, op=self.op)
        self.case.fill(self.turn)
        options = {"algorithm": self.algorithm}
        if self.form == "blocking":
            getattr(self.comm, self.method)(*self.case.arguments, **options)
            return None
        request = (issue if self.form == "in flight" else prepare)(self.comm, self.case, **options)
        if isinstance(request, MPI.Prequest):
            request.Start()
        return request

    def run(self) -> bool:
        """Call; whether the answer is right."""
        request = self.start()
        if request is not None:
            request.Wait()
        return self.case.good()
