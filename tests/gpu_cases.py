"""Collectives on GPU arrays as cases that run anywhere: a maker gives arrays, of CuPy on a GPU or of the driver's double without one."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpcoll
from hpcoll.base.errors import HpcollError
from hpcoll.runtime.gpu import cuda
from hpcoll.selection.config import CUDA_PATHS

sys.path.insert(0, str(Path(__file__).parent / "mpi"))
from forms import COLLECTIVE, PLAIN, Case, issue, prepare
from reference import agreed

PATH = "HPCOLL_CUDA_PATH"
WAYS = CUDA_PATHS
WITHOUT = "GPU_TESTS_WITHOUT"  # variable: ways that this machine is known not to have; without it, only "direct" may be missing
REDUCING = ("Allreduce", "Reduce", "Reduce_scatter_block", "Scan")
COUNTS = (0, 1, 7, 1009, 70_001)  # the last one is long enough for the GPU's tier, in several segments
DTYPES = ("float64", "float32", "int8", "int64", "complex64", "float16")

Maker = Callable[[int, Any], Any]  # count, dtype -> an array on the GPU


def address_of(array: Any) -> int:
    """Return where an array on the GPU lies."""
    return int(array.__cuda_array_interface__["data"][0])


def write(array: Any, values: np.ndarray) -> None:
    """Fill an array on the GPU, and wait until that is done."""
    found = cuda.driver()
    assert found is not None
    if values.nbytes:
        found.copy(address_of(array), values.ctypes.data, values.nbytes, 0)
        found("cuStreamSynchronize", 0)


def read(array: Any, dtype: Any = None) -> np.ndarray:
    """Return what an array on the GPU holds, without waiting for any stream but the default one."""
    interface = array.__cuda_array_interface__
    values = np.empty(interface["shape"], interface["typestr"] if dtype is None else dtype)
    found = cuda.driver()
    assert found is not None
    if values.nbytes:
        found.copy(values.ctypes.data, address_of(array), values.nbytes, 0)
        found("cuStreamSynchronize", 0)
    return values


class GpuCase(Case):
    """A `Case` whose buffers are on the GPU; the host's are images of them, which the call never sees."""

    def __init__(self, comm: MPI.Intracomm, method: str, make: Maker, **options: Any) -> None:
        self._arrays: list[Any] = []
        super().__init__(comm, method, **options)
        self._arrays = [make(buffer.memory.size, buffer.memory.dtype) for buffer in self._buffers]
        parts = {id(buffer.inner): self._part(i) for i, buffer in enumerate(self._buffers)}
        self.arguments = tuple(self._replaced(argument, parts) for argument in self.arguments)
        self.fill(0)

    def _part(self, index: int) -> Any:
        buffer = self._buffers[index]
        around = (buffer.memory.size - buffer.inner.size) // 2
        return self._arrays[index][around : around + buffer.inner.size]

    def _replaced(self, argument: Any, parts: dict[int, Any]) -> Any:
        if isinstance(argument, list) and argument and id(argument[0]) in parts:
            return [parts[id(argument[0])], *argument[1:]]
        return parts.get(id(argument), argument)

    def fill(self, turn: int) -> None:
        super().fill(turn)
        for array, buffer in zip(self._arrays, self._buffers):
            write(array, buffer.memory)

    def good(self) -> bool:
        for array, buffer in zip(self._arrays, self._buffers):
            buffer.memory[:] = read(array, buffer.memory.dtype)
        return super().good()


@contextmanager
def forced(way: str | None) -> Iterator[None]:
    """``HPCOLL_CUDA_PATH`` with a value, or without one."""
    before = os.environ.pop(PATH, None)
    if way is not None:
        os.environ[PATH] = way
    try:
        yield
    finally:
        os.environ.pop(PATH, None)
        if before is not None:
            os.environ[PATH] = before


