"""Notices: a piece of shared memory for each rank of a node, on which it says what it waits for, or why it has stopped.

Written and read in Python, by ranks that wait already. A notice has its length and a checksum, so that one which is being written is not
taken for whole.
"""

import zlib
from typing import Any

import numpy as np

NOTICE_NBYTES = 4096
_HEAD_NBYTES = 16


class Notices:
    """Those of the local ranks of a communicator.

    Args:
        memory: `NOTICE_NBYTES` for each local rank, zeros at first.
        rank: Local rank of this process.
    """

    def __init__(self, memory: np.ndarray, rank: int) -> None:
        self._all = memory.reshape(-1, NOTICE_NBYTES)
        self._rank = rank

    def write(self, notice: dict[str, Any]) -> None:
        """Replace this rank's notice; what is too long for it is left out, the first parts of its lists first."""
        import json  # what no program needs that never waits

        text = json.dumps(notice).encode()
        while len(text) > NOTICE_NBYTES - _HEAD_NBYTES and any(notice.values()):
            longest = max(notice, key=lambda name: len(json.dumps(notice[name])))
            notice = notice | {longest: notice[longest][1:]}
            text = json.dumps(notice).encode()
        mine = self._all[self._rank]
        mine[:_HEAD_NBYTES] = 0
        mine[_HEAD_NBYTES : _HEAD_NBYTES + len(text)] = np.frombuffer(text, np.uint8)
        mine[:_HEAD_NBYTES].view(np.int64)[:] = len(text), zlib.crc32(text)

    def read(self, local_rank: int) -> dict[str, Any]:
        """A rank's notice; nothing where there is none, or it is being written."""
        import json

        theirs = self._all[local_rank]
        nbytes, checksum = theirs[:_HEAD_NBYTES].view(np.int64).tolist()
        text = theirs[_HEAD_NBYTES : _HEAD_NBYTES + nbytes].tobytes()
        if not text or zlib.crc32(text) != checksum:
            return {}
        found: dict[str, Any] = json.loads(text)
        return found
