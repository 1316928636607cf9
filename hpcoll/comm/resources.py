"""What a communicator has for its collectives: a private duplicate, settings, who shares memory, where ranks run, message contexts."""

import os
from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import ArgumentError
from hpcoll.comm.calls.methods import Caller
from hpcoll.comm.plan import MessageContext
from hpcoll.runtime.engine.host_engine import OWN_CORE, SHARED_CORE
from hpcoll.runtime.gpu import cuda
from hpcoll.runtime.program.route import in_words
from hpcoll.runtime.transports.host_routes import host_routes
from hpcoll.runtime.transports.local_ranks import LocalRanks
from hpcoll.runtime.transports.mpi import handle
from hpcoll.runtime.transports.rings import CAPACITY_NBYTES, Rings
from hpcoll.runtime.transports.window import whole_pages
from hpcoll.selection.agreement import agree
from hpcoll.selection.config import log
from hpcoll.selection.networks import levels
from hpcoll.selection.topology import find_topology

IN_FLIGHT = 2  # message contexts for non-blocking calls
FIRST_PERSISTENT = 2 * (1 + IN_FLIGHT)  # number of the first message context behind those that host and GPU arrays have
_AT_ONCE = 4  # message contexts for persistent requests
_serials = [0]  # the last one
_YIELDS = "OMPI_MCA_mpi_yield_when_idle"  # how a user tells Open MPI that cores have several ranks


class Resources:
    """What the calls of one communicator run on. Made collectively.

    Attributes:
        native: The caller's communicator, as plain mpi4py object.
        comm: Private duplicate on which hpcoll's messages travel; ``handle`` is its C handle.
        rank, nranks: Of the communicator.
        config: Settings from the environment, equal on all ranks.
        node: The ranks that share memory with this one.
        topology: Where all ranks run.
        levels: What messages cost on a node and between nodes.
        message_contexts: For blocking calls, then for non-blocking ones.
        capacity: Bytes of a staging slot where any rank has shared-memory rings, else 0.
        one_node: All ranks share the memory of one node; alike on all ranks.
        mixed: Ranks may pass different kinds of memory in one call; ``asked_mixed``: because the program says so.
        has_gpus: Some rank is likely to have a GPU.
        wait_policy: How a rank waits.
        caller: What describing a call needs of all this.
        lock: 1 while a thread is inside a blocking collective.
        serial: A number that tells these from all others that this process has; alike on all ranks.
    """

    def __init__(self, comm: MPI.Intracomm, mixed: bool) -> None:
        self.rank, self.nranks = comm.Get_rank(), comm.Get_size()
        self.native = MPI.Intracomm(comm)
        self.comm = self.native.Dup()
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        try:
            self.config, hosts = agree(self.comm)
        except ArgumentError:
            self.comm.Free()
            raise
        self.handle = handle(self.comm)
        oversubscribed = hosts.count(hosts[self.rank]) > (os.cpu_count() or 1) or os.environ.get(_YIELDS, "0") not in ("", "0", "false")
        self.wait_policy = SHARED_CORE if oversubscribed else OWN_CORE
        self.node = LocalRanks(self.comm, self.config.shm, self.config.shm_ranks)
        self._persistent: list[MessageContext] = []
        self._agreed: list[MessageContext] = []
        self._unused, self._nindices = set[int](), 0
        self.message_contexts = self.new_message_contexts(0, 1 + IN_FLIGHT)
        self.topology = find_topology(self.comm, hosts, self.node.first)
        self.levels = levels(hosts, self.config.levels)
        if self.rank == 0:
            log.info("ranks: %s", self.topology)
            peers = [rank for rank in range(self.nranks) if rank != self.rank]
            log.info("messages of rank 0: %s", in_words(host_routes(self.message_contexts[0].local_peers), peers, self.levels))
        found = self.comm.allgather((self.shares_memory, cuda.is_likely(), _serials[0]))
        self.serial = max(serial for _, _, serial in found) + 1
        _serials[0] = self.serial
        self.capacity = self._staging_nbytes() if any(shares for shares, _, _ in found) else 0
        self.one_node = self.shares_memory and self.node.nranks == self.nranks
        self.has_gpus = any(likely for _, likely, _ in found)
        self.asked_mixed, self.mixed = mixed, mixed or not all(likely for _, likely, _ in found)
        self.caller = Caller(self.comm, self.rank, self.nranks, np.zeros(1, np.uint8))
        self.lock = np.zeros(1, np.int64)

    @property
    def shares_memory(self) -> bool:
        """Whether this rank exchanges messages with others through shared memory."""
        return self.message_contexts[0].rings is not None

    def new_message_contexts(self, first: int, n: int, capacity: int | None = None) -> list[MessageContext]:
        """``n`` message contexts, numbered from ``first`` on, with so many bytes in each staging slot; collective."""
        rings: Sequence[Rings | None] | None = None
        if self.node.nranks > 1 and self.config.shm != 0:
            said = self.node.refused
            rings = self.node.make_rings(n, capacity or self._staging_nbytes())
            if rings is None and self.node.rank == 0 and not said:
                log.warning("ranks of this node exchange MPI messages: %s", self.node.refused)
        return [MessageContext(first + i, one) for i, one in enumerate(rings or [None] * n)]

    def message_context(self) -> MessageContext:
        """A message context for a persistent request, the same on all ranks; collective."""
        if not self._agreed:
            self._agree()
        return self._agreed.pop(0)

    def _agree(self) -> None:
        """Find the message contexts that were given back on all ranks, and make some more where these are few; collective.

        All ranks then take them in one order without a word, so that a request that is made costs no wait for the others.
        """
        unused = np.array([one.index in self._unused for one in self._persistent], np.uint8)
        if self._persistent:
            self.comm.Allreduce(MPI.IN_PLACE, unused, MPI.MIN)
        self._agreed = [one for one, everywhere in zip(self._persistent, unused, strict=True) if everywhere]
        self._unused.difference_update(one.index for one in self._agreed)
        missing = (_AT_ONCE if self._persistent else 1) - len(self._agreed)
        if missing > 0:
            made = self.new_message_contexts(self.next_index(missing), missing)
            self._persistent += made
            self._agreed += made

    def give_back(self, message_context: MessageContext) -> None:
        """The persistent request that had it is gone on this rank."""
        self._unused.add(message_context.index)

    def next_index(self, n: int = 1) -> int:
        """The first of ``n`` numbers for message contexts of persistent requests."""
        self._nindices += n
        return FIRST_PERSISTENT + self._nindices - n

    def _staging_nbytes(self) -> int:
        """Bytes of a staging slot: with very many ranks a lane has very many pieces."""
        return whole_pages(max(CAPACITY_NBYTES, 256 * self.nranks))

    def free(self) -> None:
        """Free the duplicate, and let go of shared memory."""
        self.message_contexts.clear()
        self._persistent.clear()
        self._agreed.clear()
        if not MPI.Is_finalized():
            self.node.free()
            self.comm.Free()
