"""Cells: an object's message as far as it fits, and blocks for the rest.

A cell begins with its length, flagged where it is special, and a word that says nothing: so the memory of a ``bytes`` object from its
length on is a cell. Behind them is the pickle. A special cell has numbers instead: its kind, the bytes of the pickle, the number of buffers
out of band, then the sizes of these and the pickle where there is room. What has no room are blocks of their own, then the buffers.
"""

import pickle
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcoll.base.errors import ArgumentError
from hpcoll.base.text import error_text
from hpcoll.comm.objects.serializer import current
from hpcoll.runtime.program.fields import CELL_FLAG

_SHORT_NBYTES = 96 << 10  # buffers below go into the pickle: to copy them takes less time than a message

_NUMBERS = struct.Struct("3q")
_REST = 0
_ERROR = 1
_TEXT = 2000  # characters of an error


class Outgoing(NamedTuple):
    """An object to be sent.

    Attributes:
        length: First word of its cell.
        payload: What is behind the head of its cell.
        blocks: What is sent on its own.
        error: The reason for which there is none, or None.
        pickle: The whole pickle, where there are blocks.
        buffers: Its buffers out of band.
    """

    length: int
    payload: bytes
    blocks: Sequence[Any] = ()
    error: Exception | None = None
    pickle: bytes = b""
    buffers: Sequence[Any] = ()

    def copied(self) -> Any:
        """Return the object as others receive it."""
        return loaded(self.pickle, [np.frombuffer(buffer, np.uint8).copy() for buffer in self.buffers])


def message_of(obj: Any, room: int) -> Outgoing:
    """Pickle an object, with a cell that has room for so many bytes behind its head."""
    try:
        use = current()
        buffers = list[Any]()
        if use.protocol is None:
            data = use.dumps(obj)
            data = data if type(data) is bytes else bytes(data)
        else:
            data = use.dumps(obj, use.protocol, buffer_callback=lambda buffer: keeps(buffer, buffers))  # type: ignore[call-arg]
    except Exception as error:
        return refusal(error, room)
    return message(data, buffers, room)


def keeps(buffer: Any, buffers: list[Any]) -> bool:
    """Say whether a buffer is short and stays in the pickle; others are added to those found."""
    try:
        raw = buffer.raw()
    except BufferError:  # it is not contiguous, and `pickle` says so
        return True
    if raw.nbytes < _SHORT_NBYTES:
        return True
    buffers.append(raw)
    return False


def message(data: bytes, buffers: Sequence[Any], room: int) -> Outgoing:
    """Return the message of a pickle and its buffers out of band."""
    if not buffers and len(data) <= room:
        return Outgoing(len(data), data, pickle=data)
    numbers = _NUMBERS.pack(_REST, len(data), len(buffers))
    sizes = struct.pack(f"{len(buffers)}q", *(buffer.nbytes for buffer in buffers))
    blocks: list[Any] = list(buffers)
    if len(numbers) + len(sizes) + len(data) <= room:
        numbers += sizes + data
    elif len(numbers) + len(sizes) <= room:
        numbers += sizes
        blocks.insert(0, data)
    else:
        blocks[:0] = sizes, data
    return Outgoing(CELL_FLAG | len(numbers), numbers, blocks, None, data, buffers)


def refusal(error: Exception, room: int) -> Outgoing:
    """Return the message that there is no object, because of an error."""
    text = error_text(error, _TEXT).encode()[: room - _NUMBERS.size]
    payload = _NUMBERS.pack(_ERROR, len(text), 0) + text
    return Outgoing(CELL_FLAG | len(payload), payload, (), error)


class Incoming:
    """An object that is being received, of which a cell has come.

    Args:
        cell: Bytes of the cell behind its head; they stay as they are until `load`.
        length: First word of the cell.
        source: Rank that sends it.

    Attributes:
        refused: Text of the error of its sender, or empty.
    """

    def __init__(self, cell: memoryview, length: int, source: int) -> None:
        self.source = source
        self.refused = ""
        self._pickle: Any = cell[: length & CELL_FLAG - 1]
        self._buffers = list[np.ndarray]()
        self._blocks: Iterator[np.ndarray] = iter(())
        if length & CELL_FLAG:
            kind, *numbers = _NUMBERS.unpack_from(self._pickle)
            if kind == _ERROR:
                self.refused = str(self._pickle[_NUMBERS.size :], "utf-8", "replace")
            else:
                self._blocks = self._rest(self._pickle, *numbers)

    def _rest(self, cell: memoryview, nbytes: int, nbuffers: int) -> Iterator[np.ndarray]:
        """Yield memory for each block that comes."""
        at = _NUMBERS.size
        sizes = np.empty(nbuffers, np.int64)
        room = len(cell) - at
        if room >= sizes.nbytes:
            sizes.view(np.uint8)[:] = cell[at : at + sizes.nbytes]
            at += sizes.nbytes
        else:
            yield sizes.view(np.uint8)
        if len(cell) == at + nbytes:
            self._pickle = cell[at:]
        else:
            block = np.empty(nbytes, np.uint8)
            self._pickle = block.data
            yield block
        for size in sizes.tolist():
            block = np.empty(size, np.uint8)
            self._buffers.append(block)
            yield block

    def next_block(self) -> np.ndarray | None:
        """Return memory for the next block, or None."""
        return next(self._blocks, None)

    def load(self) -> Any:
        """Return the object, once all its blocks are there."""
        return loaded(self._pickle, self._buffers)


def pickled(obj: Any) -> bytes:
    """Return an object's pickle, with all its buffers."""
    use = current()
    return bytes(use.dumps(obj) if use.protocol is None else use.dumps(obj, use.protocol))  # type: ignore[call-arg]


def loaded(data: Any, buffers: Sequence[np.ndarray]) -> Any:
    """Return the object of a pickle and its buffers out of band."""
    if buffers:
        return pickle.loads(data, buffers=[buffer.data for buffer in buffers])
    use = current()
    if use.protocol is not None:
        return use.loads(data)
    return use.loads(bytes(data)) if len(data) else None  # as mpi4py does


def remote_error(rank: int, method: str, source: int, refused: str) -> ArgumentError:
    """Return the error of a rank whose object does not come."""
    return ArgumentError(f"rank {rank}: {method}: rank {source} raised {refused}")
