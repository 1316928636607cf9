"""Control messages: short messages between the ranks of a team, for which nobody waits.

So a peer that is stopped half-way, or gone, holds up none of the others.
"""

import contextlib
import json
from collections import Counter
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.selection.config import log

_MOST_AT_ONCE = 256  # messages that are received before they are read


class ControlMessages:
    """The control messages of one rank; one thread at a time receives them.

    Args:
        comm: Communicator on which they travel.
        tag: Tag that no other messages have.
    """

    def __init__(self, comm: MPI.Intracomm, tag: int) -> None:
        self._comm = comm
        self._tag = tag
        self._sent: list[tuple[MPI.Request, bytes]] = []
        self._coming: list[tuple[MPI.Request, np.ndarray, int]] = []
        self._nsent = Counter[int]()
        self._ntaken = 0
        # messages that all ranks have sent to this one, once all have closed
        self._due = np.zeros(1, np.int64)
        # the collective that finds that out, and its counts
        self._counting: tuple[MPI.Request, np.ndarray] | None = None

    def send(self, rank: int, what: dict[str, Any]) -> None:
        """Begin to send a message."""
        text = json.dumps(what).encode()
        try:
            self._sent.append((self._comm.Isend([text, MPI.BYTE], rank, self._tag), text))
            self._nsent[rank] += 1
        except MPI.Exception as error:
            log.debug("nothing can be sent to rank %d: %s", rank, error)

    def all_sent(self) -> bool:
        """Say whether all messages are out of this process."""
        _ended(self._sent)
        return not self._sent

    def come(self) -> list[tuple[int, dict[str, Any]]]:
        """Return the messages that have come as a whole by now, each with its source.

        Raises:
            MPI.Exception: A rank has failed; messages of others are returned the next time.
        """
        status = MPI.Status()
        for _ in range(_MOST_AT_ONCE):
            message = self._comm.Improbe(MPI.ANY_SOURCE, self._tag, status)
            if message is None:
                break
            self._ntaken += 1
            text = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            self._coming.append((message.Irecv([text, MPI.BYTE]), text, status.source))
        return [(source, json.loads(text.tobytes())) for _, text, source in _ended(self._coming)]

    def close(self) -> None:
        """Send no more: the communicator is about to be freed. All ranks call this, and nobody waits."""
        nsent = np.array([self._nsent[rank] for rank in range(self._comm.size)], np.int64)
        with contextlib.suppress(MPI.Exception):
            self._counting = self._comm.Ireduce_scatter_block(nsent, self._due), nsent

    def all_came(self) -> bool:
        """Say whether all ranks have closed and no message is under way to this rank or from it; never, once a rank has failed."""
        try:
            if self._counting is None or not self._counting[0].Test():
                return False
            self.come()
        except MPI.Exception:
            self._counting = None
            return False
        return self.all_sent() and not self._coming and self._ntaken == self._due[0]


def _ended(under_way: list[Any]) -> list[Any]:
    """Take out the messages whose requests have ended, and return them; those that a rank's failure has ended are lost."""
    ended = []
    for message in list(under_way):
        try:
            if not message[0].Test():
                continue
            ended.append(message)
        except MPI.Exception as error:
            log.debug("a message is lost: %s", error)
        under_way.remove(message)
    return ended
