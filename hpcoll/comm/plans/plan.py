"""Plans: what runs one kind of call, and the message contexts on which it travels."""

from array import array
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from hpcoll.comm.arguments.call import Call
from hpcoll.comm.plans.ledger import Account
from hpcoll.runtime.engine.entry import RESIZE, call_compiled
from hpcoll.runtime.engine.host_engine import HostEngine
from hpcoll.runtime.program.fields import DONE, NO_ROOM
from hpcoll.runtime.telemetry.call_log import CallLog
from hpcoll.runtime.transports.mpi import Tags
from hpcoll.runtime.transports.rings import Rings

MAX_WINDOW = 128  # of a window, hence tags of a message context
MOST_ENGINES = 16  # that a plan keeps
_NO_TAGS = Tags()


class MessageContext:
    """What one collective at a time travels on; others may travel on other message contexts meanwhile.

    Attributes:
        index: Number, equal on all ranks.
        rings: For local peers, or None.
        comm, tags: Handle of the communicator for messages to the others, and their tags.
        log: Of its calls.
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
        """Whether nothing is in flight on it."""
        return bool(self.tickets[0] == self.tickets[1])

    @property
    def local_peers(self) -> Mapping[int, int]:
        """Local rank of each peer that the rings reach."""
        return self.rings.local_peers if self.rings else {}

    def by_mpi(self) -> "MessageContext":
        """The same without rings: all messages are the MPI library's."""
        self.rings = None
        return self

    def bind_scratch(self, engine: HostEngine, nbytes: int) -> None:
        """Let an engine use the scratch of this message context's engines, ``nbytes`` or more: only one of them runs at a time.

        Where that is too short it is replaced by one twice as long, for engines keep what they were given.
        """
        kind = type(engine)
        before = self._scratch[kind].nbytes if kind in self._scratch else 0
        if before < nbytes:
            self._scratch[kind] = engine.fresh(max(nbytes, 2 * before))
        engine.bind_scratch(self._scratch[kind])


Build: TypeAlias = "Callable[[Call, MessageContext], HostEngine]"


class Plan:
    """How calls of one kind run: by engines; or, with ``algorithm`` native, by the MPI library.

    An engine serves all counts for which its program holds (`hpcoll.base.sizes`), so that few serve all.

    Attributes:
        title: For texts, with the number of elements left out: `named`.
        algorithm: A catalogue name, or ``native``.
        account: Line of the ledger.
        build: Makes an engine for a call, on a message context.
        kept: It serves later calls too.
    """

    __slots__ = ("_engines", "account", "algorithm", "build", "kept", "title")

    def __init__(self, title: str, algorithm: str, account: Account, build: Build) -> None:
        self.title, self.algorithm, self.build = title, algorithm, build
        self.account = account
        self.kept, self._engines = False, dict[int, list[HostEngine]]()

    def named(self, elements: int) -> str:
        """For texts: what a call was."""
        return self.title.format(elements)

    def take(self, message_context: MessageContext, call: Call) -> HostEngine:
        """An engine for a call's counts that nobody else uses until it is given back."""
        counts = addressed(call.counts)
        engine = self.take_made(message_context, counts.buffer_info()[0])
        if engine is None:
            engine = self.build(call, message_context)
            message_context.bind_scratch(engine, engine.scratch_nbytes)
            engine.take()
        return engine

    def take_made(self, message_context: MessageContext, counts: int) -> HostEngine | None:
        """As `take`, for counts at an address; None where there is none yet."""
        engines = self._engines.setdefault(message_context.index, [])
        for engine in engines:
            status = call_compiled(RESIZE, engine.address, counts, 0, 0)
            if status == NO_ROOM:
                message_context.bind_scratch(engine, engine.make_room())
                status = call_compiled(RESIZE, engine.address, counts, 0, 0)
            if status == DONE:
                engines.remove(engine)
                engine.take()
                return engine
        return None

    def claim(self, message_context: MessageContext, engine: HostEngine) -> None:
        """Take an engine that is known; nobody uses it."""
        engines = self._engines.get(message_context.index, [])
        if engine in engines:
            engines.remove(engine)
        engine.take()

    def give(self, message_context: MessageContext, engine: HostEngine) -> None:
        """Give an engine back."""
        engines = self._engines.setdefault(message_context.index, [])
        engine.take(False)
        del engines[MOST_ENGINES - 1 :]
        engines.insert(0, engine)


def addressed(counts: tuple[int, ...]) -> array:
    """Counts as compiled code takes them."""
    return array("q", counts)
