"""Every collective in every form, compared with NumPy's values: ``platform_smoke.py FOLDER``, on the ranks of a job.

Each rank leaves what was wrong and what it ran on in a file of the folder, because exit codes of launchers prove nothing.
"""

import json
import platform
import re
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).with_name("mpi")))

import numpy as np
from forms import COLLECTIVE, Case, every, in_every_form, issue, prepare
from mpi4py import MPI
from outcomes import token
from reference import REDUCING

import hpcoll
from hpcoll.runtime.transports.mpi import has_persistent_collectives

COUNTS = (5, 40_000)  # a few bytes, and 320 kB
BY_LIBRARY = "operator of MPI"  # which hpcoll leaves to the library
REDUCTIONS = [method for method, collective in COLLECTIVE.items() if collective in REDUCING]


def with_types(case: Case) -> Case:
    """The same call, whose arrays have explicit datatypes."""
    case.arguments = tuple(
        [one, MPI.DOUBLE] if isinstance(one, np.ndarray) else one for one in case.arguments
    )
    return case


def add(left: Any, right: Any, _datatype: Any) -> None:
    """Add as MPI's user operators do, in buffers."""
    np.frombuffer(right, np.float64)[:] += np.frombuffer(left, np.float64)


def kinds(comm: MPI.Intracomm, count: int, operators: dict[str, Any]) -> dict[str, Callable[[], list[Case]]]:
    """Return what makes the cases with so many elements, by kind."""
    last = [comm.size - 1]
    found: dict[str, Callable[[], list[Case]]] = {
        "arrays": lambda: every(comm, count),
        "in place": lambda: every(comm, count, in_place=True, roots=last),
        "explicit types": lambda: [with_types(case) for case in every(comm, count, roots=last)],
        "explicit types, in place": lambda: [
            with_types(case) for case in every(comm, count, in_place=True, roots=last)
        ],
        "int32": lambda: [
            Case(comm, method, count, dtype=np.int32)
            for method in ("Allreduce", "Reduce", "Bcast", "Alltoall")
        ],
    }
    for name, operator in operators.items():
        found[name] = lambda operator=operator: [
            Case(comm, method, count, op=operator) for method in REDUCTIONS
        ]
    return found


def wrong(comm: MPI.Intracomm) -> list[str]:
    """Return what differs from NumPy's values, or was raised; a kind that failed on any rank is the last one."""
    found: list[str] = []
    compiled = hpcoll.reduce_op(lambda left, right: left + right, identity=0.0, name="add")
    operators = {"operator of hpcoll": compiled, BY_LIBRARY: MPI.Op.Create(add, commute=True)}
    persistent = has_persistent_collectives()
    for count in COUNTS:
        for kind, cases in kinds(comm, count, operators).items():
            turns = (issue,) if kind == BY_LIBRARY and not persistent else (issue, prepare, prepare)
            try:
                found += [f"{kind}: {one}" for one in in_every_form(comm, cases(), turns)]
            except Exception as error:
                found.append(f"{kind}, {count} elements: {type(error).__name__}: {error}")
            if MPI.COMM_WORLD.allreduce(bool(found), MPI.LOR):
                return found
    return found + wrong_objects(comm)


def wrong_objects(comm: MPI.Intracomm) -> list[str]:
    """Return what differs in calls on Python objects, short ones and arrays that travel beside their pickle, and in a region."""
    found, every_rank = list[str](), range(comm.size)
    for turn in range(4):
        array = np.arange(10 + 100_000 * (turn % 2))
        with comm.region("objects"):
            checks = {
                "allgather": comm.allgather({"rank": comm.rank}) == [{"rank": rank} for rank in every_rank],
                "bcast": np.array_equal(comm.bcast(array if comm.rank == 0 else None), array),
                "allreduce": comm.allreduce(comm.rank + 0.5) == sum(rank + 0.5 for rank in every_rank),
                "alltoall": comm.alltoall([(comm.rank, to) for to in every_rank])
                == [(rank, comm.rank) for rank in every_rank],
            }
        found += [f"objects: {name}" for name, right in checks.items() if not right]
    return found


def software() -> dict[str, str]:
    """Return the releases of all that takes part."""
    library = re.split(
        r"[,\n\0]| for ", re.sub(r"Version:|\(R\)|Library|\bv(?=\d)", "", MPI.Get_library_version())
    )[0]
    packages = {name: version(name) for name in ("numpy", "numba", "mpi4py")}
    return {
        "python": platform.python_version(),
        **packages,
        "library": " ".join(library.split()),
        "hpcoll": str(hpcoll.__file__),
    }


if __name__ == "__main__":
    communicator = hpcoll.Communicator(MPI.COMM_WORLD)
    result = {"size": communicator.size, "wrong": wrong(communicator), **software()}
    token(Path(sys.argv[1]), communicator.rank).write_text(json.dumps(result))
