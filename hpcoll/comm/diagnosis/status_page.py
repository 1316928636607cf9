"""The status page of this process, for those who look at it from outside: who it is, for whom it waits, and what it sees these do.

The page is made with the first communicator.
"""

import os
import threading
import time

from mpi4py import MPI

from hpcoll.comm.status.early_exit import identity
from hpcoll.comm.status.rank_status import RANK_STATUS
from hpcoll.comm.team.resources import Resources
from hpcoll.runtime.telemetry.status_page import StatusPage
from hpcoll.selection.config import log


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

    def meet(self, resources: Resources) -> None:
        """Name the ranks of a communicator."""
        world = resources.team.world_ranks
        node = resources.node
        peers = {world[rank]: pid for rank, pid in zip(node.ranks, node.pids) if world[rank] != MPI.UNDEFINED}
        with self._changing:
            if self._page is not None and not peers.items() <= self._peers.items():
                self._peers |= peers
                self._write()

    def forget(self) -> None:
        """Start anew: this process is a fork, without a page, and without the thread of its parent that may have had the lock."""
        self.__init__()  # type: ignore[misc]

    def _write(self) -> None:
        assert self._page is not None
        self._page.introduce(identity(self._started, self._peers))


STATUS_PAGE = ProcessStatusPage()
os.register_at_fork(after_in_child=STATUS_PAGE.forget)
