"""Arrays in memory that ranks of a node share: symmetric ones, and read-only copies.

All ranks of the communicator get their array or the same `ArgumentError`. Where a rank has no neighbours, or shared memory is off or
refused, its array is ordinary memory and behaves the same.
"""

import operator
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from hpcoll.base.agreement import agreed
from hpcoll.base.errors import ArgumentError, DeviceError
from hpcoll.base.text import quoted, text_of
from hpcoll.comm.arguments.call import check_root
from hpcoll.comm.plans.signature import Purpose
from hpcoll.comm.team.service_collectives import ServiceCollectives
from hpcoll.runtime.program.opcodes import CACHE_LINE_NBYTES
from hpcoll.runtime.transports.local_ranks import LocalRanks

_MOST_NBYTES = 1 << 46  # what a process can map
_PIECE_NBYTES = 1 << 30  # int counts end at 2**31 - 1


class ArrayForm(NamedTuple):
    """Shape and element type of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"shape {self.shape} of {self.dtype}"


def symmetric(
    comm: MPI.Intracomm,
    service_collectives: ServiceCollectives,
    allocate: Callable[[ArrayForm], Any],
    method: str,
    shape: Any,
    dtype: Any,
) -> Any:
    """Return an array of this rank, which its peers on the node read in place; collective.

    Args:
        comm: Communicator whose ranks make the call.
        service_collectives: Its service collectives.
        allocate: Makes the array; collective. It raises ArgumentError, DeviceError or MemoryError.
        method: Name of the method that was called.
        shape: Shape as NumPy takes it, equal on all ranks.
        dtype: Element type as NumPy takes it, equal on all ranks.

    Raises:
        ArgumentError: on every rank, when one cannot have its array or asked for another.
    """
    problem, form, rank = "", ArrayForm((), np.dtype(np.uint8)), comm.rank
    try:
        form = _form(rank, method, shape, dtype)
    except ArgumentError as error:
        problem = str(error)
    _agree(service_collectives, problem, f"{method} with {form}")
    array: Any = None
    try:
        array = allocate(form)
    except (ArgumentError, DeviceError, MemoryError) as error:
        problem = (
            str(error)
            if isinstance(error, ArgumentError)
            else f"rank {rank}: {method} with {form}: {text_of(error)}"
        )
    try:
        _agree(service_collectives, problem, f"the end of {method} with {form}")
    except ArgumentError:
        array = None  # the traceback must not keep it
        raise
    return array


def zeros(node: LocalRanks | None, form: ArrayForm) -> np.ndarray:
    """Return an array of zeros in host memory; collective over ``node``, None for ordinary memory."""
    memory = node.symmetric(form.nbytes) if node and form.nbytes else _ordinary(form.nbytes)
    return memory.view(form.dtype).reshape(form.shape)


def share(
    comm: MPI.Intracomm,
    service_collectives: ServiceCollectives,
    node: LocalRanks | None,
    array: Any,
    root: Any,
) -> np.ndarray:
    """Return a read-only copy of the root's array, one for all ranks of a node; collective.

    Args:
        comm: As in `symmetric`.
        service_collectives: As in `symmetric`.
        node: As in `zeros`.
        array: Of numbers; ignored but at the root.
        root: Equal on all ranks.

    Raises:
        ArgumentError: on every rank, when one cannot have it.
    """
    problem, form, source = "", ArrayForm((), np.dtype(np.uint8)), np.empty(0)
    try:
        root = check_root(root, comm.size, comm.rank)
        if comm.rank == root:
            source = _source(comm.rank, array)
            form = _form(comm.rank, "share", source.shape, source.dtype)
    except ArgumentError as error:
        problem = str(error)
    form = _agree(service_collectives, problem, f"share with root {root}", form)[root]
    if form.nbytes == 0:
        return _read_only(np.empty(0, np.uint8), form)
    writer = 0 if node is None else node.rank if comm.rank == root else node.local_peers.get(root, 0)
    leads = node is None or node.rank == writer
    memory = mapping = None
    try:
        mapping = node.copy(form.nbytes, writer) if node else None
        memory = mapping.array(0, form.nbytes) if mapping else _ordinary(form.nbytes)
    except (ArgumentError, MemoryError) as error:
        problem = (
            str(error)
            if isinstance(error, ArgumentError)
            else f"rank {comm.rank}: share with {form}: {text_of(error)}"
        )
    try:
        _agree(service_collectives, problem, f"the end of share with root {root}")
    except ArgumentError:
        memory = mapping = None
        raise
    assert memory is not None
    if comm.rank == root:
        memory.view(form.dtype).reshape(form.shape)[...] = source
    if node is None or node.nranks < comm.size:
        _spread(comm, memory, root, leads)
    if node and mapping:
        node.comm.Barrier()
        mapping.freeze()
    return _read_only(memory, form)


def _spread(comm: MPI.Intracomm, memory: np.ndarray, root: int, leads: bool) -> None:
    """Copy the root's bytes to all ranks that lead."""
    leaders = comm.Split(0 if leads else MPI.UNDEFINED, 0 if comm.rank == root else 1 + comm.rank)
    if leads:
        for at in range(0, memory.size, _PIECE_NBYTES):
            leaders.Bcast(memory[at : at + _PIECE_NBYTES], 0)
        leaders.Free()


