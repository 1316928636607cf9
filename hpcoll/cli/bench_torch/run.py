"""The measurement of ``hpcoll bench-torch``: operations of torch.distributed by hpcoll and by gloo, blocking and in flight, in turns."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI

from hpcoll.base.ops import SUM
from hpcoll.cli.all_ranks import ending_all_ranks
from hpcoll.cli.bench.cases import (
    IN_PLACE,
    OUT_OF_PLACE,
    Buffers,
    Case,
    calm,
    fill,
    make_buffers,
    room,
    wrong_elements,
)
from hpcoll.cli.bench.measure import Pace, measure
from hpcoll.cli.bench.request import check_memory
from hpcoll.cli.bench.watch import Watch
from hpcoll.cli.bench_torch.report import ASYNC, BLOCKING, GLOO, HPCOLL, TorchResult, report
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.torch.options import NAME  # the backend is registered with its package

_FLOAT32 = np.dtype(np.float32)
_CONTENDERS = tuple((backend, mode) for mode in (BLOCKING, ASYNC) for backend in (HPCOLL, GLOO))


class _Operation(NamedTuple):
    """An operation of torch.distributed."""

    collective: str  # the collective of hpcoll that says what it means
    side: str  # in place where one tensor is both read and written
    # takes source, target and a list of parts that lie apart, one per rank; keywords: group and async_op
    call: Callable[..., Any]
    lists: str = ""  # "source" or "target" where the parts take its place; else empty


_OPERATIONS = {
    "all_reduce": _Operation(
        "allreduce", IN_PLACE, lambda source, target, parts, **how: dist.all_reduce(target, **how)
    ),
    "all_gather_into_tensor": _Operation(
        "allgather",
        OUT_OF_PLACE,
        lambda source, target, parts, **how: dist.all_gather_into_tensor(target, source, **how),
    ),
    "all_gather": _Operation(
        "allgather",
        OUT_OF_PLACE,
        lambda source, target, parts, **how: dist.all_gather(parts, source, **how),
        lists="target",
    ),
    "reduce_scatter_tensor": _Operation(
        "reduce_scatter",
        OUT_OF_PLACE,
        lambda source, target, parts, **how: dist.reduce_scatter_tensor(target, source, **how),
    ),
    "reduce_scatter": _Operation(
        "reduce_scatter",
        OUT_OF_PLACE,
        lambda source, target, parts, **how: dist.reduce_scatter(target, parts, **how),
        lists="source",
    ),
    "broadcast": _Operation(
        "bcast", IN_PLACE, lambda source, target, parts, **how: dist.broadcast(target, 0, **how)
    ),
}


class _Calls(NamedTuple):
    """An operation at one size."""

    case: Case
    buffers: Buffers
    # parts of the target or the source, where the operation takes a list; else none
    parts: list[torch.Tensor]
    whole: torch.Tensor  # the tensor of which they are parts
    by: Mapping[tuple[str, str], Callable[[], object]]  # the call for each contender


def bench_torch(names: Sequence[str], sizes: Sequence[int], pace: Pace) -> int:
    """Measure, print a table on rank 0, and return 1 on every rank if an answer was wrong anywhere."""
    world = MPI.COMM_WORLD
    with ending_all_ranks(world):
        check_memory(sizes[-1], world)
        here = world.Split_type(MPI.COMM_TYPE_SHARED)
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // here.size))
        here.Free()
        dist.init_process_group(NAME)
        groups = {HPCOLL: dist.group.WORLD, GLOO: dist.new_group(backend=GLOO)}
        watch = Watch(world)
        results = [
            measured(name, size, groups, pace, world)._replace(beside=watch.look())
            for name in names
            for size in sizes
        ]
        dist.destroy_process_group()
    if world.rank == 0:
        print("\n".join(report(results, world.size, torch.__version__, watch.notes)))
    return 1 if any(result.nwrong for result in results) else 0


def measured(name: str, size: int, groups: dict[str, Any], pace: Pace, world: MPI.Intracomm) -> TorchResult:
    """Measure one operation at one size; collective."""
    calls = _calls(name, size, groups, world)
    wrong = sum(_wrong(calls, call) for call in calls.by.values())
    fill(calls.case, calls.buffers)
    calm(calls.buffers)
    times = measure(world, list(calls.by.values()), calls.case.nbytes, pace)
    wrong += sum(_wrong(calls, call) for call in calls.by.values())
    us = dict(zip(calls.by, np.median(times.seconds, axis=1) * 1e6, strict=True))
    return TorchResult(
        name, calls.case.nbytes, {key: float(value) for key, value in us.items()}, world.allreduce(wrong)
    )


def _calls(name: str, size: int, groups: dict[str, Any], world: MPI.Intracomm) -> _Calls:
    operation = _OPERATIONS[name]
    meaning = COLLECTIVES[operation.collective]
    count = max(1, size // _FLOAT32.itemsize // (world.size if meaning.blocks else 1))
    case = Case(
        operation.collective, count, _FLOAT32, SUM if meaning.reduces else None, 0, world.rank, world.size
    )
    buffers = make_buffers(case, operation.side, [torch.empty(room(case)).numpy() for _ in range(2)])
    source, target = (torch.from_numpy(array) for array in (buffers.source, buffers.target))
    parts = [torch.empty(count) for _ in range(world.size)] if operation.lists else []
    bound = {
        group: partial(operation.call, source, target, parts, group=process_group)
        for group, process_group in groups.items()
    }
    by = {
        (backend, mode): bound[backend] if mode == BLOCKING else partial(_in_flight, bound[backend])
        for backend, mode in _CONTENDERS
    }
    return _Calls(case, buffers, parts, source if operation.lists == "source" else target, by)


def _in_flight(call: Callable[..., Any]) -> None:
    call(async_op=True).wait()


def _wrong(calls: _Calls, call: Callable[[], object]) -> int:
    """Count wrong elements on this rank after one more call."""
    fill(calls.case, calls.buffers)
    for part, piece in zip(calls.parts, calls.whole.chunk(len(calls.parts) or 1), strict=False):
        part.copy_(piece)
    call()
    if calls.parts:
        torch.cat(calls.parts, out=calls.whole)
    return wrong_elements(calls.case, calls.buffers)
