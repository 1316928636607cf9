"""The team: what all communicators of the same ranks have in common, so that a further one costs little.

A team has one private duplicate, on which the messages of all its communicators travel. The tags of their message contexts keep them apart.
It knows where its ranks run and which of them share memory.
"""

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np
from mpi4py import MPI

from hpcoll.analysis.cost import NEVER, levels_between
from hpcoll.base.errors import ArgumentError
from hpcoll.comm.plans.plan import MAX_WINDOW, MessageContext
from hpcoll.comm.status.rank_status import RANK_STATUS
from hpcoll.comm.team.bootstrap import FIRST_USE, PrivateComm
from hpcoll.comm.team.channel import Channel
from hpcoll.runtime.engine.wait_policy import wait_policy
from hpcoll.runtime.gpu import cuda
from hpcoll.runtime.program.route import in_words
from hpcoll.runtime.telemetry.call_log import CallLog
from hpcoll.runtime.transports.cross_memory import STAGED
from hpcoll.runtime.transports.host_routes import host_routes
from hpcoll.runtime.transports.local_ranks import LocalRanks, of_node
from hpcoll.runtime.transports.mpi import handle, revoking, tags_at_once, title_of
from hpcoll.runtime.transports.rings import Rings, capacity_nbytes
from hpcoll.runtime.transports.window import FOLDER
from hpcoll.selection.agreement import agree
from hpcoll.selection.config import log
from hpcoll.selection.processes import Processes, this_process
from hpcoll.selection.topology import find_topology, grouped

if TYPE_CHECKING:
    from hpcoll.comm.team.shared_staging import SharedStaging

# By number and ranks of a team: duplicates on which all of COMM_WORLD wait at the end, where not all share memory. Never freed.
FINALIZE_COMMS: dict[tuple[int, tuple[int, ...]], MPI.Intracomm] = {}

IN_FLIGHT = 2  # message contexts for non-blocking calls
CALLS_AT_ONCE = 1 + IN_FLIGHT  # message contexts of a communicator
# settings with which hpcoll makes all calls from the first one on
_FROM_THE_FIRST = ("algorithms", "order", "check", "timeout", "record", "trace", "metrics", "summary")
_RETRY_S = 1e-3  # most between two attempts of threads that are in each other's way
_IN_TURN = 3  # attempts in which they keep their order
_ANYWAY = 0.25  # share of later ones in which they do not


