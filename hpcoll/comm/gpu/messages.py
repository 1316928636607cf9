"""Buffer arguments of point-to-point messages, as the MPI library takes them: GPU arrays as they are, or by way of the host."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from hpcoll.base.dtypes import is_bfloat16
from hpcoll.base.errors import ArgumentError
from hpcoll.comm.arguments.buffers import Resolved, resolve
from hpcoll.comm.arguments.data_movement import unpack
from hpcoll.comm.arguments.memory import buffer_of, gpu_memory, with_buffer
from hpcoll.comm.arguments.native import as_native
from hpcoll.comm.gpu.mirror import Mirror, finish_streams
from hpcoll.runtime.gpu.arrays import DeviceArray, stream_handle, stream_of
from hpcoll.runtime.gpu.cuda_aware import takes_gpu_memory
from hpcoll.runtime.gpu.device import gpu_of
from hpcoll.selection.config import DIRECT, log, read_config


class Transfer(NamedTuple):
    """Buffer arguments as the MPI library takes them; ``store`` copies the received part to the GPU, by the message's status."""

    arguments: tuple[Any, ...]
    store: Callable[[MPI.Status], None] | None = None


def serve(
    comm: MPI.Comm, specs: tuple[Any, ...], received: int | None, stream: Any, *, replaces: bool = False
) -> Transfer:
    """Return the buffer arguments of a message, or of one sent and one received, for the MPI library.

    Args:
        comm: Communicator of the caller.
        specs: Buffer that is sent or received into, or one of each.
        received: Position of the buffer that is written to, or None.
        stream: The caller's ``stream=``.
        replaces: The received message replaces the one that is sent.

    Raises:
        ArgumentError: GPU memory that cannot be used, or not with this spec.
        DeviceError: The CUDA driver failed.
    """
    rank, names = comm.Get_rank(), ("sendbuf", "recvbuf") if len(specs) == 2 else ("buf",)
    arrays = gpu_arrays(specs, names, rank, received, stream)
    if not arrays:
        return Transfer(specs)
    if is_direct(comm, arrays) and all(array.order for array in arrays.values()):
        settle(arrays, stream, rank)
        return Transfer(
            tuple(
                with_buffer(spec, _ExportedMessage(arrays[i])) if i in arrays else spec
                for i, spec in enumerate(specs)
            )
        )
    streams = {stream_of(array, stream, rank) for array in arrays.values()}
    mirror = Mirror(specs, arrays, received, set() if received is None else {received}, streams)
    hosts = tuple(as_native((spec,))[0] if i in arrays else spec for i, spec in enumerate(mirror.arguments))
    places = {i: _resolved(hosts[i], names[i], rank, writable=i == received) for i in arrays}
    place = None if received is None else places.get(received)
    # else the bytes that came are one stretch
    if replaces or (place is not None and place.datatype is not None):
        mirror.fetch(everything=True)
    elif set(arrays) == {received}:
        mirror.follow()
    else:
        mirror.fetch()
    if place is None or received is None:
        return Transfer(hosts)
    memory = buffer_of(hosts[received])
    return Transfer(hosts, lambda status: mirror.store(written(place, memory, status.Get_count(MPI.BYTE))))


def written(place: Resolved, memory: np.ndarray[Any, Any], nbytes: int) -> list[tuple[int, int]]:
    """Return the address ranges that a message has written: first byte, and byte after the last one.

    Args:
        place: The receive buffer, within ``memory``.
        memory: The contiguous array that it belongs to.
        nbytes: Bytes of the message. An incomplete last element counts as written.
    """
    if place.datatype is None or not nbytes:
        return [(place.address, place.address + nbytes)] if nbytes else []
    base, size = memory.ctypes.data, place.dtype.itemsize
    count = -(-nbytes // size)
    marks = np.zeros(memory.nbytes + 2, np.uint8)
    address = place.address - base + marks.ctypes.data + 1
    unpack(
        np.full(count * size, 1, np.uint8), place._replace(address=address, count=count, nbytes=count * size)
    )
    edges = (np.flatnonzero(marks[1:] != marks[:-1]) + base).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def gpu_arrays(
    specs: tuple[Any, ...], names: tuple[str, ...], rank: int, received: int | None, stream: Any
) -> dict[int, DeviceArray]:
    """Return the GPU arrays among buffer arguments, by position; errors as in `serve`."""
    handle, arrays = None if stream is None else stream_handle(stream, rank), {}
    for position, (spec, name) in enumerate(zip(specs, names, strict=True)):
        buffer = buffer_of(spec)
        array = gpu_memory(
            buffer, f"rank {rank}: {name}", writable=position == received, bare=buffer is spec, stream=handle
        )
        if array is not None:
            arrays[position] = array
    return arrays


def settle(arrays: dict[int, DeviceArray], stream: Any, rank: int) -> None:
    """Wait for the work on GPU arrays that their streams have by now."""
    finish_streams(
        next(iter(arrays.values())).ordinal, {stream_of(array, stream, rank) for array in arrays.values()}
    )


def _resolved(spec: Any, name: str, rank: int, *, writable: bool) -> Resolved:
    place = resolve(spec, name=name, rank=rank, writable=writable)
    if place is None:
        raise ArgumentError(
            f"rank {rank}: {name} needs a datatype of positive extent for an array in GPU memory, got {spec[-1]!r}"
        )
    return place


class _ExportedMessage:
    """GPU memory as one stretch of elements, bfloat16 as integers: MPI has no type for it."""

    def __init__(self, array: DeviceArray) -> None:
        self._array = array
        typestr = "<i2" if is_bfloat16(array.dtype) else array.dtype.str
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": (array.size,),
            "typestr": typestr,
            "data": (array.pointer, array.readonly),
            "strides": None,
        }


@cache
def _takes(ordinal: int) -> bool:
    """Say whether the MPI library takes memory of a GPU; tried once per process."""
    taken = takes_gpu_memory(gpu_of(ordinal))
    log.info(
        "messages of GPU arrays: %s",
        "by MPI from GPU memory" if taken else "by MPI from page-locked host memory",
    )
    return taken


def is_direct(comm: MPI.Comm, arrays: dict[int, DeviceArray]) -> bool:
    """Say whether GPU arrays are given to the MPI library; a context is not made for that, since that is collective.

    Raises:
        ArgumentError: ``HPCOLL_CUDA_PATH`` says so, and the MPI library does not take them.
    """
    context = vars(comm).get("_context")
    path = (read_config() if context is None else context.resources.config).cuda_path
    direct = path in (None, DIRECT) and _takes(next(iter(arrays.values())).ordinal)
    if path == DIRECT and not direct:
        why = "HPCOLL_CUDA_PATH is direct, but the MPI library does not take addresses of GPU memory"
        raise ArgumentError(f"rank {comm.Get_rank()}: {why}")
    return direct
