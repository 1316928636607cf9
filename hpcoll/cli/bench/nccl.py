"""NCCL as a candidate of the benchmark, through its C library, wherever a Python package has put it.

NCCL takes one rank per GPU and arrays in GPU memory. It works on a stream, for which the caller waits.
"""

import ctypes
import importlib.util
from collections.abc import Callable
from ctypes import POINTER, c_char, c_int, c_size_t, c_void_p
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import DeviceError, HpcollError
from hpcoll.base.ops import ReduceOp
from hpcoll.cli.bench.cases import Buffers, Case
from hpcoll.cli.bench.device import address_of
from hpcoll.runtime.gpu.device import Gpu

_LIBRARY = "libnccl.so.2"
_PACKAGES = ("nvidia.nccl", "cupy.lib")
_TYPES = {
    "int8": 0,
    "uint8": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}
_OPERATORS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
_PLACES = ("allreduce", "reduce", "bcast", "allgather")  # what it calls in place is what MPI does
_SERVED = (*_PLACES, "reduce_scatter", "alltoall")


class _Id(ctypes.Structure):
    _fields_ = (("text", c_char * 128),)


_P, _N, _I = c_void_p, c_size_t, c_int
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "ncclGetUniqueId": (POINTER(_Id),),
    "ncclCommInitRank": (POINTER(_P), _I, _Id, _I),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
    "ncclAllReduce": (_P, _P, _N, _I, _I, _P, _P),
    "ncclReduce": (_P, _P, _N, _I, _I, _I, _P, _P),
    "ncclReduceScatter": (_P, _P, _N, _I, _I, _P, _P),
    "ncclAllGather": (_P, _P, _N, _I, _P, _P),
    "ncclBcast": (_P, _N, _I, _I, _P, _P),
    "ncclSend": (_P, _N, _I, _I, _P, _P),
    "ncclRecv": (_P, _N, _I, _I, _P, _P),
}


class Nccl:
    """A communicator of NCCL over all ranks of an MPI communicator; made collectively."""

    def __init__(self, library: Any, world: MPI.Intracomm, gpu: Gpu) -> None:
        self._library, self._gpu, self._stream, self._comm = library, gpu, gpu.driver.stream(), _P()
        for name, types in _FUNCTIONS.items():
            function = getattr(library, name)
            function.argtypes, function.restype = types, _I
        mine = _Id()
        if world.rank == 0:
            self("ncclGetUniqueId", ctypes.byref(mine))
        mine = _Id.from_buffer_copy(world.bcast(bytes(mine)))
        self("ncclCommInitRank", ctypes.byref(self._comm), world.size, mine, world.rank)

    def __call__(self, name: str, *arguments: Any) -> None:
        """Call a function of the library."""
        code = getattr(self._library, name)(*arguments)
        if code:
            raise DeviceError(f"{name} failed with {code}", code=code)

    def bind(self, case: Case, buffers: Buffers) -> Callable[[], None]:
        """Return the call, which ends when its work is done."""
        assert buffers.device is not None
        source, target = address_of(buffers.device.source), address_of(buffers.device.target)
        dtype = _TYPES[case.dtype.name]
        op, tail = _OPERATORS[case.op.name] if case.op else 0, (self._comm, self._stream)
        if buffers.in_place and case.collective == "allgather":
            source += case.rank * case.count * case.dtype.itemsize
        work = {
            "allreduce": partial(self, "ncclAllReduce", source, target, case.count, dtype, op, *tail),
            "reduce": partial(self, "ncclReduce", source, target, case.count, dtype, op, case.root, *tail),
            "reduce_scatter": partial(
                self, "ncclReduceScatter", source, target, case.count, dtype, op, *tail
            ),
            "allgather": partial(self, "ncclAllGather", source, target, case.count, dtype, *tail),
            "bcast": partial(self, "ncclBcast", target, case.count, dtype, case.root, *tail),
            "alltoall": partial(self._alltoall, case, source, target, dtype),
        }[case.collective]

        def call() -> None:
            work()
            self._gpu.driver("cuStreamSynchronize", self._stream)

        return call

    def _alltoall(self, case: Case, source: int, target: int, dtype: int) -> None:
        step, tail = case.count * case.dtype.itemsize, (self._comm, self._stream)
        self("ncclGroupStart")
        for peer in range(case.nranks):
            self("ncclSend", source + peer * step, case.count, dtype, peer, *tail)
            self("ncclRecv", target + peer * step, case.count, dtype, peer, *tail)
        self("ncclGroupEnd")


def serves(case: Case, in_place: bool) -> bool:
    """Say whether NCCL has such a call."""
    return case.collective in (_PLACES if in_place else _SERVED)


def connect(
    world: MPI.Intracomm, gpu: Gpu, collective: str, dtype: np.dtype, op: ReduceOp | None
) -> Nccl | str:
    """Return a communicator, or on all ranks the reason why there is none; collective."""
    bus_ids = world.allgather((MPI.Get_processor_name(), gpu.driver.bus_id(gpu.ordinal)))
    if len(set(bus_ids)) < world.size:
        return "it refuses several ranks per GPU"
    if (
        collective not in _SERVED
        or dtype.name not in _TYPES
        or (op is not None and op.name not in _OPERATORS)
    ):
        return "it has no such call"
    library = _find()
    if not all(world.allgather(library is not None)):
        return f"{_LIBRARY} was not found"
    try:
        made: Nccl | str = Nccl(library, world, gpu)
    except (HpcollError, AttributeError) as error:
        made = str(error)
    problems = [problem for problem in world.allgather(made if isinstance(made, str) else "") if problem]
    return problems[0] if problems else made


def _find() -> Any:
    """Return the library, or None."""
    places = [Path(_LIBRARY)]
    for package in _PACKAGES:
        try:
            spec = importlib.util.find_spec(package)
        except ImportError:
            continue
        places += (
            [Path(folder, "lib", _LIBRARY) for folder in (spec.submodule_search_locations or ())]
            if spec
            else []
        )
    for path in places:
        try:
            return ctypes.CDLL(str(path))
        except OSError:
            continue
    return None
