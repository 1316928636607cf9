"""The contenders of a run, each a row of the report: the MPI library's own collective, hpcoll's algorithms, for GPU arrays more.

GPU arrays are sent by each route that ``HPCOLL_CUDA_PATH`` can force, from symmetric memory, by the MPI library where it is
CUDA-aware, and by NCCL. ``native`` copies them to the host around the library's collective, as a program without hpcoll does.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import HpcollError
from hpcoll.cli.bench import nccl
from hpcoll.cli.bench.cases import IN_PLACE, Buffers, Case, bind, room
from hpcoll.cli.bench.device import gpu_array, own_gpu, rates
from hpcoll.cli.bench.modes import BLOCKING, DEVICE, NONBLOCKING, ORDINARY, OVERLAP, SYMMETRIC, nothing
from hpcoll.cli.bench.report import AUTO
from hpcoll.cli.bench.request import BenchRequest
from hpcoll.cli.doctor.gpus import cuda_awareness
from hpcoll.comm.arguments.call import to_native
from hpcoll.comm.communicator import Communicator
from hpcoll.runtime.gpu.device import Gpu
from hpcoll.selection.config import CUDA_PATHS, NATIVE

CUDA_PATH = "HPCOLL_CUDA_PATH"
Bind = Callable[[Case, Buffers], Callable[[], Any]]  # the call, ready to be made again and again
DEVICE_SYMMETRIC = "device symmetric"
_TRIAL_NBYTES = 1 << 16
NATIVE_DIRECT, NCCL = f"{NATIVE}@gpu", "nccl"


class Contender(NamedTuple):
    """A row of the report."""

    name: str
    memory: str  # one of `hpcoll.cli.bench.modes.MEMORIES`, or `DEVICE_SYMMETRIC`
    bind: Bind  # makes the call
    comm: Communicator | None = (
        None  # the communicator whose ledger tells what ran; None where ``name`` says it
    )
    # says whether there is such a call for a case and a side
    serves: Callable[[Case, str], bool] = lambda case, side: True


class Contenders(NamedTuple):
    """All contenders of a run."""

    rows: list[Contender]  # in the order of the report, `NATIVE` first
    notes: list[str]  # contenders that are left out, and why
    gpu: Gpu | None  # holds the GPU arrays
    arrays: dict[tuple[str, str], tuple[Any, Any]]  # two symmetric arrays by memory and side
    facts: dict[str, Any]  # about the machine, for the JSON report
    comms: Sequence[Communicator] = ()  # communicators of GPU arrays, which are freed with the arrays

    def free(self) -> None:
        """Free the symmetric arrays, then the communicators; collective."""
        self.arrays.clear()
        for comm in self.comms:
            comm.Free()


class _Around:
    """A request with work before it starts and after it is waited for."""

    def __init__(self, request: Any, before: Callable[[], object], after: Callable[[], object]) -> None:
        self._request, self._before, self._after, self.Free = (
            request,
            before,
            after,
            getattr(request, "Free", None),
        )

    def Start(self) -> None:
        self._before()
        self._request.Start()

    def Wait(self) -> None:
        self._request.Wait()
        self._after()


def find_contenders(request: BenchRequest, largest: Case, world: MPI.Intracomm, problem: str) -> Contenders:
    """Return all contenders of a run; collective. ``problem``: why the MPI library cannot serve it, or the empty string."""
    notes = [f"native is left out: {problem}"] if problem else []
    if request.memory == DEVICE:
        return _on_gpu(request, largest, world, notes)
    comm = Communicator(world)
    rows = [] if problem else [Contender(NATIVE, ORDINARY, _native(request, world))]
    rows += [Contender(name, request.memory, _ours(request, comm, name), comm) for name in request.algorithms]
    arrays = {}
    if request.memory == SYMMETRIC:
        notes.append("hpcoll's buffers are symmetric memory, native's are ordinary")
        arrays = {(SYMMETRIC, side): _symmetric(largest, comm) for side in largest.sides}
    return Contenders(rows, notes, None, arrays, {})


def _on_gpu(request: BenchRequest, largest: Case, world: MPI.Intracomm, notes: list[str]) -> Contenders:
    gpu, comm = own_gpu(), Communicator(world.Dup())
    rows = [] if notes else [Contender(NATIVE, DEVICE, partial(_around_native, request, world))]
    if not notes and cuda_awareness(str(MPI.__file__)):
        rows.append(Contender(NATIVE_DIRECT, DEVICE, _waited(_native(request, world), request, gpu)))
    other = (
        nccl.connect(world, gpu, request.collective, request.dtype, request.op)
        if request.mode == BLOCKING
        else "it only blocks here"
    )
    if isinstance(other, str):
        notes.append(f"nccl is left out: {other}")
    else:
        rows.append(
            Contender(NCCL, DEVICE, other.bind, None, lambda case, side: nccl.serves(case, side == IN_PLACE))
        )
    comms, arrays = {"": comm}, dict[tuple[str, str], tuple[Any, Any]]()
    if request.algorithms:
        for route in CUDA_PATHS:
            made = _forced(world, gpu, route)
            if isinstance(made, str):
                notes.append(
                    f"{', '.join(f'{name}@{route}' for name in request.algorithms)} is left out: {made}"
                )
            else:
                comms[f"@{route}"] = made
        try:
            arrays = {
                (DEVICE_SYMMETRIC, side): _symmetric(largest, comm, device="cuda") for side in largest.sides
            }
        except HpcollError as error:
            notes.append(f"symmetric GPU memory is left out: {error}")
    for name in request.algorithms:
        ways = [(suffix, DEVICE, one) for suffix, one in comms.items()] + (
            [("@symmetric", DEVICE_SYMMETRIC, comm)] if arrays else []
        )
        rows += [
            Contender(name + suffix, memory, _waited(_ours(request, one, name), request, gpu), one)
            for suffix, memory, one in ways
        ]
    notes.append(
        "native copies GPU arrays to page-locked host memory, calls the MPI library, and copies back"
    )
    return Contenders(rows, notes, gpu, arrays, _link(world, gpu), [*comms.values()])


def _link(world: MPI.Intracomm, gpu: Gpu) -> dict[str, Any]:
    """Return the model of the GPUs and the rates at which they copy while nothing else runs; collective."""
    bus_ids = world.allgather((MPI.Get_processor_name(), gpu.driver.bus_id(gpu.ordinal)))
    measured = rates(gpu) if world.rank == 0 else {}
    major, minor = gpu.driver.version()
    facts = {
        "name": gpu.driver.device_name(gpu.ordinal),
        "driver": f"{major}.{minor}",
        "ngpus": len(set(bus_ids)),
    }
    return {"gpu": facts | {"ranks_per_gpu": max(map(bus_ids.count, bus_ids))} | world.bcast(measured)}


def _forced(world: MPI.Intracomm, gpu: Gpu, route: str) -> Communicator | str:
    """Return a communicator whose GPU arrays take one route, or on all ranks the reason why there is none; collective."""
    before = os.environ.get(CUDA_PATH)
    os.environ[CUDA_PATH] = route
    problem = ""
    try:
        made = Communicator(world.Dup())
        # routes are found at the first call with GPU arrays
        made.Bcast(gpu_array(gpu, _TRIAL_NBYTES, np.dtype(np.uint8)))
    except HpcollError as error:
        problem = str(error)
    finally:
        del os.environ[CUDA_PATH]
        if before is not None:
            os.environ[CUDA_PATH] = before
    problem = max(world.allgather(problem))
    return problem or made


def _symmetric(largest: Case, comm: Any, **where: str) -> tuple[Any, Any]:
    """Return symmetric memory for all sizes; collective, with equal sizes on all ranks."""
    count = max(1, room(largest))
    return comm.empty(count, largest.dtype, **where), comm.empty(count, largest.dtype, **where)


def _native(request: BenchRequest, world: MPI.Intracomm) -> Bind:
    """Bind mpi4py's own method, with nothing of hpcoll's in between."""
    op = to_native(request.op) if request.op else None
    return lambda case, buffers: bind(case, buffers, world, op, request.mode, request.spec)


def _ours(request: BenchRequest, comm: Communicator, name: str) -> Bind:
    # where MPI has the operator, both are called with it, as users do
    op = (to_native(request.op) or request.op) if request.op else None
    extras = {"algorithm": None if name == AUTO else name, "segment": request.segment, "order": request.order}
    return lambda case, buffers: bind(case, buffers, comm, op, request.mode, request.spec, **extras)


def _waited(contender: Bind, request: BenchRequest, gpu: Gpu) -> Bind:
    """Return a contender whose calls end with waiting for the default stream."""

    def bound(case: Case, buffers: Buffers) -> Callable[[], Any]:
        return _surrounded(
            contender(case, buffers), request.mode, nothing, partial(gpu.driver, "cuStreamSynchronize", 0)
        )

    return bound


def _around_native(
    request: BenchRequest, world: MPI.Intracomm, case: Case, buffers: Buffers
) -> Callable[[], Any]:
    """Bind a copy to the host of what this rank sends, the MPI library's call, and a copy back of what it receives."""
    images = buffers.device
    assert images is not None
    call = _native(request, world)(case, buffers._replace(device=None))
    given, result = (set() if not case.count else set(places) for places in (buffers.inputs, buffers.outputs))
    if case.meaning.always_in_place and given:
        result = set()  # it stays what it was
    before = images.fetch(min(given) * case.count, (max(given) + 1) * case.count) if given else nothing
    after = images.store(min(result) * case.count, (max(result) + 1) * case.count) if result else nothing
    return _surrounded(call, request.mode, before, after)


def _surrounded(
    call: Callable[[], Any], mode: str, before: Callable[[], object], after: Callable[[], object]
) -> Callable[[], Any]:
    """Return a call, in any mode, with work before and after it."""

    def blocking() -> None:
        before()
        call()
        after()

    def started() -> _Around:
        before()
        return _Around(call(), before, after)

    if mode == BLOCKING:
        return blocking
    return started if mode in (NONBLOCKING, OVERLAP) else lambda: _Around(call(), before, after)
