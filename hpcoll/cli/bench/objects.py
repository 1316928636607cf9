"""``hpcoll bench objects``: the lower-case collectives on Python objects, plain mpi4py and hpcoll in turns."""

from collections.abc import Callable
from statistics import geometric_mean, median
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
from mpi4py import MPI

import hpcoll
from hpcoll.cli.bench.watch import Lines

_HEAD = "us, medians in turns", "mpi4py", "hpcoll", "ratio"
_LINE = "{:<34} {:>10} {:>10} {:>6}"
_TURNS, _TURN_S, _MOST = 21, 0.002, 100  # turns of each, their length, and the most calls in one
Issue: TypeAlias = Callable[[Any, Any], object]

CALLS: dict[str, Issue] = {
    "allreduce": lambda comm, obj: comm.allreduce(obj, op=_first if isinstance(obj, dict) else MPI.SUM),
    "bcast": lambda comm, obj: comm.bcast(obj),
    "allgather": lambda comm, obj: comm.allgather(obj),
    "gather": lambda comm, obj: comm.gather(obj),
}
SHORT = {
    "float": 1.5,
    "int": 12345,
    "dict of 10": {f"key {i}": i for i in range(10)},
    "list of 1,000 floats": [1.1 * i for i in range(1000)],
}
ARRAYS = {
    f"array of {size} in a tuple": ("x", np.zeros(nbytes // 8))
    for size, nbytes in (("64K", 1 << 16), ("1M", 1 << 20), ("64M", 1 << 26))
}


def _first(one: object, other: object) -> object:
    """Return the first of two objects that have no sum."""
    return one


def run(world: MPI.Intracomm) -> int:
    """Measure and print on rank 0; return 0. Collective."""
    comms, lines = (world.Dup(), hpcoll.Communicator(world.Dup())), Lines(world, _LINE)
    for objects in (SHORT, ARRAYS):
        ratios = []
        lines.say(*_HEAD)
        for method, issue in CALLS.items():
            for what, obj in objects.items():
                theirs, ours = _medians(world, comms, issue, obj)
                ratios.append(theirs / ours)
                lines.measured(f"{method}, {what}", f"{theirs:.2f}", f"{ours:.2f}", f"{ratios[-1]:.2f}")
        lines.say("geometric mean", "", "", f"{geometric_mean(ratios):.2f}")
        lines.say("least", "", "", f"{min(ratios):.2f}")
    lines.end()
    return 0


def _medians(world: MPI.Intracomm, comms: tuple[Any, Any], issue: Issue, obj: Any) -> list[float]:
    """Return the median of the times of a call on each communicator, of the slowest rank in each turn."""
    for comm in comms:
        issue(comm, obj)
    ncalls = max(
        1, min(_MOST, int(_TURN_S / world.allreduce(_seconds(world, comms[0], issue, obj, 1), MPI.MAX)))
    )
    turns = [[_seconds(world, comm, issue, obj, ncalls) for comm in comms] for _ in range(_TURNS)]
    times = np.array(turns)
    world.Allreduce(MPI.IN_PLACE, times, MPI.MAX)
    return [1e6 * median(column) for column in times.T.tolist()]


def _seconds(world: MPI.Intracomm, comm: Any, issue: Issue, obj: Any, ncalls: int) -> float:
    """Return the time of a call, with that until all ranks have made as many."""
    world.Barrier()
    start = perf_counter()
    for _ in range(ncalls):
        issue(comm, obj)
    world.Barrier()
    return (perf_counter() - start) / ncalls