def communicator(way: str | None, make: Maker, *, mixed: bool = False) -> hpcoll.Communicator:
    """A communicator whose GPU arrays go one way; fails where that does not exist, or skips where it may be missing. Collective."""
    problem = ""
    with forced(way):
        comm = hpcoll.Communicator(MPI.COMM_WORLD.Dup(), mixed=mixed)
        try:
            comm.Bcast(make(COUNTS[-1], np.dtype(np.float64)))  # the ways are found at the first call
        except HpcollError as error:
            problem = str(error)
    problem = max(MPI.COMM_WORLD.allgather(problem))
    if problem:
        comm.Free()
        may_be_missing = way in ("direct", "device", *os.environ.get(WITHOUT, "").split(","))
        (pytest.skip if may_be_missing else pytest.fail)(f"HPCOLL_CUDA_PATH={way}: {problem}")
    return comm


def by_way(
    make: Callable[[str | None], hpcoll.Communicator],
) -> Iterator[Callable[[str | None], hpcoll.Communicator]]:
    """Communicators by way, made once and freed at the end."""
    made: dict[str | None, hpcoll.Communicator] = {}

    def by(way: str | None) -> hpcoll.Communicator:
        if way not in made:
            made[way] = make(way)
        return made[way]

    yield by
    for comm in made.values():
        comm.Free()


def roots(comm: MPI.Intracomm) -> list[int]:
    return sorted({0, comm.size - 1})


def cases(comm: MPI.Intracomm, method: str, make: Maker, counts: tuple[int, ...]) -> Iterator[GpuCase]:
    """Every form of a method: counts, roots, in and out of place."""
    for count in counts:
        for root in (
            roots(comm) if method in ("Reduce", "Bcast", "Gather", "Scatter", "Gatherv", "Scatterv") else [0]
        ):
            for in_place in (False, True):
                yield GpuCase(comm, method, make, count=count, root=root, in_place=in_place)


def check_method(
    comm: hpcoll.Communicator,
    method: str,
    make: Maker,
    algorithm: str | None = None,
    counts: tuple[int, ...] = COUNTS,
) -> None:
    """Twice each: the second call repeats the first one's plan on other numbers."""
    wrong = []
    options = {} if algorithm is None else {"algorithm": algorithm}
    for case in cases(comm, method, make, counts):
        for turn in (1, 2):
            case.fill(turn)
            getattr(comm, method)(*case.arguments, **options)
            if not case.good():
                wrong.append((case, turn))
    assert agreed(wrong) == []


def check_dtypes(comm: hpcoll.Communicator, method: str, make: Maker) -> None:
    """Element types, in the tier of short messages and in the other one."""
    wrong = []
    # sums of more ranks do not fit
    for dtype in DTYPES if comm.size <= 2 else [one for one in DTYPES if one != "int8"]:
        for count in (5, 70_001):
            case = GpuCase(comm, method, make, count=count, dtype=dtype)
            getattr(comm, method)(*case.arguments)
            if not case.good():
                wrong.append((dtype, count))
    assert agreed(wrong) == []


def check_requests(comm: hpcoll.Communicator, make: Maker, start: str) -> None:
    """All methods at once, as non-blocking or as persistent calls, waited for in an order that every rank has for itself."""
    every = [GpuCase(comm, method, make, count=count) for method in COLLECTIVE for count in (7, 70_001)]
    order = np.random.default_rng(comm.rank).permutation(len(every))
    if start == "nonblocking":
        requests = [issue(comm, case) for case in every]
        for index in order:
            requests[index].Wait()
        assert agreed([case for case in every if not case.good()]) == []
        return
    persistent = [prepare(comm, case) for case in every]
    for turn in (1, 2):
        for case in every:
            case.fill(turn)
        for request in persistent:
            request.Start()
        for index in order:
            persistent[index].Wait()
        assert agreed([(case, turn) for case in every if not case.good()]) == []
    for request in persistent:
        request.Free()