def _form(rank: int, method: str, shape: Any, dtype: Any) -> ArrayForm:
    """Return the form that was asked for, checked."""
    try:
        element = np.dtype(dtype)
    except TypeError as error:
        raise ArgumentError(
            f"rank {rank}: {method} needs an element type, got {quoted(dtype)}: {text_of(error)}"
        ) from None
    if element.hasobject or element.itemsize == 0:
        raise ArgumentError(f"rank {rank}: {method} needs elements of fixed size, got {quoted(element)}")
    try:
        axes = tuple(map(operator.index, shape)) if isinstance(shape, Iterable) else (operator.index(shape),)
        np.empty([0] * len(axes))  # not more axes than NumPy has
        form = ArrayForm(axes, element)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"rank {rank}: {method} needs a shape of integers >= 0, got {quoted(shape)}"
        ) from None
    if min(axes, default=0) < 0:
        raise ArgumentError(f"rank {rank}: {method} needs a shape of integers >= 0, got {quoted(shape)}")
    if form.nbytes > _MOST_NBYTES:
        raise ArgumentError(
            f"rank {rank}: {method} needs at most {_MOST_NBYTES} bytes, got {form.nbytes} for {form}"
        )
    return form


def _source(rank: int, array: Any) -> np.ndarray:
    try:
        return np.asarray(array)
    except (TypeError, ValueError, BufferError) as error:
        raise ArgumentError(
            f"rank {rank}: share needs an array, got a {type(array).__name__}: {text_of(error)}"
        ) from None


def _agree(service_collectives: ServiceCollectives, problem: str, call: str, more: Any = None) -> list[Any]:
    """Return every rank's ``more``.

    Raises:
        ArgumentError: on every rank, when one has a problem or makes another call than rank 0.
    """
    gather = partial(service_collectives.gather_objects, purpose=Purpose.ARRAY, what=call)
    return agreed(gather, problem, {"the call": call}, more)


def _ordinary(nbytes: int) -> np.ndarray:
    """Return zeros that start a cache line."""
    memory = np.zeros(nbytes + CACHE_LINE_NBYTES, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE_NBYTES
    return memory[start : start + nbytes]


def _read_only(memory: np.ndarray, form: ArrayForm) -> np.ndarray:
    """Return an array over bytes that nobody can make writable again."""
    return np.frombuffer(memory.data.toreadonly(), np.uint8).view(form.dtype).reshape(form.shape)
