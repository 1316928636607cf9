"""The one-sided window of a parameter server: where its words, parameters and mailboxes lie, and how peers read and write them.

A server's memory, in this order: words of the server, words of each worker, two copies of its shard's parameters, of which the version
says which one is current, and a mailbox for each worker's gradient. Ranks that serve nothing have no memory. `MPI.Win.Allocate` and not
`Create`: only for memory of its own does the library, on one node, read and write without the target's help.
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
_WORD = MPI.LONG  # not INT64_T, which does not match NumPy's int64 in MPICH's eyes
_WORD_NBYTES = 8
ABANDONED = 1 << 32  # added to CLOSED by a rank that leaves without freeing


class WindowWord(IntEnum):
    """Words of a server."""

    BEGUN = 0  # versions whose writing has begun
    DONE = 1  # versions that are written; copy DONE % 2 is current
    BEAT = 2  # turns of the server: it is alive
    STATE = 3  # of the server: a State
    FAILED = 4  # 1 + the rank of a worker without which it cannot go on; 0: none
    CLOSED = 5  # of the first server: ranks that are ready to free the window


class WorkerWord(IntEnum):
    """Words that a server has of each worker."""

    SENT = 0  # gradients that the worker has put
    TAKEN = 1  # gradients that the server has applied
    BASE = 2  # version that the gradient was computed from
    ASKED = 3  # pulls that the worker has asked for
    GRANTED = 4  # pulls that it may do
    STATE = 5  # of the worker: a State
    READ = 6  # pulls that nothing had to be asked for: a sign of life
    MET = 7  # barriers that the worker has come to; on the first server


class State(IntEnum):
    """What is known of a rank."""

    ACTIVE = 0
    LEFT = 1  # as it should
    FAILED = 2  # by an exception, or silent for too long; 3 + r: because rank r did


def failed(lost: int) -> int:
    """The state of a rank that failed because another one did, or, for -1, by itself."""
    return State.FAILED + 1 + lost


def culprit(state: int, rank: int) -> int:
    """The rank that failed first, as far as a state of ``rank`` says."""
    return state - failed(0) if state >= failed(0) else rank


class Places:
    """Byte displacements in a server's memory.

    Args:
        nworkers: Mailboxes.
        nbytes: Of the shard.
    """

    def __init__(self, nworkers: int, nbytes: int) -> None:
        self.nworkers, self.nbytes = nworkers, nbytes
        self.nwords = len(WindowWord) + nworkers * len(WorkerWord)
        self.copies = -(-self.nwords * _WORD_NBYTES // 64) * 64
        self.mailboxes = self.copies + 2 * nbytes
        self.total = self.mailboxes + nworkers * nbytes

    def word(self, word: WindowWord) -> int:
        return word * _WORD_NBYTES

    def worker_word(self, worker: int, word: WorkerWord) -> int:
        return (len(WindowWord) + word * self.nworkers + worker) * _WORD_NBYTES

    def copy(self, version: int) -> int:
        return self.copies + version % 2 * self.nbytes

    def mailbox(self, worker: int) -> int:
        return self.mailboxes + worker * self.nbytes


class LostRank(TransportError):
    """A server or worker without which this rank cannot go on is gone.

    Attributes:
        rank: Of the one that is gone.
    """

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message)
        self.rank = rank


class ShardWindow:
    """A window over the memory of all servers, open for passive-target access from beginning to end. Made collectively.

    Args:
        comm: Private communicator.
        places: Rank of each server and the places in its memory.
    """

    def __init__(self, comm: MPI.Intracomm, places: dict[int, Places]) -> None:
        mine = places.get(comm.rank)
        self._places, self._comm, self._rank = places, comm, comm.rank
        self._win = MPI.Win.Allocate(mine.total if mine else 0, 1, comm=comm)
        self.memory: Array = np.asarray(self._win.tomemory()).view(np.uint8) if mine else np.zeros(0, np.uint8)
        self.memory[:] = 0
        self._one, self._old, self._expected = (np.zeros(1, np.int64) for _ in range(3))
        self._win.Lock_all(MPI.MODE_NOCHECK)
        self._win.Sync()
        comm.Barrier()

    def sync(self) -> None:
        """Let other ranks' accesses come in, and order this rank's own loads and stores with them."""
        with suppress(MPI.Exception):  # a fault-tolerant library says here that some rank died; those that wait for it find out
            self._comm.Iprobe()
        self._win.Sync()

    def fence(self) -> None:
        """Order this rank's loads and stores."""
        self._win.Sync()

    def read(self, server: int, displ: int) -> int:
        """A word of a server."""
        if server == self._rank:
            self._win.Sync()
            return int(self.memory[displ : displ + _WORD_NBYTES].view(np.int64)[0])
        self._win.Fetch_and_op([self._one, 1, _WORD], [self._old, 1, _WORD], server, displ, MPI.NO_OP)
        self._win.Flush(server)
        return int(self._old[0])

    def write(self, server: int, displ: int, value: int) -> None:
        """Replace a word of a server, after everything that this rank has put there."""
        self._one[0] = value
        self._win.Accumulate([self._one, 1, _WORD], server, [displ, 1, _WORD], MPI.REPLACE)
        self._win.Flush(server)

    def add(self, server: int, displ: int, value: int) -> int:
        """Add to a word of a server; what it was before."""
        self._one[0] = value
        self._win.Fetch_and_op([self._one, 1, _WORD], [self._old, 1, _WORD], server, displ, MPI.SUM)
        self._win.Flush(server)
        return int(self._old[0])

    def exchange(self, server: int, displ: int, expected: int, value: int) -> bool:
        """Replace a word of a server if it is what is expected; whether it was."""
        self._one[0], self._expected[0] = value, expected
        self._win.Compare_and_swap([self._one, 1, _WORD], [self._expected, 1, _WORD], [self._old, 1, _WORD], server, displ)
        self._win.Flush(server)
        return int(self._old[0]) == expected

    def put(self, server: int, displ: int, content: Array) -> None:
        """Write bytes to a server; they are there on return."""
        self._win.Put([content, MPI.BYTE], server, [displ, content.size, MPI.BYTE])
        self._win.Flush(server)

    def get(self, server: int, displ: int, content: Array) -> None:
        """Read bytes from a server; they are here on return."""
        self._win.Get([content, MPI.BYTE], server, [displ, content.size, MPI.BYTE])
        self._win.Flush(server)

    def free(self) -> None:
        """Give the memory back; collective."""
        self.memory = np.zeros(0, np.uint8)
        self._win.Unlock_all()
        self._win.Free()
