"""The status page of this process, for those who look at it from outside: who it is, for whom it waits, and what it sees these do.

The page is made with the first communicator.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI

from hpcoll.base.processes import RUNNING
from hpcoll.comm.diagnosis.peer_state import PeerState
from hpcoll.comm.status.rank_status import RANK_STATUS
from hpcoll.comm.team.resources import Resources
from hpcoll.runtime.telemetry.status_page import Identity, StatusPage, launcher
from hpcoll.selection.config import log

_EVERY_S = 1.0  # between two looks at what others do
_MOST = 8  # ranks that are looked at


class ProcessStatusPage:
    """The status page of this process, which names the ranks of its communicators on this host.

    Threads that make communicators wait for each other here: until there is a page, and while one writes on it.
    """

    def __init__(self) -> None:
        self._page: StatusPage | None = None
        self._peers: dict[int, int] = {}
        self._started = 0.0
        self._changing = threading.Lock()

    def begin(self) -> None:
        """Make the page, if there is none and the system lets us."""
        with self._changing:
            if self._started:
                return
            self._started = time.time()
            try:
                self._page = StatusPage()
            except (AttributeError, OSError) as error:  # AttributeError: not Linux
                log.info("hpcoll inspect --live will not see this process: %s", error)
                return
            self._peers = {MPI.COMM_WORLD.rank: os.getpid()}
            self._write()
            RANK_STATUS.show(self._page)

    def meet(self, on: Resources) -> None:
        """Name the ranks of a communicator."""
        world, node = on.team.world_ranks, on.node
        found = {world[rank]: pid for rank, pid in zip(node.ranks, node.pids, strict=True) if world[rank] != MPI.UNDEFINED}
        with self._changing:
            if self._page is not None and not found.items() <= self._peers.items():
                self._peers |= found
                self._write()

    def forget(self) -> None:
        """Start anew: this process is a fork, without a page, and without the thread of its parent that may have had the lock."""
        self.__init__()  # type: ignore[misc]

    def _write(self) -> None:
        assert self._page is not None
        world, host, program = MPI.COMM_WORLD, os.uname().nodename, getattr(sys, "argv", [])
        self._page.introduce(Identity(os.getpid(), world.rank, world.size, launcher(), host, self._started, self._peers, program))


STATUS_PAGE = ProcessStatusPage()
os.register_at_fork(after_in_child=STATUS_PAGE.forget)


class Observations:
    """The observations of a call that waits, for the status page: for which ranks it waits, and what these do.

    Args:
        on: Resources of its communicator.
    """

    def __init__(self, on: Resources) -> None:
        self._on, self._next, self._seen = on, 0.0, dict[int, tuple[float, str]]()

    def of(self, awaits: Sequence[int], doing: Callable[[int], str]) -> dict[str, Any]:
        """Return the observations.

        Args:
            awaits: Ranks of the communicator for which the call waits now.
            doing: Returns what a rank does, in words; empty where that is not known.
        """
        world = self._on.team.world_ranks
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _EVERY_S
            seen = ((rank, doing(rank)) for rank in awaits[:_MOST] if not self._shows_itself(rank))
            self._seen = {world[rank]: (self._since(rank), text) for rank, text in seen if text}
        return {"for": [world[rank] for rank in awaits], "sees": self._seen}

    def _shows_itself(self, rank: int) -> bool:
        """Say whether a rank's own page, or the state of its process, shows what it does."""
        known = PeerState(self._on, self._on.message_contexts[0].log)
        status = known.status(rank)
        return bool(status.waits or status.left) or known.process_state(rank) not in (RUNNING, "")

    def _since(self, rank: int) -> float:
        """Return when a rank last ended a call on the communicator, in seconds since 1970; now, where it is in a blocking one."""
        blocking, *others = (PeerState(self._on, one.log).progress(rank) for one in self._on.every_message_context())
        if blocking is not None and blocking.begun > blocking.ended:
            return time.time()
        return max((one.when for one in (blocking, *others) if one is not None), default=0.0)
