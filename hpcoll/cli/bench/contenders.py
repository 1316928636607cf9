"""The contenders of a run, each a row of the report: the MPI library's own collective, hpcoll's algorithms, for GPU arrays more.

GPU arrays are sent by each route that ``HPCOLL_CUDA_PATH`` can force, from symmetric memory, by a copy on the host around the
MPI library's own collective (that is ``native``, what a program without hpcoll writes), by that library itself where it is CUDA-aware,
and by NCCL.
"""

import ctypes
import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import HpcollError
from hpcoll.cli.bench import nccl
from hpcoll.cli.bench.cases import IN_PLACE, Buffers, Case, bind, room
from hpcoll.cli.bench.device import gpu_array, own_gpu, rates
from hpcoll.cli.bench.modes import BLOCKING, DEVICE, NONBLOCKING, ORDINARY, OVERLAP, SYMMETRIC
from hpcoll.cli.bench.request import BenchRequest
from hpcoll.cli.bench.results import AUTO
from hpcoll.comm.arguments.operators import to_native
from hpcoll.comm.communicator import Communicator
from hpcoll.runtime.gpu.device import Gpu
from hpcoll.selection.config import CUDA_PATHS, NATIVE

CUDA_PATH = "HPCOLL_CUDA_PATH"
Bind = Callable[[Case, Buffers], Callable[[], Any]]  # the call, ready to be made again and again
DEVICE_SYMMETRIC = "device symmetric"
_TRIAL_NBYTES = 1 << 16
NATIVE_DIRECT, NCCL = f"{NATIVE}@gpu", "nccl"


class Contender(NamedTuple):
    """A row of the report.

    Attributes:
        name: In the report.
        memory: Where the buffers lie: one of `hpcoll.cli.bench.modes.MEMORIES`, or `DEVICE_SYMMETRIC`.
        bind: Makes the call.
        comm: Whose ledger tells what ran; None where ``name`` says it.
        serves: Whether there is such a call for a case and a side.
    """

    name: str
    memory: str
    bind: Bind
    comm: Communicator | None = None
    serves: Callable[[Case, str], bool] = lambda case, side: True


class Contenders(NamedTuple):
    """All contenders of a run.

    Attributes:
        rows: In the order of the report, `NATIVE` first.
        notes: What is left out, and why.
        gpu: Where GPU arrays lie, or None.
        arrays: Two symmetric arrays by memory and side.
        facts: About the machine, for the JSON report.
        owned: Communicators that were made for the run.
    """

    rows: list[Contender]
    notes: list[str]
    gpu: Gpu | None
    arrays: dict[tuple[str, str], tuple[Any, Any]]
    facts: dict[str, Any]
    owned: tuple[Communicator, ...] = ()

    def free(self) -> None:
        """Give back what was made for the run; collective."""
        self.arrays.clear()
        for comm in self.owned:
            comm.Free()


class _Around:
    """A request with work before it starts and after it is waited for."""

    def __init__(self, request: Any, before: Callable[[], object], after: Callable[[], object]) -> None:
        self._request, self._before, self._after, self.Free = request, before, after, getattr(request, "Free", None)

    def Start(self) -> None:
        self._before()
        self._request.Start()

    def Wait(self) -> None:
        self._request.Wait()
        self._after()


def find_contenders(request: BenchRequest, largest: Case, world: MPI.Intracomm, problem: str) -> Contenders:
    """All contenders of a run; collective.

    Args:
        request: What is measured.
        largest: The largest case.
        world: The MPI library's communicator; hpcoll's is made over it.
        problem: Why the MPI library cannot serve it; the empty string when it can.
    """
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
    if not notes and is_cuda_aware():
        rows.append(Contender(NATIVE_DIRECT, DEVICE, _waited(_native(request, world), request, gpu)))
    other = nccl.connect(world, gpu, request.collective, request.dtype, request.op) if request.mode == BLOCKING else "it only blocks here"
    if isinstance(other, str):
        notes.append(f"nccl is left out: {other}")
    else:
        rows.append(Contender(NCCL, DEVICE, other.bind, None, lambda case, side: nccl.serves(case, side == IN_PLACE)))
    comms = {"": comm, **{f"@{route}": _forced(world, gpu, route) for route in CUDA_PATHS if request.algorithms}}
    arrays: dict[tuple[str, str], tuple[Any, Any]] = {}
    if request.algorithms:
        try:
            arrays = {(DEVICE_SYMMETRIC, side): _symmetric(largest, comm, device="cuda") for side in largest.sides}
        except HpcollError as error:
            notes.append(f"symmetric GPU memory is left out: {error}")
    for name in request.algorithms:
        for suffix, one in comms.items():
            if isinstance(one, str):
                notes.append(f"{name}{suffix} is left out: {one}")
            else:
                rows.append(Contender(f"{name}{suffix}", DEVICE, _waited(_ours(request, one, name), request, gpu), one))
        if arrays:
            rows.append(Contender(f"{name}@symmetric", DEVICE_SYMMETRIC, _waited(_ours(request, comm, name), request, gpu), comm))
    notes.append("native copies GPU arrays to page-locked host memory, calls the MPI library, and copies back")
    owned = tuple(one for one in comms.values() if not isinstance(one, str))
    return Contenders(rows, notes, gpu, arrays, _link(world, gpu), owned)