class Team:
    """The team of the communicators of some ranks. Made collectively.

    Args:
        comm: Any communicator of these ranks, in this order.
        number: Number that tells it from others of the same ranks; equal on all of them.
        processes: Processes of the ranks; None: they ask each other.
        world_ranks: Their ranks in COMM_WORLD.
        mixed: Ranks may pass different kinds of memory in one call, says the program.
        all_share: It is known on all of them that they share memory.
        may_part: All of them have something in `FINALIZE_COMMS`.

    Attributes:
        comm: Private duplicate on which hpcoll's messages travel, those of the first message contexts at least.
        process: Process of this rank; ``processes``: those of all.
        config: Settings from the environment, equal on all ranks.
        node: Ranks that share memory with this one.
        topology: Where all ranks run.
        levels: Cost of messages on and between the topology's parts.
        capacity: Bytes of a staging slot where any rank has shared-memory rings, else 0.
        one_node: All ranks share the memory of one node; alike on all ranks.
        mixed: Ranks may pass different kinds of memory in one call.
        asked_mixed: They may because the program says so.
        has_gpus: Some rank is likely to have a GPU.
        alive: Number of resources, of communicators and of freed ones.
        used: Their numbers, as bits.
        uses_mpi: Some of its messages are the MPI library's.
        failed: Messages of a call that failed may come at any time: it is never closed, and serves later communicators of its ranks.
        logs: Logs of its message contexts, by their index.
        channel: Channel by which ranks that share no memory ask each other.
        lock: Lock of the thread that makes something with the other ranks for all its communicators.

    Raises:
        ArgumentError: on every rank, when the settings of one are wrong or differ from those of another.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        number: int,
        processes: Processes | None,
        world_ranks: tuple[int, ...],
        *,
        mixed: bool,
        all_share: bool,
        may_part: bool,
    ) -> None:
        self.number = number
        self.rank = comm.Get_rank()
        self.nranks = comm.Get_size()
        self.world_ranks = world_ranks
        self.alive = 0
        self.used = 0
        self.lock = threading.Lock()
        self._indices = count()
        self.uses_mpi = self.failed = False
        self._waiting: list[int] = []  # communicators that want to be `alone`
        self.channel = Channel()
        self.logs: WeakValueDictionary[int, CallLog] = WeakValueDictionary()
        self.comm = PrivateComm.of(comm.Dup(), title_of(comm), FIRST_USE)
        self._comms: list[MPI.Intracomm] = [self.comm]
        with revoking(self._comms):
            try:
                node: MPI.Comm = self.comm
                first = 0
                if not all_share:
                    node, first = of_node(self.comm)
                if processes is not None:
                    processes.share(self.comm, first, near=node is self.comm)
                self.process = this_process(cuda.is_likely())
                self.config, self.processes = agree(self.comm, self.process, first, processes)
            except ArgumentError:
                if node is not self.comm:
                    node.Free()
                self.comm.Free()
                raise
            pids = self.processes.rows["pid"]
            self.node = LocalRanks(self.comm, node, self.config.shm, self.config.shm_ranks, pids)
        with self._together():
            self._meet(may_part=may_part)
        self.has_gpus = bool(self.processes.rows["has_gpu"].any())
        self.asked_mixed = mixed
        self.mixed = mixed or not self.processes.rows["has_gpu"].all()
        if self.rank == 0:
            log.info("ranks: %s", self.topology)
            peers = [rank for rank in range(self.nranks) if rank != self.rank]
            log.info(
                "messages of rank 0: %s",
                in_words(host_routes(self._stock[0].local_peers), peers, self.levels),
            )
            if self.node.own_memory is not None:
                log.info("long messages of ranks of a node: %s", self.node.own_memory)

    @cached_property
    def begins_early(self) -> bool:
        """The MPI library may make the first calls of further communicators; alike on all ranks."""
        return not any(getattr(self.config, name) for name in _FROM_THE_FIRST)

    @cached_property
    def turns(self) -> "SharedStaging":
        """Message contexts of blocking calls on GPU arrays, where these need much staging memory."""
        from hpcoll.comm.team.shared_staging import SharedStaging

        return SharedStaging()

    def _meet(self, *, may_part: bool) -> None:
        """Find out how these ranks exchange messages, and make the first message contexts; collective."""
        self.wait_policy = wait_policy(self.processes.host_nranks(self.rank), os.cpu_count() or 1)
        if self.nranks == 1:  # its calls in flight wait for nobody: the progress thread has nothing to do
            self.wait_policy = self.wait_policy._replace(eager=NEVER)
        if self.node.nranks > 1 and self.config.shm_copy != STAGED:
            measured = self.config.levels.node.read_from if self.config.levels else None
            unreadable = self.node.read_own_memory(
                [self.processes[rank].word for rank in self.node.ranks], self.config.shm_copy, measured
            )
            if unreadable and self.node.rank == 0:
                level = logging.WARNING if self.config.shm_copy else logging.INFO
                log.log(
                    level,
                    "ranks of this node stage all messages: they cannot read each other's memory: %s",
                    unreadable,
                )
        self._stock = self.new_message_contexts(CALLS_AT_ONCE)
        RANK_STATUS.add_slots(self.node.status_slots)
        if self.node.memory_alone:
            log.info(
                "shared memory of this node: files of memory alone (memfd), because %s makes none without a name",
                FOLDER,
            )
        shares = self._stock[0].rings is not None
        near = self.node.nranks == self.nranks
        firsts = grouped(self.processes.rows["first"], self.config.shm_ranks)
        sharing = np.full(self.nranks, shares) if near else self._sharing(firsts, shares)
        self.one_node = near and shares
        if (
            not self.one_node
            and not may_part
            and sorted(self.world_ranks) == list(range(MPI.COMM_WORLD.size))
        ):
            FINALIZE_COMMS[self.number, self.world_ranks] = self.comm.Dup()
        self.capacity = capacity_nbytes(self.nranks) if sharing.any() else 0
        self.topology = find_topology(self.rank, self.processes, firsts, sharing, self.config.domains or ())
        self.levels = levels_between(self.processes.names, self.config.levels).on_parts(
            self.topology.nodes, self.topology.domains
        )

    def _sharing(self, firsts: np.ndarray, mine: bool) -> np.ndarray:
        """Return which ranks share memory with others of their nodes; collective. Only where some could have none do all tell it.

        Args:
            firsts: Of each rank the lowest rank of its node.
            mine: This rank does.
        """
        can = (np.bincount(firsts)[firsts] > 1) & (self.config.shm != 0)
        refused = np.array([can[self.rank] != mine], np.uint8)
        self.comm.Allreduce(MPI.IN_PLACE, refused, MPI.MAX)
        if refused[0]:
            self.comm.Allgather(np.array([mine]).view(np.uint8), can.view(np.uint8))
        return can

    def _together(self) -> AbstractContextManager[None]:
        """Return a context manager for calls of the MPI library's own that all ranks make."""
        return revoking([*self._comms, self.node.comm])

    def message_contexts(self) -> list[MessageContext]:
        """Return the message contexts of a further communicator; collective, while this thread is `alone`."""
        stock = self._stock
        self._stock = []
        with self._together():
            return stock or self.new_message_contexts(CALLS_AT_ONCE)

    def new_message_contexts(self, n: int, capacity: int | None = None) -> list[MessageContext]:
        """Make ``n`` message contexts, with so many bytes in each staging slot; collective, while this thread is `alone`."""
        rings: Sequence[Rings | None] | None = None
        if self.node.nranks > 1 and self.config.shm != 0:
            said = self.node.refused
            make = self.node.make_rings if capacity else self.node.rings
            rings = make(n, capacity or capacity_nbytes(self.nranks))
            if rings is None and self.node.rank == 0 and not said:
                log.warning("ranks of this node exchange MPI messages: %s", self.node.refused)
        return [self._message_context(next(self._indices), ring) for ring in rings or [None] * n]

    def _message_context(self, index: int, rings: Rings | None) -> MessageContext:
        """Make a message context; where the duplicates so far have no tags left, on a further one, which is made collectively."""
        self.uses_mpi |= rings is None or len(rings.local_peers) < self.nranks - 1
        ncontexts, first = tags_at_once(MAX_WINDOW)
        at, place = divmod(index, ncontexts)
        if at == len(self._comms):
            self._comms.append(self.comm.Dup())
        made = MessageContext(index, rings, handle(self._comms[at]), first._replace(first=place * MAX_WINDOW))
        if self.config.trace and self.config.trace.steps:
            made.log.note_steps()
        self.logs[index] = made.log
        return made

    @contextmanager
    def alone(self, everywhere: Callable[[np.ndarray], np.ndarray], turn: int) -> Iterator[None]:
        """Let one communicator of the team at a time do something, on all ranks the same one; collective over that communicator.

        Args:
            everywhere: Returns which flags are set on all of its ranks.
            turn: A number of the communicator, alike on all of them: of several that want this at once the lowest is first.
        """
        self._waiting.append(turn)
        try:
            for attempt in count():
                # the first may be late elsewhere
                mine = turn == min(self._waiting) or (attempt > _IN_TURN and random.random() < _ANYWAY)
                ready = mine and self.lock.acquire(blocking=False)
                try:
                    if everywhere(np.array([ready]))[0]:
                        with self._together():
                            yield
                        return
                finally:
                    if ready:
                        self.lock.release()
                step_aside()
        finally:
            self._waiting.remove(turn)

    def close(self) -> None:
        """Let go of shared memory, and send nothing more. All ranks call this, and nobody waits."""
        self._stock.clear()
        if "turns" in vars(self):
            self.turns.free()
        if not MPI.Is_finalized():
            self.channel.end()
            self.node.free()

    def free(self) -> bool:
        """Free the duplicates of a team that was closed, and say whether nothing was under way on them any more, so that it could.

        MPI libraries give their context id to a communicator that is made later, and a message that comes for the old one to the new one.
        """
        if MPI.Is_finalized() or not self.channel.has_ended():
            return False
        for comm in self._comms:
            comm.Free()
        return True


def step_aside() -> None:
    """Wait for a time that is another on each rank, so that of two threads which are in each other's way one is first on all of them."""
    time.sleep(_RETRY_S * random.random())
