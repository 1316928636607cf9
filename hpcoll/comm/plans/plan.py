"""Plans, which keep the engines of one kind of call, and the message contexts on which calls travel."""

from array import array
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from hpcoll.comm.arguments.call import Call
from hpcoll.comm.plans.ledger import Account
from hpcoll.runtime.engine.entry import call_compiled
from hpcoll.runtime.engine.host_engine import HostEngine
from hpcoll.runtime.program.fields import AS_BEFORE, DONE, NO_ROOM, RESIZE, RUN, UNFIT
from hpcoll.runtime.program.layouts import Maps
from hpcoll.runtime.telemetry.call_log import CallLog
from hpcoll.runtime.transports.mpi import Tags
from hpcoll.runtime.transports.rings import Rings

MAX_WINDOW = 128  # of a window, hence tags of a message context
MOST_ENGINES = 16  # that a plan keeps
_NO_TAGS = Tags()


class MessageContext:
    """The rings and tags of one collective at a time; others may travel on other message contexts meanwhile.

    Attributes:
        index: Number, equal on all ranks.
        rings: Shared-memory rings to local peers, or None.
        comm: Handle of the communicator for messages to remote peers.
        tags: Tags of these messages.
        log: Log of its calls.
        tickets: Operations that have ended, and that were issued: int64, read and written by compiled code too.
        last: Slot of the operation that was issued last, on the board of `hpcoll.comm.requests.progress_thread`.
    """

    def __init__(self, index: int, rings: Rings | None, comm: int = 0, tags: Tags = _NO_TAGS) -> None:
        self.index, self.rings, self.comm, self.tags = index, rings, comm, tags
        self.log = CallLog() if rings is None else rings.log
        self.log.index = index
        self.tickets, self.last = np.zeros(2, np.int64), 0
        self._scratch: dict[type, Any] = {}  # by kind of engine

    @property
    def idle(self) -> bool:
        """Say whether nothing is in flight on it."""
        return bool(self.tickets[0] == self.tickets[1])

    @property
    def local_peers(self) -> Mapping[int, int]:
        """Local rank of each peer that the rings reach."""
        return self.rings.local_peers if self.rings else {}

    def by_mpi(self) -> "MessageContext":
        """Return this one without its rings, so that the MPI library carries all messages."""
        self.rings = None
        return self

    def bind_scratch(self, engine: HostEngine, nbytes: int) -> None:
        """Give an engine the scratch that all engines of its kind share here, since only one of them runs at a time.

        Scratch of less than ``nbytes`` is replaced by one at least twice as long, for engines keep what they were given.
        """
        kind = type(engine)
        before = self._scratch[kind].nbytes if kind in self._scratch else 0
        if before < nbytes:
            self._scratch[kind] = engine.fresh(max(nbytes, 2 * before))
        engine.bind_scratch(self._scratch[kind])

    def call(self, entry: int, engine: HostEngine, source: int, target: int, counts: int) -> int:
        """Call an engine, with more scratch where its counts need it.

        Args:
            entry: Entry of compiled code, such as `RUN`.
            engine: Engine that nobody else uses.
            source: Address of what is sent.
            target: Address of what is received.
            counts: Address of the call's counts, or `AS_BEFORE`.

        Returns:
            A status of `hpcoll.runtime.program.fields`.
        """
        status: int = call_compiled(entry, engine.address, source, target, counts)
        while status == NO_ROOM:
            if needed := engine.make_room():
                self.bind_scratch(engine, needed)
            status = call_compiled(entry, engine.address, source, target, counts)
        return status


class ContextPool:
    """A pool of message contexts for the calls of one communicator: `Resources` on host memory, others on GPU memory."""

    def begin(self) -> MessageContext:
        """Return the message context of a blocking call that begins; collective."""
        raise NotImplementedError

    def end(self) -> None:
        """Take it back when the call has ended; not where it failed."""

    def in_flight(self, turn: int) -> MessageContext:
        """Return the message context of a non-blocking call, by the turn that is its; collective."""
        raise NotImplementedError

    def message_context(self) -> MessageContext:
        """Return a message context for a persistent request, the same on all ranks; collective."""
        raise NotImplementedError

    def give_back(self, message_context: MessageContext) -> None:
        """Take the message context of a persistent request that is gone on this rank."""
        raise NotImplementedError


Build: TypeAlias = "Callable[[Call, MessageContext], HostEngine]"


