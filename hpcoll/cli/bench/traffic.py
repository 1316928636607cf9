"""``--memory-traffic``: the bytes that hpcoll's calls read and write, beside the rate at which the machine copies."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
from mpi4py import MPI

from hpcoll.cli.bench.contenders import Contender
from hpcoll.cli.bench.measure import measure
from hpcoll.cli.bench.request import BenchRequest
from hpcoll.cli.bench.results import AUTO, Measured
from hpcoll.comm.context.attach import context_of
from hpcoll.runtime.engine.host_engine import HostEngine

_COPIES = 25  # that are timed

Sides = dict[tuple[str, str], Measured]  # by contender and side


def with_traffic(
    request: BenchRequest, world: MPI.Intracomm, nbytes: int, contenders: Iterable[Contender], sides: Sides,
    calls: Mapping[tuple[str, str], Callable[[], object]],
) -> Sides:  # fmt: skip
    """Return the results of calls of ``nbytes`` with the bytes that they move; makes each call twice more; collective."""
    rows, moved = {one.name: one for one in contenders}, np.full(len(calls), -1, np.int64)
    for i, ((name, _), call) in enumerate(calls.items()):
        for _ in range(2):  # the second one is found by the call cache, which tells what ran
            call()
        moved[i] = _moved(rows[name], request)
    known = moved >= 0
    world.Allreduce(MPI.IN_PLACE, moved, MPI.MAX)
    world.Allreduce(MPI.IN_PLACE, known, MPI.LAND)
    counted = {key: nbytes for key, nbytes, is_known in zip(calls, moved.tolist(), known.tolist(), strict=True) if is_known}
    rate = _copy_rate(request, world, nbytes) if nbytes else 0.0
    share = {key: nbytes / (sides[key].p50_us * 1e-6) / rate for key, nbytes in counted.items() if nbytes and rate}
    return {key: replace(side, moved=counted.get(key), copy_share=share.get(key)) for key, side in sides.items()}


def _moved(contender: Contender, request: BenchRequest) -> int:
    """Return the bytes that the contender's latest call moved on this rank; -1 where that is not known."""
    if contender.comm is None:
        return -1
    algorithm = None if contender.name == AUTO else contender.name
    for (method, _, name, segment), table in context_of(contender.comm).tables.tables.items():
        latest = table.latest.by if (method, name, segment) == (request.method, algorithm, request.segment) and table.calls else None
        if isinstance(latest, HostEngine):
            return latest.traffic().moved
    return -1


def _copy_rate(request: BenchRequest, world: MPI.Intracomm, nbytes: int) -> float:
    """Return the bytes that each rank reads and writes in a second while all of them copy arrays of so many bytes; collective."""
    source, target = np.ones(nbytes, np.uint8), np.empty(nbytes, np.uint8)
    seconds = measure(world, [partial(np.copyto, target, source)], nbytes, replace(request.pace, rounds=_COPIES)).seconds
    return 2 * nbytes / float(np.median(seconds))
