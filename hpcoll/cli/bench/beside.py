"""``hpcoll bench calls`` and ``bench objects``: calls as programs write them, by plain mpi4py and by hpcoll in turns.

Calls are short: the lowest of many times is what they cost before they run, also where compiled code recognises none of them. Calls on
Python objects are told by medians.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from statistics import geometric_mean
from typing import Any, TypeAlias

import numpy as np
from mpi4py import MPI

import hpcoll
from hpcoll.base.busy import MARK, verdict
from hpcoll.cli.bench.measure import Pace, measure
from hpcoll.cli.bench.modes import CALLS, OBJECTS
from hpcoll.cli.bench.watch import Watch

COUNT = 64  # doubles in a message or block
PACES = {CALLS: Pace(60, 3, 8, per_iter=True), OBJECTS: Pace(None, 1, batch_s=1e-3, budget_s=0.2)}
_HEADS = {
    CALLS: ("us, lowest of many", "mpi4py", "hpcoll", "described anew", "above mpi4py"),
    OBJECTS: ("us, medians in turns", "mpi4py", "hpcoll", "ratio"),
}
Issue: TypeAlias = Callable[[Any], object]
Issues: TypeAlias = Iterator[tuple[str, Issue]]  # by their text

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


def calls(rank: int, n: int) -> Issues:
    """Yield short calls."""
    x, y, many, wide = np.ones(COUNT), np.empty(COUNT), np.ones(COUNT * n), np.empty(COUNT * n)
    double, table, counts = MPI.DOUBLE, np.full((n, n), COUNT), [COUNT] * n
    yield "Barrier()", lambda c: c.Barrier()
    yield "Bcast(x)", lambda c: c.Bcast(y)
    yield "Bcast([x, 64, DOUBLE])", lambda c: c.Bcast([y, COUNT, double])
    yield "Allreduce(x, y)", lambda c: c.Allreduce(x, y)
    yield "Allreduce(IN_PLACE, y)", lambda c: c.Allreduce(MPI.IN_PLACE, y, MPI.MAX)
    yield "Allreduce([x, DOUBLE], [y, DOUBLE])", lambda c: c.Allreduce([x, double], [y, double])
    yield "Allreduce(x[:], y[:])", lambda c: c.Allreduce(x[:], y[:])
    yield "Allreduce(x.data, y.data)", lambda c: c.Allreduce(x.data, y.data)
    yield (
        "Allreduce of new pairs, MAXLOC",
        lambda c: c.Allreduce(
            [np.array([(1.0, rank)], "d,i"), 1, MPI.DOUBLE_INT],
            [np.empty(1, "d,i"), 1, MPI.DOUBLE_INT],
            MPI.MAXLOC,
        ),
    )
    yield "Reduce(x, y)", lambda c: c.Reduce(x, y)
    yield "Scan(x, y)", lambda c: c.Scan(x, y)
    yield "Exscan(x, y)", lambda c: c.Exscan(x, y)
    yield "Reduce_scatter_block(many, y)", lambda c: c.Reduce_scatter_block(many, y)
    yield "Reduce_scatter(many, y, counts)", lambda c: c.Reduce_scatter(many, y, counts)
    yield "Allgather(x, many)", lambda c: c.Allgather(x, wide)
    yield "Gather(x, many)", lambda c: c.Gather(x, wide)
    yield "Scatter(many, x)", lambda c: c.Scatter(many, y)
    yield "Alltoall(many, many)", lambda c: c.Alltoall(many, wide)
    yield "Allgatherv(x, [many, counts])", lambda c: c.Allgatherv(x, [wide, counts])
    yield "Gatherv(x, [many, counts])", lambda c: c.Gatherv(x, [wide, counts])
    yield "Scatterv([many, counts], x)", lambda c: c.Scatterv([many, counts], y)
    yield "Alltoallv, a row and a column", lambda c: c.Alltoallv([many, table[rank]], [wide, table[:, rank]])
    yield "Iallreduce(x, y).Wait()", lambda c: c.Iallreduce(x, y).Wait()
    yield "Ibcast(x).Wait()", lambda c: c.Ibcast(y).Wait()
    yield "Allreduce_init(x, y).Free()", lambda c: c.Allreduce_init(x, y).Free()


def _first(one: object, other: object) -> object:
    """Return the first of two objects that have no sum."""
    return one


def on_objects(objects: Mapping[str, Any]) -> Issues:
    """Yield each lower-case collective on each object."""
    for method in ("allreduce", "bcast", "allgather", "gather"):
        for what, obj in objects.items():
            how = {"op": _first} if method == "allreduce" and isinstance(obj, dict) else {}
            yield f"{method}, {what}", partial(_issue, method, obj, how)


def _issue(method: str, obj: Any, how: dict[str, Any], comm: Any) -> None:
    getattr(comm, method)(obj, **how)


def measure_beside(world: MPI.Intracomm, what: str) -> int:
    """Measure and print on rank 0; return 0. Collective."""
    watch, uses, pace = Watch(world), [], PACES[what]
    head, *columns = _HEADS[what]

    def say(text: str, *cells: str) -> None:
        if world.rank == 0:
            line = [f"{cell:>{max(11, len(name) + 2)}}" for name, cell in zip(columns, cells)]
            print(f"{text:<36}{''.join(line)}".rstrip(), flush=True)

    comms: list[Any] = [world.Dup(), *(hpcoll.Communicator(world.Dup()) for _ in range(1 + (what == CALLS)))]
    for note in watch.notes:
        say(f"# {note}")
    tables = [calls(world.rank, world.size)] if what == CALLS else [on_objects(SHORT), on_objects(ARRAYS)]
    for issues in tables:
        say(head, *columns)
        ratios = []
        for text, issue in issues:
            for comm in comms * (pace.warmup or 1):
                issue(comm)
            for comm in comms[2:]:
                _forget(comm)
            seconds, _, by_rank = measure(world, [partial(issue, comm) for comm in comms], 0, pace)
            medians = np.median(seconds, axis=1) if by_rank is None else by_rank.min(axis=2).max(axis=0)
            us = (1e6 * medians).tolist()
            ratios.append(us[0] / us[1])
            uses.append(watch.look())
            last = us[2] - us[0] if what == CALLS else ratios[-1]
            mark = f" {MARK}" if uses[-1].disturbed else ""
            say(text, *(f"{value:.2f}" for value in us), f"{last:.2f}{mark}")
        if what == OBJECTS:
            say("geometric mean", "", "", f"{geometric_mean(ratios):.2f}")
            say("least", "", "", f"{min(ratios):.2f}")
    for text in verdict(uses):
        say(f"# {text}")
    return 0


def _forget(comm: hpcoll.Communicator) -> None:
    """Let a communicator recognise no call."""
    context = comm._context
    for cache in (context.tables, *context.started, context.planned):
        for table in cache.tables.values():
            table.clear()
            table.closed = True