def check_mixed(comm: hpcoll.Communicator, make: Maker) -> None:
    """A rank with arrays in host memory among others on the GPU, and one call with both kinds; on a communicator made for that."""
    wrong = []
    for method in PLAIN:
        for count in (5, 70_001):
            host = comm.rank == 0
            case = Case(comm, method, count) if host else GpuCase(comm, method, make, count=count)
            getattr(comm, method)(*case.arguments)
            if not case.good():
                wrong.append(case)
    for count in (5, 70_001):
        send, recv = np.full(count, comm.rank + 1.0), make(count, np.dtype(np.float64))
        comm.Allreduce(send, recv)
        if not (read(recv) == comm.size * (comm.size + 1) / 2).all():
            wrong.append(("Allreduce from host to GPU", count))
    assert agreed(wrong) == []


def check_messages(comm: hpcoll.Communicator, make: Maker) -> None:
    """Send and Recv in their forms round a ring: the MPI library may not know GPU memory."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    wrong = []
    for count in (1, 7, 70_001):
        send, recv, dtype = make(count, np.dtype(np.float64)), make(count, np.dtype(np.float64)), np.float64
        write(send, np.full(count, comm.rank, dtype))
        write(recv, np.full(count, -1, dtype))
        request = comm.Isend(send, right, 5)
        comm.Recv(recv, left, 5)
        request.Wait()
        wrong += [] if (read(recv) == left).all() else [("Isend, Recv", count)]
        write(recv, np.full(count, -1, dtype))
        request = comm.Irecv(recv, left, 6)
        comm.Send(send, right, 6)
        request.Wait()
        wrong += [] if (read(recv) == left).all() else [("Irecv, Send", count)]
        write(recv, np.full(count, -1, dtype))
        comm.Sendrecv(send, right, 7, recv, left, 7)
        wrong += [] if (read(recv) == left).all() else [("Sendrecv", count)]
    assert agreed(wrong) == []


def check_half(comm: hpcoll.Communicator, make: Maker) -> None:
    """float16 is added in float32 and rounded once, by the algorithms that may be picked and by one that works in float32 throughout."""
    every = np.random.default_rng(7).standard_normal((comm.size, 70_001)).astype(np.float16)
    total = every[0].astype(np.float32)
    for one in every[1:]:
        total += one.astype(np.float32)
    wrong = []
    for algorithm in (None, "direct", "two_shot", "ring"):
        exact = algorithm != "ring" or comm.size <= 2  # which adds in another order
        for in_place in (False, True):
            send, recv = make(70_001, np.dtype(np.float16)), make(70_001, np.dtype(np.float16))
            write(send, every[comm.rank])
            write(recv, every[comm.rank])
            comm.Allreduce(MPI.IN_PLACE if in_place else send, recv, algorithm=algorithm)
            found, wanted = read(recv), total.astype(np.float16)
            if not ((found == wanted) if exact else np.isclose(found, wanted, rtol=1e-3, atol=1e-6)).all():
                wrong.append((algorithm, in_place))
    assert agreed(wrong) == []


def check_factors(comm: hpcoll.Communicator, make: Maker) -> None:
    """Premultiplied sums: zero is a factor too, and one that the type cannot hold is refused."""
    wrong = []
    for count in (5, 70_001):
        send, recv = make(count, np.dtype(np.float64)), make(count, np.dtype(np.float64))
        write(send, np.full(count, 2.0))
        for factor in (0.0, -0.5, 3.0):
            comm.Allreduce(send, recv, op=hpcoll.premul_sum(factor))
            if not (read(recv) == 2.0 * factor * comm.size).all():
                wrong.append((factor, count))
        with pytest.raises(hpcoll.ArgumentError, match="premul_sum needs a factor that float64 can hold"):
            comm.Allreduce(send, recv, op=hpcoll.premul_sum(1j))
    assert agreed(wrong) == []
