"""Short calls on GPU arrays like an earlier one: copied to page-locked memory, where the call cache finds them.

A call that is not found here, or that must wait for another, takes the usual way from its start: nothing has left this rank by then.
"""

from math import prod
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import DeviceError
from hpcoll.comm.arguments.methods import FOUND_BY, METHODS, Caller
from hpcoll.runtime.gpu.arrays import LEGACY_STREAM, stream_handle, torch_stream
from hpcoll.runtime.gpu.cuda import Driver, driver
from hpcoll.runtime.gpu.device import pinned
from hpcoll.runtime.program.call_fields import MANY

GPU_NBYTES = 64 << 10  # messages from here on run by a program for GPU memory
_SERVED = frozenset(name for name, row in METHODS.items() if row.fills and MANY not in row.holds and row.arguments)


class _Copied(NamedTuple):
    """An array in GPU memory, its stream, and its copy in host memory."""

    pointer: int
    stream: int
    host: np.ndarray


class ShortCall(NamedTuple):
    """A call on host copies, which have been filled.

    Attributes:
        found_by: Buffers and operator by which the call cache finds it.
        arguments: Arguments of the method, on host copies.
        received: The array that gets the result, or None.
    """

    found_by: tuple[Any, ...]
    arguments: tuple[Any, ...]
    received: _Copied | None

    def store(self) -> None:
        """Copy the result to the GPU, and wait for that; raise DeviceError when the driver fails."""
        if self.received is not None:
            found, (pointer, stream, host) = driver(), self.received
            assert found is not None
            found("cuMemcpyAsync", pointer, host.ctypes.data, host.nbytes, stream)
            found("cuStreamSynchronize", stream)


def short_call(caller: Caller, method: str, arguments: tuple[Any, ...], stream: Any) -> ShortCall | None:
    """Return a call on host copies of its arrays, with what it sends in them; None where its arguments need a closer look.

    Arguments as of `hpcoll.comm.context.context.Context.run`.
    """
    found = driver()
    if method not in _SERVED or found is None:
        return None
    try:
        return _copied_call(found, caller, method, arguments, stream)
    except (DeviceError, LookupError, TypeError, ValueError):  # the usual way says what is wrong
        return None


def _copied_call(found: Driver, caller: Caller, method: str, arguments: tuple[Any, ...], stream: Any) -> ShortCall | None:
    copied, (sent, received) = dict[int, _Copied](), METHODS[method].buffers(arguments, caller.rank)
    handle = None if stream is None else stream_handle(stream, caller.rank)
    in_place = False
    for at in (sent, received):
        if at is None or arguments[at] is MPI.IN_PLACE:
            in_place = in_place or at is not None
        elif (one := _room_for(found, arguments[at], handle, written=at == received)) is None:
            return None
        else:
            copied[at] = one
    if len(copied) == 2 and _overlap(*copied.values()):
        return None
    for at, one in copied.items():
        if at == sent or in_place:
            found("cuMemcpyAsync", one.host.ctypes.data, one.pointer, one.host.nbytes, one.stream)
            found("cuStreamSynchronize", one.stream)
    theirs = tuple(copied[at].host if at in copied else one for at, one in enumerate(arguments))
    send, recv, op, _ = FOUND_BY[method](theirs, caller)
    return ShortCall((send, recv, op), theirs, None if received is None else copied.get(received))


def _room_for(found: Driver, given: Any, handle: int | None, *, written: bool) -> _Copied | None:
    """Return an array with memory for its copy; None where it is long, empty, has gaps, or is none."""
    interface = getattr(given, "__cuda_array_interface__", None)
    if interface is None or interface.get("strides") is not None or interface.get("mask") is not None:
        return None
    (pointer, readonly), dtype = interface["data"], np.dtype(interface["typestr"])
    nbytes = prod(interface["shape"]) * dtype.itemsize
    if not 0 < nbytes < GPU_NBYTES or dtype.kind == "V" or (written and readonly):
        return None
    stream = handle or interface.get("stream") or torch_stream(given) or LEGACY_STREAM
    base, reach = found.address_range(pointer)
    if pointer + nbytes > base + reach or found.is_capturing(stream):
        return None
    return _Copied(pointer, stream, pinned(found, nbytes).view(dtype))


def _overlap(one: _Copied, other: _Copied) -> bool:
    return one.pointer < other.pointer + other.host.nbytes and other.pointer < one.pointer + one.host.nbytes