def _link(world: MPI.Intracomm, gpu: Gpu) -> dict[str, Any]:
    """What the GPUs are and how fast they copy while nothing else runs; collective."""
    bus_ids = world.allgather((MPI.Get_processor_name(), gpu.driver.bus_id(gpu.ordinal)))
    found = rates(gpu)._asdict() if world.rank == 0 else {}
    major, minor = gpu.driver.version()
    facts = {"name": gpu.driver.device_name(gpu.ordinal), "driver": f"{major}.{minor}", "ngpus": len(set(bus_ids))}
    return {"gpu": facts | {"ranks_per_gpu": max(map(bus_ids.count, bus_ids))} | world.bcast(found)}


def _forced(world: MPI.Intracomm, gpu: Gpu, route: str) -> Communicator | str:
    """A communicator whose GPU arrays take one route, or on all ranks alike why there is none; collective."""
    before = os.environ.get(CUDA_PATH)
    os.environ[CUDA_PATH] = route
    problem = ""
    try:
        made = Communicator(world.Dup())
        made.Bcast(gpu_array(gpu, _TRIAL_NBYTES, np.dtype(np.uint8)))  # routes are found at the first call with GPU arrays
    except HpcollError as error:
        problem = str(error)
    finally:
        del os.environ[CUDA_PATH]
        if before is not None:
            os.environ[CUDA_PATH] = before
    problem = max(world.allgather(problem))
    return problem or made


def _symmetric(largest: Case, comm: Any, **where: str) -> tuple[Any, Any]:
    """Symmetric memory for all sizes; collective, with equal sizes on all ranks."""
    count = max(1, room(largest))
    return comm.empty(count, largest.dtype, **where), comm.empty(count, largest.dtype, **where)


def _native(request: BenchRequest, world: MPI.Intracomm) -> Bind:
    """mpi4py's own method: nothing of ours in between."""
    op = to_native(request.op) if request.op else None
    return lambda case, buffers: bind(case, buffers, world, op, request.mode, request.spec)


def _ours(request: BenchRequest, comm: Communicator, name: str) -> Bind:
    op = (to_native(request.op) or request.op) if request.op else None  # where MPI has the operator, both are called with it, as users do
    extras = {"algorithm": None if name == AUTO else name, "segment": request.segment}
    return lambda case, buffers: bind(case, buffers, comm, op, request.mode, request.spec, **extras)


def _waited(contender: Bind, request: BenchRequest, gpu: Gpu) -> Bind:
    """A contender whose calls end with waiting for the default stream."""

    def bound(case: Case, buffers: Buffers) -> Callable[[], Any]:
        return _surrounded(contender(case, buffers), request.mode, _nothing, partial(gpu.driver, "cuStreamSynchronize", 0))

    return bound


def _around_native(request: BenchRequest, world: MPI.Intracomm, case: Case, buffers: Buffers) -> Callable[[], Any]:
    """Copy to the host, call the MPI library, copy back: what this rank sends, and what it receives."""
    images = buffers.device
    assert images is not None
    call = _native(request, world)(case, buffers._replace(device=None))
    given, result = (set() if not case.count else set(places) for places in (buffers.inputs, buffers.outputs))
    if case.meaning.always_in_place and given:
        result = set()  # it stays what it was
    before = images.fetch(min(given) * case.count, (max(given) + 1) * case.count) if given else _nothing
    after = images.store(min(result) * case.count, (max(result) + 1) * case.count) if result else _nothing
    return _surrounded(call, request.mode, before, after)


def _surrounded(call: Callable[[], Any], mode: str, before: Callable[[], object], after: Callable[[], object]) -> Callable[[], Any]:
    """A call, in any mode, with work before and after it."""

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


def is_cuda_aware() -> bool:
    """Whether the MPI library says that it takes GPU arrays."""
    ask = getattr(ctypes.CDLL(MPI.__file__), "MPIX_Query_cuda_support", None)
    return bool(ask and ask())


def _nothing() -> None:
    """No work."""
