"""What a communicator has for its collectives: its group's, and message contexts of its own."""

import zlib
from contextlib import AbstractContextManager

import numpy as np
from mpi4py import MPI

from hpcoll.comm.calls.methods import Caller
from hpcoll.comm.group import Group
from hpcoll.comm.plan import MessageContext

_AT_ONCE = 4  # message contexts for persistent requests


class Resources:
    """What the calls of one communicator run on. Made collectively, while the thread is `hpcoll.comm.group.Group.alone`.

    Attributes:
        key: Tells the communicator from all others, alike on all ranks.
        title: Its name, for texts.
        native: The caller's communicator, as plain mpi4py object. What its ranks ask each other travels on it, so that threads with
            communicators of one group need not wait for each other.
        group: Of its ranks; what it knows is repeated here.
        number: In the group; -1: when it is freed, no other communicator gets it.
        message_contexts: For blocking calls, then for non-blocking ones.
        caller: What describing a call needs of all this.
        lock: 1 while a thread is inside a blocking collective.
    """

    def __init__(self, group: Group, number: int) -> None:
        self.group, self.number = group, number
        self.rank, self.nranks, self.comm, self.handle = group.rank, group.nranks, group.comm, group.handle
        self.config, self.node, self.topology, self.levels = group.config, group.node, group.topology, group.levels
        self.capacity, self.one_node, self.has_gpus = group.capacity, group.one_node, group.has_gpus
        self.asked_mixed, self.mixed, self.wait_policy = group.asked_mixed, group.mixed, group.wait_policy
        self.message_contexts = group.message_contexts()
        self.key = f"{group.number}.{self.message_contexts[0].index}.{zlib.crc32(repr(group.world_ranks).encode())}"
        self.host = group.processes[group.rank].host
        self.lock = np.zeros(1, np.int64)
        self._persistent: list[MessageContext] = []
        self._agreed: list[MessageContext] = []
        self._unused = set[int]()

    def serve(self, comm: MPI.Intracomm) -> None:
        """Be a communicator's."""
        self.native = MPI.Intracomm(comm)
        self.title = self.native.Get_name() or f"a communicator of {self.nranks} ranks"
        self.caller = Caller(self.native, self.rank, self.nranks, np.zeros(1, np.uint8))

    def alone(self) -> AbstractContextManager[None]:
        """While the group makes with all ranks what is not this communicator's only; collective."""
        return self.group.alone(self.native)

    @property
    def shares_memory(self) -> bool:
        """Whether this rank exchanges messages with others through shared memory."""
        return self.message_contexts[0].rings is not None

    def every_message_context(self) -> list[MessageContext]:
        """All that there are by now."""
        return [*self.message_contexts, *self._persistent]

    @property
    def alarmed(self) -> bool:
        """Whether a call has failed on a rank of this node."""
        rings = self.message_contexts[0].rings if self.message_contexts else None
        return rings is not None and bool(rings.alarm[0])

    def begin(self) -> MessageContext:
        """The message context of blocking calls."""
        return self.message_contexts[0]

    def end(self) -> None:
        """It is nobody else's."""

    def in_flight(self, turn: int) -> MessageContext:
        """That of a non-blocking call."""
        return self.message_contexts[1 + turn]

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
            self.native.Allreduce(MPI.IN_PLACE, unused, MPI.MIN)
        self._agreed = [one for one, everywhere in zip(self._persistent, unused, strict=True) if everywhere]
        self._unused.difference_update(one.index for one in self._agreed)
        missing = (_AT_ONCE if self._persistent else 1) - len(self._agreed)
        if missing > 0:
            with self.alone():
                made = self.group.new_message_contexts(missing)
            self._persistent += made
            self._agreed += made

    def give_back(self, message_context: MessageContext) -> None:
        """The persistent request that had it is gone on this rank."""
        self._unused.add(message_context.index)

    def free(self) -> None:
        """Let go of shared memory."""
        self.message_contexts.clear()
        self._persistent.clear()
        self._agreed.clear()
