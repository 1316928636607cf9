"""The request of a benchmark run: what it measures, and checks that the machine and the MPI library can."""

from dataclasses import dataclass, replace

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import ArgumentError, HpcollError
from hpcoll.base.machine import left_nbytes
from hpcoll.base.ops import ReduceOp
from hpcoll.base.text import format_nbytes
from hpcoll.cli.all_ranks import refuse
from hpcoll.cli.bench.cases import OUT_OF_PLACE, Case, bind, fill, make_buffers
from hpcoll.cli.bench.device import own_gpu
from hpcoll.cli.bench.measure import Pace
from hpcoll.cli.bench.modes import BARE, BLOCKING, DEVICE, NEW, ORDINARY, SAME, in_mode, method_in
from hpcoll.comm.arguments.call import to_native
from hpcoll.comm.arguments.methods import BY_COLLECTIVE
from hpcoll.schedules.collectives import COLLECTIVES, nblocks

# raised by a call that the MPI library or mpi4py lacks
_MISSING = (
    MPI.Exception,
    NotImplementedError,
    AttributeError,
)


@dataclass(frozen=True)
class BenchRequest:
    """The request of a run; equal on all ranks."""

    collective: str
    sizes: tuple[int, ...]  # bytes of the messages, ascending; a size is cut to whole elements and blocks
    dtype: np.dtype
    op: ReduceOp | None  # None where nothing is combined
    root: int
    algorithms: tuple[str, ...]  # names of the catalogue, and ``auto``; ``native`` is measured beside them
    segment: int | None  # bytes per segment, or None
    check: bool
    pace: Pace
    mode: str = BLOCKING  # one of `hpcoll.cli.bench.modes.MODES`
    memory: str = ORDINARY  # memory of hpcoll's buffers: one of `hpcoll.cli.bench.modes.MEMORIES`; native's are always ordinary
    sizes_of_calls: str = (
        SAME  # `hpcoll.cli.bench.modes.NEW` where each call has a size of its own, a little below
    )
    spec: str = BARE  # form in which buffers are given: `hpcoll.cli.bench.modes.BARE` or ``LIST``
    traffic: bool = False  # count the bytes that calls move through memory
    order: str | None = None  # of hpcoll's reductions, as their keyword

    @property
    def method(self) -> str:
        """Name of the method that is called."""
        return method_in(BY_COLLECTIVE[self.collective].name, self.mode)


def cases_of(request: BenchRequest, rank: int, nranks: int) -> list[Case]:
    """Return one case per size, without repetition; a size below one element per block becomes that."""
    meaning = COLLECTIVES[request.collective]
    unit = request.dtype.itemsize * nblocks(request.collective, nranks)
    counts = [0] if meaning.idempotent else sorted({max(1, size // unit) for size in request.sizes})
    return [
        Case(request.collective, count, request.dtype, request.op, request.root, rank, nranks)
        for count in counts
    ]


def check(request: BenchRequest, world: MPI.Intracomm) -> None:
    """Refuse before the measurement what cannot be measured: with the same ArgumentError on all ranks; collective."""
    check_memory(request.sizes[-1], world)
    problem = native_problem(request, cases_of(request, world.Get_rank(), world.Get_size())[0], world)
    if problem and not request.algorithms:
        raise ArgumentError(f"nothing is left to measure: {problem}")
    if request.sizes_of_calls == NEW and (request.mode != BLOCKING or request.memory == DEVICE):
        raise ArgumentError("--sizes new needs blocking calls and arrays in host memory")
    if request.traffic and (
        request.mode != BLOCKING or request.memory == DEVICE or request.sizes_of_calls == NEW
    ):
        raise ArgumentError("--memory-traffic needs blocking calls of one size and arrays in host memory")
    if request.memory == DEVICE:
        problem = ""
        try:
            own_gpu()
        except HpcollError as error:
            problem = f"rank {world.Get_rank()}: memory device: {error}"
        refuse(world, problem)


def check_memory(nbytes: int, world: MPI.Intracomm) -> None:
    """Refuse messages of so many bytes where the memory that is left on some host cannot hold one; collective."""
    left = world.allreduce(left_nbytes() or nbytes, MPI.MIN)
    if nbytes > left:
        raise ArgumentError(
            f"a message of {format_nbytes(nbytes)} is more than the memory that is left: {format_nbytes(left)}"
        )


def native_problem(request: BenchRequest, case: Case, world: MPI.Intracomm) -> str:
    """Return why the MPI library cannot serve such calls, agreed on by all ranks; the empty string when it can."""
    problem = ""
    op = to_native(case.op) if case.op else None
    if case.op is not None and op is None:
        problem = f"the MPI library has no operator {case.op.name}"
    elif case.count:
        probe = np.zeros(1, case.dtype)
        try:
            world.Allreduce(MPI.IN_PLACE, probe, op=op or MPI.MAX) if case.op else world.Bcast(probe)
        except (MPI.Exception, BufferError, TypeError, ValueError, KeyError) as error:
            problem = f"the MPI library cannot take {case.dtype.name} elements ({type(error).__name__})"
    problem = max(world.allgather(problem))
    if problem or request.mode == BLOCKING:
        return problem
    small = replace(case, count=min(1, case.count))
    buffers = make_buffers(small, OUT_OF_PLACE)
    fill(small, buffers)
    try:
        made = in_mode(bind(small, buffers, world, op, request.mode), request.mode)
        made.call()
        made.free()
    except _MISSING as error:
        problem = f"the MPI library has no {request.method} ({type(error).__name__})"
    return max(world.allgather(problem))
