"""Message contexts that the communicators of a team have in turn, for blocking calls whose staging memory is large.

A communicator keeps the one of its last call until another communicator wants it. That one gets it where all ranks are between the same two
calls on it, as an allreduce finds out; else one more is made, for then two communicators are at work at once. Whoever had it learns that at
its next call, the same one on all ranks, and is in that place itself. That may wait for all ranks, which only a blocking call may do.
"""

import threading
import time

import numpy as np
from mpi4py import MPI

from hpcoll.comm.plans.plan import MessageContext

_BUSY = -1  # what a rank says of a message context that cannot be taken
_WAIT_S = 1e-4  # between two looks at whether the ranks have agreed


class StagingLease:
    """The lease of a message context to one communicator of a team.

    Attributes:
        owner: Stands for the communicator.
        gpu: GPU that reads and writes its staging memory.
        idle: The message context while no call runs on it. A call that fails does not give it back: messages are still under way.
        ended: Calls on it that have ended on this rank.
        wanted: A communicator asks all ranks for it just now.
    """

    __slots__ = ("ended", "gpu", "idle", "owner", "wanted")

    def __init__(self, owner: object, gpu: object) -> None:
        self.owner = owner
        self.gpu = gpu
        self.ended = 0
        self.wanted = False
        self.idle: MessageContext | None = None

    def end(self, message_context: MessageContext) -> None:
        """Take back the message context of a call that has ended."""
        self.ended += 1
        self.idle = message_context


class SharedStaging:
    """The message contexts that the communicators of a team have in turn."""

    def __init__(self) -> None:
        self._all: list[StagingLease] = []  # in the order in which all ranks made them
        self._changing = threading.Lock()

    def begin(self, turn: StagingLease, owner: object) -> bool:
        """Begin a call of the communicator that had a turn; False, on all ranks, where another has it by now."""
        while True:
            with self._changing:
                if turn.owner is not owner:
                    return False
                if not turn.wanted:
                    turn.idle = None
                    return True
            time.sleep(_WAIT_S)

    def take(
        self, owner: object, gpu: object, comm: MPI.Intracomm
    ) -> tuple[StagingLease, MessageContext] | None:
        """Return a lease that no rank uses, and its message context, for a call that begins now; None, on all ranks, where there is none.

        Collective over ``comm``, while this thread is `hpcoll.comm.team.team.Team.alone`.
        """
        if not self._all:
            return None
        try:
            with self._changing:
                for lease in self._all:
                    lease.wanted = lease.idle is not None and lease.gpu is gpu
                ended = np.array([lease.ended if lease.wanted else _BUSY for lease in self._all], np.int64)
            least_and_most = np.stack([ended, -ended])
            comm.Allreduce(MPI.IN_PLACE, least_and_most, MPI.MIN)
            with self._changing:
                for lease, least, most in zip(self._all, *least_and_most.tolist()):
                    if least == -most != _BUSY and lease.idle is not None:
                        idle = lease.idle
                        lease.owner = owner
                        lease.idle = None
                        return lease, idle
            return None
        finally:
            for lease in self._all:
                lease.wanted = False

    def add(self, owner: object, gpu: object) -> StagingLease:
        """Return the lease of a message context that was made for a call which begins at once; collective as `take`."""
        self._all.append(StagingLease(owner, gpu))
        return self._all[-1]

    def free(self) -> None:
        """Let go of shared memory."""
        self._all.clear()
