"""Messages between the first ranks of nodes, of which none waits long for another: comparisons that may be left out."""

import os
import time

import numpy as np
from mpi4py import MPI

from hpcoll.comm.team.team import Team
from hpcoll.runtime.transports.mpi import clock_tag
from hpcoll.schedules.placement import members


class Leaders:
    """The first ranks of a team's nodes, and the messages of this one, if it is one of them.

    Attributes:
        ranks: The first rank of each node.
        node: Number of this rank's node.
        leads: This rank is its node's first.
        nranks: Ranks of the team.
    """

    def __init__(self, team: Team) -> None:
        self.ranks, self.node = (
            [ranks[0] for ranks in members(team.topology.nodes)],
            team.topology.nodes[team.rank],
        )
        self.leads = team.rank == self.ranks[self.node]
        self.nranks = team.nranks
        self._team, self._comm, self._turn, self._end = team, team.comm, 0, 0.0
        self._under_way: list[MPI.Request] = []

    def begin(self, patience_s: float) -> None:
        """Begin a comparison that all ranks begin, and that is to end within so many seconds. Messages of earlier ones are passed over."""
        self._turn, self._end = self._turn + 1, time.monotonic() + patience_s
        self._under_way = [request for request in self._under_way if not _has_ended(request)]

    def left_messages(self) -> None:
        """Keep the team: messages of a comparison that failed may still come. All ranks call this."""
        self._team.failed = True

    def send(self, node: int, number: int, ns: int) -> None:
        """Begin to send a message with a number of this comparison's, and a time."""
        self._under_way.append(
            self._comm.Isend(np.array([self._turn, number, ns], np.int64), self.ranks[node], clock_tag())
        )

    def receive(self, node: int, number: int) -> int:
        """Return the time in a message of that number.

        Raises:
            TimeoutError: it does not come before the comparison's end.
            MPI.Exception: a rank has failed.
        """
        words = np.zeros(3, np.int64)
        while words[0] != self._turn or words[1] != number:
            while (message := self._comm.Improbe(self.ranks[node], clock_tag())) is None:
                self._pause()
            message.Recv(words)
        return int(words[2])

    def exchange(self, node: int, sent: np.ndarray, received: np.ndarray) -> None:
        """Send a node an array, and receive one from it, which must have announced that it does the same; raises what `receive` does."""
        rank = self.ranks[node]
        requests = [self._comm.Irecv(received, rank, clock_tag()), self._comm.Isend(sent, rank, clock_tag())]
        self._under_way += requests
        while not MPI.Request.Testall(requests):
            self._pause()

    def _pause(self) -> None:
        if time.monotonic() > self._end:
            raise TimeoutError
        os.sched_yield()


def _has_ended(request: MPI.Request) -> bool:
    try:
        return request.Test()
    except MPI.Exception:
        return True
