"""Notices: a piece of shared memory for each rank of a node, on which it says what it waits for, or why it has stopped.

Written and read in Python, by ranks that wait already. A rank has room for two: while one is written the other holds, so that what was
said is never gone in between. A notice has its length and a checksum, so that one which is being written is not taken for whole.
"""

import zlib
from typing import Any

import numpy as np

NOTICE_NBYTES = 4096
_TURN_NBYTES = 64  # how many there were, which says where the last one is
PAGE_NBYTES = _TURN_NBYTES + 2 * NOTICE_NBYTES  # of a rank
_HEAD_NBYTES = 16
_READS = 5  # of one that is written again meanwhile


class StatusSlots:
    """Those of the local ranks of a communicator.

    Args:
        memory: `PAGE_NBYTES` for each local rank, zeros at first.
        rank: Local rank of this process.
    """

    def __init__(self, memory: np.ndarray, rank: int) -> None:
        self._all = memory.reshape(-1, PAGE_NBYTES)
        self._turns = self._all[:, :8].view(np.int64)[:, 0]
        self._rank = rank

    def _place(self, local_rank: int, turn: int) -> np.ndarray:
        begin = _TURN_NBYTES + turn % 2 * NOTICE_NBYTES
        return self._all[local_rank, begin : begin + NOTICE_NBYTES]

    def write(self, text: bytes) -> None:
        """Replace this rank's notice, by a `fitting` text."""
        turn = int(self._turns[self._rank]) + 1
        put(self._place(self._rank, turn), text)
        self._turns[self._rank] = turn

    def read(self, local_rank: int) -> dict[str, Any]:
        """A rank's latest notice; nothing where there is none."""
        import json

        texts = (get(self._place(local_rank, int(self._turns[local_rank]))) for _ in range(_READS))
        found: dict[str, Any] = json.loads(next(filter(None, texts), b"{}"))
        return found


def room(nbytes: int) -> int:
    """Bytes of text that a piece of memory of so many bytes holds."""
    return nbytes - _HEAD_NBYTES


def fitting(notice: dict[str, Any], nbytes: int = NOTICE_NBYTES - _HEAD_NBYTES) -> bytes:
    """A notice as text of at most so many bytes; what is too long is left out, first of all what was noted first."""
    import json  # what no program needs that never waits

    text = json.dumps(notice).encode()
    notice = notice if len(text) <= nbytes else json.loads(text)  # whose lists are lists
    while len(text) > nbytes and any(notice.values()):
        longest = max(notice, key=lambda name: len(json.dumps(notice[name])))
        notice = notice | {longest: _shortened(notice[longest])}
        text = json.dumps(notice).encode()
    return text


def _shortened(part: Any) -> Any:
    """Without the first quarter; of a list's only entry, a table, the longest field is cut in half."""
    if len(part) > 1 or not isinstance(part, list):
        return part[-(-len(part) // 4) :]
    field = max(part[0], key=lambda name: len(str(part[0][name])))
    value = part[0][field]
    return [part[0] | {field: value[: len(value) // 2]}] if isinstance(value, str | list) and value else []


def put(memory: np.ndarray, text: bytes) -> None:
    """Write a text that has `room` into a piece of memory, with its length and checksum, which come last."""
    memory[:_HEAD_NBYTES] = 0
    memory[_HEAD_NBYTES : _HEAD_NBYTES + len(text)] = np.frombuffer(text, np.uint8)
    memory[:_HEAD_NBYTES].view(np.int64)[:] = len(text), zlib.crc32(text)


def get(memory: np.ndarray) -> bytes:
    """The text in a piece of memory; nothing where there is none, or it is being written."""
    nbytes, checksum = memory[:_HEAD_NBYTES].view(np.int64).tolist()
    text = memory[_HEAD_NBYTES : _HEAD_NBYTES + nbytes].tobytes() if nbytes > 0 else b""
    return text if zlib.crc32(text) == checksum else b""
