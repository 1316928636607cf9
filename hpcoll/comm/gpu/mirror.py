"""Host copies of a call's GPU arrays: made before the call, and results copied back after it.

They serve the calls of no GPU program: short messages, ranks without a GPU among the others, operators and methods that only
the MPI library has. The call itself sees NumPy arrays. Arrays that share memory share their mirrors, so that the host's rules for in-place
calls and overlaps hold as they are.
"""

from collections.abc import Iterable
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from hpcoll.base.errors import DeviceError
from hpcoll.comm.arguments.call import is_in_place
from hpcoll.comm.arguments.memory import buffer_of, gpu_memory, with_buffer
from hpcoll.comm.arguments.methods import METHODS, Method
from hpcoll.runtime.gpu.arrays import DeviceArray, enter, stream_handle, stream_of
from hpcoll.runtime.gpu.cuda import Driver, driver
from hpcoll.runtime.gpu.device import pinned

_ALIGNMENT = 64
_lost: list[object] = []  # memory that a driver which has failed may still read or write


class _CopyStream(NamedTuple):
    """A stream of ours, an event for the work before it and another for its own work."""

    stream: int
    before: int
    done: int


@cache
def _idle(cuda: Driver, ordinal: int) -> list[_CopyStream]:
    """Return the copy streams of a GPU that nobody uses: threads must not share an event."""
    return []


class _Region(NamedTuple):
    """Memory of one or two arrays that share bytes.

    Attributes:
        first: Address on the GPU.
        host: Mirror of its bytes.
        read: The call reads part of it, or leaves parts as they were.
    """

    first: int
    host: np.ndarray[Any, np.dtype[np.uint8]]
    read: bool

    def bytes_of(self, array: DeviceArray) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return the mirror of the bytes that an array spans."""
        first, end = array.span
        return self.host[first - self.first : end - self.first]


class Mirror:
    """Host copies of the GPU arrays of a call; a persistent request uses them again and again.

    Attributes:
        arguments: Arguments of the call, with a mirror for each GPU array.

    Args:
        arguments: Arguments of the caller.
        arrays: GPU arrays by position.
        received: Position of the array that the call writes to, or None.
        unread: Positions of arrays that the call overwrites without having read them.
        streams: Handles of the streams that order the call.
    """

    _copy_stream: _CopyStream | None = None  # of ``follow``

    def __init__(
        self,
        arguments: tuple[Any, ...],
        arrays: dict[int, DeviceArray],
        received: int | None,
        unread: set[int],
        streams: set[int],
    ) -> None:
        self._streams, self._keep = streams, arrays
        self._ordinal = next(iter(arrays.values())).ordinal
        self._idle = _idle(_driver(), self._ordinal)
        self._regions = _regions(arrays, unread)
        self._packed: list[tuple[Any, Any]] = []
        theirs = list(arguments)
        for position, array in arrays.items():
            host = self._host(array)
            theirs[position] = (
                host
                if theirs[position] is buffer_of(theirs[position])
                else with_buffer(theirs[position], _alone(host))
            )
        self.arguments = tuple(theirs)
        self._received = arrays.get(received) if received is not None else None

    def _host(self, array: DeviceArray) -> np.ndarray[Any, Any]:
        """Return the array's mirror, of the same shape, type and memory order; an array with gaps is packed once it has been fetched."""
        if not array.size:
            return np.empty(array.shape, array.dtype)
        region = self._region(array)
        offset = array.pointer - region.first
        host: np.ndarray[Any, Any] = np.ndarray(array.shape, array.dtype, region.host, offset, array.strides)
        if not array.order:
            self._packed.append((np.empty(array.shape, array.dtype), host))
            return self._packed[-1][0]
        host.flags.writeable = not array.readonly
        return host

    def _region(self, array: DeviceArray) -> _Region:
        return next(
            region
            for region in self._regions
            if region.first <= array.pointer < region.first + region.host.size
        )

    def __del__(self) -> None:
        if self._copy_stream is not None:
            self._idle.append(self._copy_stream)

    def _follow(self) -> _CopyStream:
        """Return a copy stream whose work comes after the work that the streams have by now.

        Streams that are idle need no event, for which a shared GPU would have to turn to this process.
        """
        cuda = _driver()
        enter(cuda, self._ordinal)
        copy_stream = _take(cuda, self._ordinal)
        for stream in self._streams:
            if cuda.is_idle(stream):
                continue
            cuda("cuEventRecord", copy_stream.before, stream)
            cuda("cuStreamWaitEvent", copy_stream.stream, copy_stream.before, 0)
        return copy_stream

    def follow(self) -> None:
        """Order `store` behind the work that the streams have by now: for a call that reads nothing, instead of `fetch`."""
        self._copy_stream = self._follow()

    def fetch(self, *, everything: bool = False) -> None:
        """Wait for the work that the streams have by now, and copy from the GPU the memory that the call reads.

        Args:
            everything: Copy all of the arrays.

        Raises:
            DeviceError: The driver failed.
        """
        wanted = [region for region in self._regions if region.read or everything]
        self._copy(
            self._follow(), [(region.host.ctypes.data, region.first, region.host.size) for region in wanted]
        )
        for packed, host in self._packed:
            packed[...] = host

    def store(self, spans: Iterable[tuple[int, int]] | None = None) -> None:
        """Copy results to the GPU, and wait for that; errors as in `fetch`.

        Args:
            spans: Address ranges in the mirror that the call has written; None: all of the receive buffer.
        """
        array = self._received
        if array is None or not array.size:
            return
        cuda, host = _driver(), self._region(array).bytes_of(array)
        enter(cuda, self._ordinal)
        copy_stream, self._copy_stream = self._copy_stream or _take(cuda, self._ordinal), None
        start = host.ctypes.data
        spans = [(start, start + host.size)] if spans is None else spans
        self._copy(copy_stream, [(array.pointer + first - start, first, end - first) for first, end in spans])

    def _copy(self, copy_stream: _CopyStream, copies: Iterable[tuple[int, int, int]]) -> None:
        """Make copies, given as destination, source and bytes, and wait for them."""
        cuda = _driver()
        try:
            for destination, source, nbytes in copies:
                cuda.copy(destination, source, nbytes, copy_stream.stream)
            cuda("cuEventRecord", copy_stream.done, copy_stream.stream)
            cuda("cuEventSynchronize", copy_stream.done)
        except DeviceError:
            _lost.append(self)
            raise
        self._idle.append(copy_stream)