class Plan:
    """The engines of calls of one kind; with ``algorithm`` native the MPI library runs these.

    An engine serves all counts for which its program holds (`hpcoll.base.sizes`), so that few serve all.

    Attributes:
        title: Name of such calls in texts, with a gap for the number of elements.
        algorithm: Catalogue name, or ``native``.
        account: Line of the ledger.
        build: Builds an engine for a call on a message context.
        kept: The plan serves later calls too.
    """

    __slots__ = ("_engines", "account", "algorithm", "build", "kept", "title")

    def __init__(self, title: str, algorithm: str, account: Account, build: Build) -> None:
        self.title, self.algorithm, self.build = title, algorithm, build
        self.account = account
        # by index of the message context, the latest first
        self.kept, self._engines = (
            False,
            dict[int, list[HostEngine]](),
        )

    def named(self, elements: int) -> str:
        """Return the name of a call in texts."""
        return self.title.format(elements)

    def run(self, message_context: MessageContext, call: Call) -> tuple[HostEngine, int]:
        """Begin a blocking call, and return its engine with the status; the engine stays with the plan."""
        engines, counts = self._on(message_context), addressed(call.counts)
        for i, engine in enumerate(engines):
            status = self._begin(message_context, engine, call, counts.buffer_info()[0])
            if status != UNFIT:
                engines.insert(0, engines.pop(i))
                return engine, status
        engine = self._built(message_context, call)
        if self.kept:
            self._keep(engines, engine)
        return engine, self._begin(message_context, engine, call, AS_BEFORE)

    @staticmethod
    def _begin(message_context: MessageContext, engine: HostEngine, call: Call, counts: int) -> int:
        if call.start is not None:
            call.start(engine)
        engine.bind_maps(call.maps)
        return message_context.call(RUN, engine, call.send, call.recv, counts)

    def take(self, message_context: MessageContext, call: Call) -> HostEngine:
        """Return an engine for a call's counts that nobody else uses until it is given back."""
        counts = addressed(call.counts)
        engine = self.take_made(message_context, counts.buffer_info()[0], call.maps)
        if engine is None:
            engine = self._built(message_context, call)
            engine.bind_maps(call.maps)
            engine.take()
        return engine

    def take_made(self, message_context: MessageContext, counts: int, maps: Maps) -> HostEngine | None:
        """Return an engine as `take` does, for counts at an address; None where none has been built yet."""
        for engine in self._on(message_context):
            if message_context.call(RESIZE, engine, counts, 0, 0) == DONE:
                self.claim(message_context, engine)
                engine.bind_maps(maps)
                return engine
        return None

    def claim(self, message_context: MessageContext, engine: HostEngine) -> None:
        """Take an engine that is known; nobody uses it."""
        engines = self._on(message_context)
        if engine in engines:
            engines.remove(engine)
        engine.take()

    def give(self, message_context: MessageContext, engine: HostEngine) -> None:
        """Give an engine back."""
        engine.take(False)
        self._keep(self._on(message_context), engine)

    def engines(self) -> list[HostEngine]:
        """Return the engines that nobody has taken."""
        return [engine for engines in self._engines.values() for engine in engines]

    def _on(self, message_context: MessageContext) -> list[HostEngine]:
        return self._engines.setdefault(message_context.index, [])

    def _built(self, message_context: MessageContext, call: Call) -> HostEngine:
        engine = self.build(call, message_context)
        message_context.bind_scratch(engine, engine.scratch_nbytes)
        return engine

    @staticmethod
    def _keep(engines: list[HostEngine], engine: HostEngine) -> None:
        del engines[MOST_ENGINES - 1 :]
        engines.insert(0, engine)


class Prepared(NamedTuple):
    """A call that has been described and planned.

    Attributes:
        call: The call; None where only the MPI library understands it.
        plan: Plan by which it runs.
        arguments: Arguments for the MPI library's own method: the caller's, or host mirrors of GPU arrays.
        describe: Describes the call anew, with the streams and the data of then.
        context_pool: Pool of the message contexts on which it travels.
        after_native: Work that remains when the MPI library has served it, or None.
        on_host: The call on the host copies of its GPU arrays, without what brings these home; None for other calls.
        described: The call on its GPU arrays, without the launches before and after it; None for other calls.
    """

    call: Call | None
    plan: Plan
    arguments: tuple[Any, ...]
    describe: Callable[[], Call | None]
    context_pool: ContextPool
    after_native: Callable[[], None] | None = None
    on_host: Call | None = None
    described: Call | None = None


def addressed(counts: tuple[int, ...]) -> array:
    """Return counts as compiled code reads them, at an address even where there are none."""
    return array("q", counts or (0,))
