"""``hpcoll bench calls``: the time that a short call spends before it runs, by method, spec and form, beside plain mpi4py."""

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
from mpi4py import MPI

import hpcoll
from hpcoll.cli.bench.watch import Lines

COUNT = 64  # doubles in a message or block
_ROUNDS, _CALLS = 60, 8
_HEAD = "us, lowest of many", "mpi4py", "hpcoll", "described anew", "above mpi4py"
_LINE = "{:<34} {:>8} {:>8} {:>15} {:>13}"
Issue: TypeAlias = Callable[[Any], object]


def cases(rank: int, n: int) -> Iterator[tuple[str, Issue]]:
    """Yield calls as programs write them, by their text."""
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


def run(world: MPI.Intracomm) -> int:
    """Measure and print on rank 0; return 0. Collective."""
    comms, lines = (
        (world.Dup(), hpcoll.Communicator(world.Dup()), hpcoll.Communicator(world.Dup())),
        Lines(world, _LINE),
    )
    lines.say(*_HEAD)
    for text, issue in cases(world.rank, world.size):
        for comm in comms:
            for _ in range(3):
                issue(comm)
        _forget(comms[-1])
        times = np.full(len(comms), np.inf)
        for _ in range(_ROUNDS):
            for i, comm in enumerate(comms):
                world.Barrier()
                times[i] = min(times[i], _seconds(issue, comm))
        world.Allreduce(MPI.IN_PLACE, times, MPI.MAX)
        us = times * 1e6
        lines.measured(text, *(f"{value:.2f}" for value in (*us, us[2] - us[0])))
    lines.end()
    return 0


def _seconds(issue: Issue, comm: Any) -> float:
    start = perf_counter()
    for _ in range(_CALLS):
        issue(comm)
    return (perf_counter() - start) / _CALLS


def _forget(comm: hpcoll.Communicator) -> None:
    """Let a communicator recognise no call."""
    context = comm._context
    for cache in (context.tables, *context.started, context.planned):
        for table in cache.tables.values():
            table.clear()
            table.closed = True