def _alone(host: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array over the same memory that is no view of more: a datatype that reaches outside it is to be refused."""
    return np.asarray(SimpleNamespace(__array_interface__=host.__array_interface__, owner=host)).view(
        host.dtype
    )


def mirror_of(method: str, arguments: tuple[Any, ...], stream: Any, rank: int) -> Mirror | None:
    """Return mirrors for the GPU arrays of a call, still empty; None where it has no GPU arrays.

    Args:
        method: Name of an upper-case blocking collective of mpi4py: ``"Alltoallw"``.
        arguments: Positional arguments in mpi4py's order, buffers first. The mirror has None for those that this rank's call ignores.
        stream: The caller's ``stream=``, or None: each array's own, see `hpcoll.runtime.gpu.arrays.stream_of`.
        rank: Rank of this process in the communicator.

    Raises:
        ArgumentError: GPU memory that cannot be used, not contiguous, read-only; not a stream, or one under capture.
    """
    row = METHODS[method]
    sent, received = row.buffers(arguments, rank)
    handle = None if stream is None else stream_handle(stream, rank)
    arrays: dict[int, DeviceArray] = {}
    for position in (0, 1):
        if position not in (sent, received):
            continue
        spec, subject = arguments[position], f"rank {rank}: {row.arguments[position]}"
        buffer = buffer_of(spec)
        array = gpu_memory(buffer, subject, writable=position == received, bare=buffer is spec, stream=handle)
        if array is not None:
            arrays[position] = array
    if not arrays:
        return None
    streams = {stream_of(array, stream, rank) for array in arrays.values()}
    unread = set() if received is None or _is_read(row, arguments, received) else {received}
    ignored = {0, 1} - {sent, received} if row.arguments[0] != "buf" else set()
    arguments = tuple(
        None if position in ignored else argument for position, argument in enumerate(arguments)
    )
    return Mirror(arguments, arrays, received, unread, streams)


def on_host(array: DeviceArray) -> np.ndarray[Any, Any]:
    """Return a copy in ordinary host memory, behind the work on the array's stream; raise DeviceError when the driver fails."""
    if not array.size:
        return np.empty(array.shape, array.dtype)
    cuda = _driver()
    stream = stream_of(array, None, 0)
    first, end = array.span
    enter(cuda, array.ordinal)
    host = np.empty(end - first, np.uint8)
    cuda.copy(host.ctypes.data, first, host.size, stream)
    cuda("cuStreamSynchronize", stream)
    return np.ndarray(array.shape, array.dtype, host, array.pointer - first, array.strides)


def _is_read(row: Method, arguments: tuple[Any, ...], received: int) -> bool:
    """Say whether a call reads its receive buffer or leaves parts of it as they were."""
    in_place = received == 1 and is_in_place(arguments[0])
    return in_place or not row.fills or isinstance(arguments[received], list | tuple)


def _regions(arrays: dict[int, DeviceArray], unread: set[int]) -> list[_Region]:
    """Return memory for the arrays, one region for arrays that share bytes."""
    merged: list[tuple[int, int, bool]] = []
    for (first, end), read in sorted(
        (array.span, position not in unread) for position, array in arrays.items() if array.size
    ):
        if merged and first < merged[-1][1]:
            start, reached, before = merged.pop()
            merged.append((start, max(reached, end), before or read))
        else:
            merged.append((first, end, read))
    regions = []
    for first, end, read in merged:
        pad = first % _ALIGNMENT
        regions.append(_Region(first, pinned(_driver(), end - first + pad)[pad:], read))
    return regions


def _driver() -> Driver:
    cuda = driver()
    assert cuda is not None  # or there would be no GPU arrays
    return cuda


def _take(cuda: Driver, ordinal: int) -> _CopyStream:
    try:
        return _idle(cuda, ordinal).pop()
    except IndexError:
        return _CopyStream(cuda.stream(), cuda.event(), cuda.event())


def finish_streams(ordinal: int, streams: set[int]) -> None:
    """Wait for the work that streams of a GPU have by now; raise DeviceError when the driver fails."""
    cuda = _driver()
    enter(cuda, ordinal)
    copy_stream = _take(cuda, ordinal)
    for stream in streams:
        if not cuda.is_idle(stream):
            cuda("cuEventRecord", copy_stream.done, stream)
            cuda("cuEventSynchronize", copy_stream.done)
    _idle(cuda, ordinal).append(copy_stream)
