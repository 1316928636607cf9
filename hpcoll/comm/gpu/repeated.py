"""Calls on GPU arrays like an earlier one, which need no description.

Short ones are copied to page-locked memory, where the call cache finds them, whatever their sizes. Longer ones are known by the addresses
and sizes of their arrays. A call that is not found here, or that must wait for another, takes the usual way from its start: nothing has
left this rank by then.
"""

from collections.abc import Hashable
from math import prod
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import DeviceError
from hpcoll.comm.arguments.call import Call
from hpcoll.comm.arguments.methods import FOUND_BY, METHODS, Caller
from hpcoll.comm.gpu.resources import Gpus
from hpcoll.comm.plans.plan import Prepared
from hpcoll.runtime.engine.call_cache import Key
from hpcoll.runtime.gpu.arrays import LEGACY_STREAM, stream_handle, torch_stream
from hpcoll.runtime.gpu.cuda import Driver, driver
from hpcoll.runtime.gpu.device import pinned
from hpcoll.runtime.program.call_fields import MANY

GPU_NBYTES = 64 << 10  # messages from here on run by a program for GPU memory
_MOST_KNOWN = 64  # longer calls that are known
_SERVED = frozenset(
    name for name, row in METHODS.items() if row.fills and MANY not in row.holds and row.arguments
)


class SeenArray(NamedTuple):
    """An array in GPU memory, without gaps, as its interface describes it."""

    pointer: int
    nbytes: int
    typestr: str
    stream: int  # that orders the call on it

    @property
    def span(self) -> tuple[int, int]:
        """The addresses of its first byte and after its last one."""
        return self.pointer, self.pointer + self.nbytes


class SeenCall(NamedTuple):
    """A call with its arrays by their positions among the arguments."""

    method: str
    arguments: tuple[Any, ...]
    sent: int | None
    received: int | None
    arrays: dict[int, SeenArray]

    @property
    def is_short(self) -> bool:
        """Say whether all arrays are short."""
        return all(array.nbytes < GPU_NBYTES for array in self.arrays.values())

    def known_by(self, key: Key) -> Hashable:
        """Return what tells it from others: arrays, and what is not one, such as an operator, by its identity."""
        return key, *(self.arrays.get(at) or id(argument) for at, argument in enumerate(self.arguments))


def look(caller: Caller, method: str, arguments: tuple[Any, ...], stream: Any) -> SeenCall | None:
    """Return a call of a rank; None where its arguments need a closer look. They are those of `hpcoll.comm.context.context.Context.run`."""
    cuda = driver()
    if method not in _SERVED or cuda is None:
        return None
    try:
        handle = None if stream is None else stream_handle(stream, caller.rank)
        sent, received = METHODS[method].buffers(arguments, caller.rank)
        arrays = dict[int, SeenArray]()
        for at in (sent, received):
            if at is not None and arguments[at] is not MPI.IN_PLACE:
                one = _seen(cuda, arguments[at], handle, written=at == received)
                if one is None:
                    return None
                arrays[at] = one
        return SeenCall(method, arguments, sent, received, arrays)
    except (DeviceError, LookupError, TypeError, ValueError):  # the usual way says what is wrong
        return None


def _seen(cuda: Driver, given: Any, handle: int | None, *, written: bool) -> SeenArray | None:
    interface = getattr(given, "__cuda_array_interface__", None)
    if interface is None or interface.get("strides") is not None or interface.get("mask") is not None:
        return None
    (pointer, readonly), typestr = interface["data"], interface["typestr"]
    nbytes = prod(interface["shape"]) * np.dtype(typestr).itemsize
    if not nbytes or typestr[1] == "V" or (written and readonly):
        return None
    stream = handle or interface.get("stream") or torch_stream(given) or LEGACY_STREAM
    return None if cuda.is_capturing(stream) else SeenArray(pointer, nbytes, typestr, stream)


class ShortCall(NamedTuple):
    """A call on host copies, which have been filled.

    Attributes:
        found_by: Buffers and operator by which the call cache finds it.
        arguments: Arguments of the method, on host copies.
        received: The array that gets the result, and its copy; None: none does.
    """

    found_by: tuple[Any, ...]
    arguments: tuple[Any, ...]
    received: tuple[SeenArray, np.ndarray] | None

    def store(self) -> None:
        """Copy the result to the GPU, and wait for that; raise DeviceError when the driver fails."""
        if self.received is not None:
            cuda, (array, host) = driver(), self.received
            assert cuda is not None
            cuda.copy(array.pointer, host.ctypes.data, array.nbytes, array.stream)
            cuda("cuStreamSynchronize", array.stream)


def on_host(caller: Caller, seen: SeenCall) -> ShortCall | None:
    """Return a short call on host copies of its arrays; None where these need a closer look."""
    cuda, arrays = driver(), seen.arrays
    assert cuda is not None
    if len(arrays) == 2 and _overlap(*arrays.values()):
        return None
    copies = {at: pinned(cuda, array.nbytes).view(array.typestr) for at, array in arrays.items()}
    in_place = len(arrays) < sum(at is not None for at in (seen.sent, seen.received))
    try:
        for at, array in arrays.items():
            base, reach = cuda.address_range(array.pointer)
            if array.span[1] > base + reach:
                return None
            if at == seen.sent or in_place:
                cuda.copy(copies[at].ctypes.data, array.pointer, array.nbytes, array.stream)
                cuda("cuStreamSynchronize", array.stream)
    except DeviceError:
        return None
    theirs = tuple(copies.get(at, argument) for at, argument in enumerate(seen.arguments))
    send, recv, op, _ = FOUND_BY[seen.method](theirs, caller)
    received = (arrays[seen.received], copies[seen.received]) if seen.received in arrays else None
    return ShortCall((send, recv, op), theirs, received)


def _overlap(one: SeenArray, other: SeenArray) -> bool:
    return one.pointer < other.span[1] and other.pointer < one.span[1]


class KnownCalls:
    """Longer calls of one communicator that a program for GPU memory serves, by the addresses and sizes of their arrays."""

    def __init__(self) -> None:
        self._calls: dict[Hashable, tuple[Prepared, Call, tuple[Any, ...]]] = {}

    def find(self, key: Key, seen: SeenCall, routes: Gpus | None) -> Prepared | None:
        """Return a call that is known, on memory that is the same still; None where there is none."""
        known = self._calls.get(seen.known_by(key))
        if known is None or routes is None:
            return None
        prepared, call, _ = known
        if routes.exported(call, [array.span for array in seen.arrays.values()]) != call.exported:
            return None
        return prepared._replace(call=call._replace(keep=seen.arguments))

    def add(self, key: Key, seen: SeenCall, prepared: Prepared) -> None:
        """Let a call be found, if it is nothing but a run of its engine: no launch before it, nothing to finish. No array is kept."""
        call, streams = prepared.call, {array.stream for array in seen.arrays.values()}
        if (
            call is None
            or call.finish is not None
            or call.before
            or len(streams) > 1
            or not prepared.plan.kept
        ):
            return
        if len(self._calls) >= _MOST_KNOWN:
            self.forget()
        # their addresses are not to be used again
        others = tuple(argument for at, argument in enumerate(seen.arguments) if at not in seen.arrays)
        call = call._replace(keep=())
        self._calls[seen.known_by(key)] = (
            prepared._replace(call=None, arguments=(), describe=_anew),
            call,
            others,
        )

    def forget(self) -> None:
        """Forget all calls."""
        self._calls.clear()


def _anew() -> Call | None:
    raise AssertionError("a blocking call is described once")
