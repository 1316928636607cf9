"""The resources of a communicator: those of its team, and message contexts of its own."""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import PeerFailed, TransportError
from hpcoll.comm.arguments.call import Form
from hpcoll.comm.arguments.methods import Caller
from hpcoll.comm.arguments.neighbours import graph_of, plain
from hpcoll.comm.plans.ledger import Ledger
from hpcoll.comm.plans.plan import ContextPool, MessageContext
from hpcoll.comm.plans.signature import Purpose
from hpcoll.comm.requests.call_hooks import CollectiveOwner
from hpcoll.comm.team.service_collectives import ServiceCollectives
from hpcoll.comm.team.team import IN_FLIGHT, Team
from hpcoll.runtime.telemetry.call_log import EVERY, CallLog
from hpcoll.runtime.transports.mpi import (
    KNOWN_S,
    Revoked,
    failed_ranks,
    is_revoked,
    may_call,
    tells_of_failure,
    title_of,
)

_AT_ONCE = 4  # message contexts for persistent requests
_WORTH = 256  # of such requests, after which twice as many cost less than the words they save; then once more


class Resources(ContextPool):
    """The resources on which the calls of one communicator run. Made collectively, while the thread is `hpcoll.comm.team.team.Team.alone`.

    Attributes:
        key: Key that tells the communicator from all others, alike on all ranks.
        native: The caller's communicator, as plain mpi4py object.
        team: Team of its ranks; what it knows is repeated here.
        number: Number in the team; -1: when it is freed, no other communicator gets it.
        message_contexts: Message contexts for blocking calls, then for non-blocking ones.
        service_collectives: Service collectives of its ranks, which the planner makes.
        caller: The part of this that describing a call needs.
        near: Ranks with which this one shares memory, itself among them, and their places there.
        pids: Process ids of all ranks.
        lock: 1 while a thread is inside a blocking collective.
        met: Diagnosis has looked at its first call.
        life: Number of the communicators that they have served, alike on all ranks.
        counts_in_flight: hpcoll has run all calls in flight, so that it knows their numbers.
        settled: Kind and text of the error that all ranks raise since a call has failed; None before that is known here.
    """

    service_collectives: ServiceCollectives

    def __init__(self, team: Team, number: int) -> None:
        self.team = team
        self.number = number
        self.rank = team.rank
        self.nranks = team.nranks
        self.comm = team.comm
        self.config = team.config
        self.node = team.node
        self.topology = team.topology
        self.levels = team.levels
        self.capacity = team.capacity
        self.one_node = team.one_node
        self.has_gpus = team.has_gpus
        self.asked_mixed = team.asked_mixed
        self.mixed = team.mixed
        self.wait_policy = team.wait_policy
        self.message_contexts = team.message_contexts()
        self.key = (
            f"{team.number}.{self.message_contexts[0].index}.{zlib.crc32(repr(team.world_ranks).encode())}"
        )
        self.host = team.processes[team.rank].host
        self.pids = team.processes.rows["pid"]
        self.near = (
            {rank: local for local, rank in enumerate(self.node.ranks)}
            if self.shares_memory
            else {self.rank: 0}
        )
        self.lock = np.zeros(1, np.int64)
        self.life = 0
        self.met = False
        self.settled: tuple[type[TransportError], str] | None = None
        self._persistent: list[MessageContext] = []
        self._agreed: list[MessageContext] = []
        self._taken = 0
        self._unused = set[int]()
        self._title = ""
        self._has_name = False

    def serve(self, comm: MPI.Intracomm) -> None:
        """Belong to a communicator; collective."""
        self.native = plain(comm)
        self.life += 1
        self._title = title_of(comm)
        self._has_name = True
        self.counts_in_flight = not self.has_gpus  # calls on GPU arrays have message contexts of their own
        for message_context in self.message_contexts:
            message_context.log.serve()
        self.log.before -= getattr(comm, "_early", None) or 0
        self.caller = Caller(
            self.native,
            self.rank,
            self.nranks,
            np.zeros(1, np.uint8),
            self._counts,
            graph=graph_of(self.native),
        )

    @property
    def title(self) -> str:
        """The communicator's name, for texts: the one that it has now, where this thread may ask."""
        if self._has_name and not MPI.Is_finalized() and may_call():
            self._title = title_of(self.native)
        return self._title

    def forget_name(self) -> None:
        """Keep the name for texts: the communicator is about to be freed."""
        self._title = self.title
        self._has_name = False

    def form(self, index: int) -> Form:
        """Return the form in which a program calls what runs on a message context."""
        at = [message_context.index for message_context in self.message_contexts]
        if index in at[1:]:
            return "in flight"
        return (
            "persistent"
            if index in [message_context.index for message_context in self._persistent]
            else "blocking"
        )

    def numbered(self, lane: int, number: int, *, after: bool = False) -> str:
        """Return `counted` in words; empty where it is not known."""
        count = self.counted(lane, number, after=after)
        if not count:
            return ""
        return f"blocking call {count}" if self.form(lane) == "blocking" else f"call {count} in flight"

    def counted(self, lane: int, number: int, *, after: bool = False) -> int:
        """Return which call of the program's one is, as it counts blocking calls, and calls in flight; 0 where that is not known.

        Args:
            lane: Index of a message context.
            number: Number of the call there.
            after: It has ended: of a service collective the program's call before it is told, else the one that it is for.
        """
        place = next(
            (
                place
                for place, message_context in enumerate(self.message_contexts)
                if message_context.index == lane
            ),
            None,
        )
        if place is None or self.has_gpus:
            return 0
        log = self.message_contexts[place].log
        if place == 0:
            return max(log.counted(number, after=after), 0)
        turn = (number - log.before - 1) * IN_FLIGHT + place
        return turn - (turn - 1) // EVERY if self.counts_in_flight and turn > 0 else 0

    @contextmanager
    def alone(self, purpose: Purpose, what: str = "") -> Iterator[None]:
        """Let the team make something that is not this communicator's only; arguments as of a service collective. Collective.

        Raises:
            PeerFailed: what is made there ended because a rank has failed.
        """
        try:
            with self.team.alone(
                lambda ready: self.service_collectives.everywhere(ready, purpose, what),
                self.message_contexts[0].index,
            ):
                yield
        except MPI.Exception as error:
            raise self.peer_failed(error) if tells_of_failure(error, self.comm) else error from None

    def _counts(self, count: int) -> list[int]:
        """Return every rank's count; collective."""
        what = "Reduce_scatter, for which each rank tells its count"
        numbers: list[int] = self.service_collectives.gather_number(count, Purpose.COUNTS, lambda: what)
        return numbers

    @property
    def log(self) -> CallLog:
        """The log of blocking calls."""
        return self.message_contexts[0].log

    @property
    def shares_memory(self) -> bool:
        """This rank exchanges messages with others through shared memory."""
        return self.message_contexts[0].rings is not None

    def every_message_context(self) -> list[MessageContext]:
        """Return all message contexts that there are by now."""
        return [*self.message_contexts, *self._persistent]

    @property
    def aborted_by(self) -> int | None:
        """The rank that says that a call has failed; None where none is known."""
        return self.log.aborted_by if self.message_contexts else None

    def set_abort_flag(self) -> None:
        """Say on all message contexts that a call has failed."""
        for message_context in self.every_message_context():
            message_context.log.set_abort_flag(self.rank)

    @property
    def revoked(self) -> str:
        """In words that the communicator is revoked; empty where that is not known."""
        if self.settled is not None and self.settled[0] is Revoked:
            return self.settled[1]
        named = self._has_name and not MPI.Is_finalized() and may_call()
        return f"{self.title} was revoked" if named and is_revoked(self.native) else ""

    def failed_ranks(self, limit_s: float = 0.0) -> list[int]:
        """Return the ranks that have failed as the MPI library knows, as `hpcoll.runtime.transports.mpi.failed_ranks`."""
        return failed_ranks(self.comm, limit_s)

    def peer_failed(self, error: MPI.Exception) -> PeerFailed:
        """Return the error to raise where the MPI library's own call has ended because a rank has failed."""
        ranks = self.failed_ranks(KNOWN_S)
        who = self.who(ranks[0]) if ranks else "a rank"
        return PeerFailed(f"{who} has failed, says the MPI library", code=error.Get_error_code())

    def who(self, rank: int) -> str:
        """Return a rank and its process, for texts."""
        return f"rank {rank} ({self.process(rank)})"

    def process(self, rank: int) -> str:
        """Return the process of a rank, for texts."""
        return f"process {self.pids[rank]} on {self.team.processes[rank].host}"

    def begin(self) -> MessageContext:
        """Return the message context of blocking calls."""
        return self.message_contexts[0]

    def in_flight(self, turn: int) -> MessageContext:
        """Return the message context of a non-blocking call."""
        return self.message_contexts[1 + turn]

    def message_context(self) -> MessageContext:
        """Return a message context that all ranks take in one order."""
        self.agree()
        self._taken += 1
        return self._agreed.pop(0)

    def agree(self) -> None:
        """Make a message context for the next persistent request; collective. What then fails on one rank alone holds up no other."""
        if self._agreed:
            return
        # Those that were given back on all ranks, and some more where these are few: all ranks then take them in one order
        # without a word, so that a request that is made costs no wait for the others.
        unused = np.array(
            [message_context.index in self._unused for message_context in self._persistent], np.bool_
        )
        if self._persistent:
            unused = self.service_collectives.everywhere(unused, Purpose.PERSISTENT)
        for index in sorted(self._unused):  # all ranks have begun these comparisons by now
            self.service_collectives.end_comparison(index)
        self._agreed = [
            message_context for message_context, everywhere in zip(self._persistent, unused) if everywhere
        ]
        self._unused.difference_update(message_context.index for message_context in self._agreed)
        wanted = _AT_ONCE << min(self._taken // _WORTH, 2) if self._persistent else 1
        missing = wanted - len(self._agreed)
        if missing > 0:
            with self.alone(Purpose.PERSISTENT):
                made = self.team.new_message_contexts(missing)
            self._persistent += made
            self._agreed += made

    def give_back(self, message_context: MessageContext) -> None:
        """Note that a message context is unused on this rank."""
        self._unused.add(message_context.index)

    def free(self) -> None:
        """Let go of shared memory."""
        self.team.channel.remove(self.key)
        del self.service_collectives
        self.message_contexts.clear()
        self._persistent.clear()
        self._agreed.clear()


class CommunicatorCalls(CollectiveOwner):
    """The calls of one communicator, with the resources on which they run, as diagnosis sees them.

    Args:
        resources: Resources on which the calls run; an attribute, too.

    Attributes:
        caller: What describing a call needs of the resources.
        ledger: Ledger that counts the calls.
        kept: What observers keep of these calls, by its class.
    """

    ledger: Ledger

    def __init__(self, resources: Resources) -> None:
        super().__init__(resources.rank, resources.nranks)
        self.resources = resources
        self.caller = resources.caller
        self.kept: dict[type, Any] = {}

    def refusal(self) -> Exception:
        """Return the error of a call on a communicator that is closed: of a revoked one always that."""
        revoked = self.resources.revoked
        return Revoked(f"rank {self.rank}: {revoked}") if revoked else super().refusal()


live_contexts: dict[
    CommunicatorCalls, None
] = {}  # of this process, until their communicators are freed; other threads make some
