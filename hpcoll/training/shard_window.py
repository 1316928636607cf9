"""The one-sided window of a parameter server: the layout of words, parameters and mailboxes, and the operations on them.

A server's memory has, in this order: words of the server, words of each worker, two copies of its shard's parameters, of which the version
tells the current one, and a mailbox for each worker's gradient. Ranks without a server have no memory. `MPI.Win.Allocate` and not
`Create` makes it: on one node the library reads and writes only memory of its own without the target's help.
"""

from __future__ import annotations

from contextlib import suppress
from enum import IntEnum
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpcoll.base.errors import TransportError

Array = NDArray[Any]
_WORD = MPI.LONG  # MPICH takes INT64_T and NumPy's int64 for different types
_WORD_NBYTES = 8
ABANDONED = 1 << 32  # added to CLOSED by a rank that leaves without freeing


class WindowWord(IntEnum):
    """Words of a server."""

    BEGUN = 0  # versions that it has begun to write
    DONE = 1  # versions that it has written; copy DONE % 2 is current
    BEAT = 2  # turns, as a sign of life
    STATE = 3  # its State
    FAILED = 4  # 1 + the rank of a lost worker that it needs; 0: none
    CLOSED = 5  # on the first server: ranks that are ready to free the window


class WorkerWord(IntEnum):
    """Words of each worker at a server."""

    SENT = 0  # gradients that the worker has put
    TAKEN = 1  # gradients that the server has applied
    BASE = 2  # version from which the gradient was computed
    ASKED = 3  # pulls that the worker has asked for
    GRANTED = 4  # pulls that the server has granted
    STATE = 5  # State of the worker
    READ = 6  # pulls without asking, as a sign of life
    MET = 7  # barriers that the worker has reached; on the first server


class State(IntEnum):
    """The state of a rank."""

    ACTIVE = 0
    LEFT = 1  # by `leave` or `close`
    FAILED = 2  # by an exception, or silent for longer than the timeout; 3 + r: because of rank r


def failed(lost: int) -> int:
    """Return the state of a rank that failed because of rank ``lost``, or by itself (-1)."""
    return State.FAILED + 1 + lost


def culprit(state: int, rank: int) -> int:
    """Return the rank that failed first, judging by the state of ``rank``."""
    return state - failed(0) if state >= failed(0) else rank


class Places:
    """The layout of a server's memory, with a shard of ``nbytes`` and a mailbox for each worker: displacements in bytes."""

    def __init__(self, nworkers: int, nbytes: int) -> None:
        self.nworkers = nworkers
        self.nbytes = nbytes
        self.nwords = len(WindowWord) + nworkers * len(WorkerWord)
        self.copies = -(-self.nwords * _WORD_NBYTES // 64) * 64
        self.mailboxes = self.copies + 2 * nbytes
        self.total = self.mailboxes + nworkers * nbytes

    def word(self, word: WindowWord | WorkerWord, worker: int = 0) -> int:
        """Return the displacement of a server's word, or of one of a worker's."""
        if isinstance(word, WorkerWord):
            return (len(WindowWord) + word * self.nworkers + worker) * _WORD_NBYTES
        return word * _WORD_NBYTES

    def copy(self, version: int) -> int:
        """Return the displacement of the copy that has a version."""
        return self.copies + version % 2 * self.nbytes

    def mailbox(self, worker: int) -> int:
        """Return the displacement of a worker's mailbox."""
        return self.mailboxes + worker * self.nbytes


class LostRank(TransportError):
    """A server or worker that this rank needs is gone.

    Attributes:
        rank: Rank that was lost first.
    """

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message)
        self.rank = rank


class ShardWindow:
    """The window over the memory of all servers, always open for passive-target access. Made collectively; ``places`` are by rank.

    Words are those of a server, or of a worker at a server.
    """

    def __init__(self, comm: MPI.Intracomm, places: dict[int, Places]) -> None:
        mine = places.get(comm.rank)
        self._places = places
        self._comm = comm
        self._rank = comm.rank
        self._win = MPI.Win.Allocate(mine.total if mine else 0, 1, comm=comm)
        self.memory: Array = (
            np.asarray(self._win.tomemory()).view(np.uint8) if mine else np.zeros(0, np.uint8)
        )
        self.memory[:] = 0
        self._one, self._old, self._expected = (np.zeros(1, np.int64) for _ in range(3))
        self._given = [self._one, 1, _WORD]
        self._found = [self._old, 1, _WORD]
        self._win.Lock_all(MPI.MODE_NOCHECK)
        self._win.Sync()
        comm.Barrier()

    def sync(self) -> None:
        """Progress accesses of other ranks, and order this rank's loads and stores with them."""
        # of a fault-tolerant library, when a rank died; ranks that wait for it find out by themselves
        with suppress(MPI.Exception):
            self._comm.Iprobe()
        self._win.Sync()

    def fence(self) -> None:
        """Order this rank's loads and stores."""
        self._win.Sync()

    def read(self, server: int, word: WindowWord | WorkerWord, worker: int = 0) -> int:
        """Read a word."""
        displ = self._places[server].word(word, worker)
        if server == self._rank:
            self._win.Sync()
            return int(self.memory[displ : displ + _WORD_NBYTES].view(np.int64)[0])
        return self._fetch(server, displ, MPI.NO_OP)

    def _fetch(self, server: int, displ: int, op: MPI.Op) -> int:
        self._win.Fetch_and_op(self._given, self._found, server, displ, op)
        self._win.Flush(server)
        return int(self._old[0])

    def write(self, server: int, word: WorkerWord, worker: int, value: int) -> None:
        """Write a word of a worker, after all that this rank has put there."""
        self._one[0] = value
        displ = self._places[server].word(word, worker)
        self._win.Accumulate(self._given, server, [displ, 1, _WORD], MPI.REPLACE)
        self._win.Flush(server)

    def add(self, server: int, word: WindowWord, value: int) -> None:
        """Add to a word of a server."""
        self._one[0] = value
        self._fetch(server, self._places[server].word(word), MPI.SUM)

    def exchange(self, server: int, word: WindowWord, expected: int, value: int) -> bool:
        """Write a word of a server if it has the expected value, and say whether it had."""
        self._one[0] = value
        self._expected[0] = expected
        displ = self._places[server].word(word)
        self._win.Compare_and_swap(self._given, [self._expected, 1, _WORD], self._found, server, displ)
        self._win.Flush(server)
        return int(self._old[0]) == expected

    def put(self, server: int, worker: int, gradient: Array) -> None:
        """Write to the mailbox of a worker, complete on return."""
        displ = self._places[server].mailbox(worker)
        self._win.Put([gradient, MPI.BYTE], server, [displ, gradient.size, MPI.BYTE])
        self._win.Flush(server)

    def get(self, server: int, version: int, shard: Array) -> None:
        """Read the copy that has a version, complete on return."""
        displ = self._places[server].copy(version)
        self._win.Get([shard, MPI.BYTE], server, [displ, shard.size, MPI.BYTE])
        self._win.Flush(server)

    def free(self) -> None:
        """Free the window; collective."""
        self.memory = np.zeros(0, np.uint8)
        self._win.Unlock_all()
        self._win.Free()
