"""Plans: what runs one shape of call, and the message contexts on which it travels."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hpcoll.runtime.engine.host_engine import HostEngine
from hpcoll.runtime.transports.rings import Rings

MAX_WINDOW = 128  # of a window, hence tags of a message context


class MessageContext:
    """What one collective at a time travels on; others may travel on other message contexts meanwhile.

    Attributes:
        index: Number, equal on all ranks.
        rings: For local peers, or None.
        tag: First of `MAX_WINDOW` tags for the others.
        issued: Operations that were started on it.
        ended: int64: operations that have ended.
    """

    def __init__(self, index: int, rings: Rings | None) -> None:
        self.index, self.rings, self.tag = index, rings, index * MAX_WINDOW
        self.issued, self.ended = 0, np.zeros(1, np.int64)
        self._scratch: dict[type, Any] = {}  # by kind of engine

    @property
    def local_peers(self) -> Mapping[int, int]:
        """Local rank of each peer that the rings reach."""
        return self.rings.local_peers if self.rings else {}

    def bind_scratch(self, engine: HostEngine) -> None:
        """Let an engine use the scratch of this message context's engines: only one of them runs at a time.

        Where that is too short it is replaced by one twice as long, for engines keep what they were given.
        """
        kind = type(engine)
        before = self._scratch[kind].nbytes if kind in self._scratch else 0
        if before < engine.scratch_nbytes:
            self._scratch[kind] = engine.fresh(max(engine.scratch_nbytes, 2 * before))
        engine.bind_scratch(self._scratch[kind])


class Plan:
    """How one shape of call runs: by engines, one per message context at a time; or, with ``algorithm`` native, by the MPI library.

    Attributes:
        title: For texts.
        algorithm: A catalogue name, or ``native``.
        sums: Line of the ledger: calls, nanoseconds in them.
        build: Makes an engine for a message context.
        short: A start in flight may run it to its end at once.
        kept: It serves later calls too.
    """

    __slots__ = ("_engines", "algorithm", "build", "kept", "short", "sums", "title")

    def __init__(
        self, title: str, algorithm: str, account: np.ndarray, build: Callable[[MessageContext], HostEngine], *, short: bool
    ) -> None:
        self.title, self.algorithm, self.build, self.short = title, algorithm, build, short
        self.sums = memoryview(account)  # type: ignore[arg-type]  # the same numbers, at a third of the price
        self.kept, self._engines = False, dict[int, list[HostEngine]]()

    def take(self, message_context: MessageContext) -> HostEngine:
        """An engine that nobody else uses until it is given back."""
        engines = self._engines.get(message_context.index)
        if engines:
            return engines.pop()
        engine = self.build(message_context)
        message_context.bind_scratch(engine)
        return engine

    def give(self, message_context: MessageContext, engine: HostEngine) -> None:
        """Give an engine back."""
        self._engines.setdefault(message_context.index, []).append(engine)
