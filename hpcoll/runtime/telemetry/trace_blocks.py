"""Blocks of a trace's file: each is a head, a text in JSON that says what follows, and records as compiled code has them.

All ranks append blocks to one file. One that was killed may leave a part of a block, and the next block begins behind that.
"""

import json
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np

MAGIC = b"\x93hpcoll\x01"  # begins a block; the last byte is the number of this format
_HEAD = struct.Struct("<8sII")  # magic, bytes of the text, bytes of the records
_MOST_NBYTES, _PIECE_NBYTES = 64 << 20, 1 << 20  # of a block; read at a time where none begins


class Block(NamedTuple):
    """A block as it is in the file."""

    at: int  # byte of the file
    text: bytes
    records: bytes  # of a rank that was killed perhaps fewer


def block(about: dict[str, Any], records: np.ndarray) -> list[bytes | memoryview]:
    """Return a block in pieces."""
    text = json.dumps(about, separators=(",", ":")).encode()
    return [_HEAD.pack(MAGIC, len(text), records.nbytes) + text, memoryview(np.ascontiguousarray(records))]  # type: ignore[arg-type]


def blocks(file: BinaryIO) -> Iterator[Block]:
    """Yield the blocks of a file. A block whose text is cut is left out."""
    at = _found(file, 0)
    while at >= 0:
        file.seek(at)
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            return
        _, ntext, nrecords = _HEAD.unpack(head)
        nbytes = ntext + nrecords if ntext + nrecords <= _MOST_NBYTES else 0
        content = file.read(nbytes + len(MAGIC) - 1).partition(MAGIC)[0][
            :nbytes
        ]  # another one may begin before its end
        if ntext <= len(content):
            yield Block(at, content[:ntext], content[ntext:])
        at = _found(file, at + _HEAD.size + len(content))


def _found(file: BinaryIO, at: int) -> int:
    """Return where the next block begins, at a byte or behind it; -1: nowhere."""
    file.seek(at)
    piece = file.read(len(MAGIC))
    while len(piece) >= len(MAGIC):
        found = piece.find(MAGIC)
        if found >= 0:
            return at + found
        at += len(piece) + 1 - len(MAGIC)
        piece = piece[1 - len(MAGIC) :] + file.read(_PIECE_NBYTES)
        if len(piece) < len(MAGIC):
            return -1
    return -1
