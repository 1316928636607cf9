"""Lanes: the cells of calls of one method and root, and the engine that moves them. One call at a time has a lane.

The short way, of objects whose pickles fit their cells, is written out: `Lane.put`, one crossing into compiled code, and a load for each
cell. All else is `Lane.finish`.
"""

from collections.abc import Sequence
from functools import partial
from gc import get_referents
from pickle import dumps
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.comm.arguments.cells import call_of_cells
from hpcoll.comm.context.context import Context
from hpcoll.comm.objects import cells, floats
from hpcoll.comm.objects.cells import Incoming, Outgoing
from hpcoll.comm.objects.parts import CallParts
from hpcoll.comm.objects.serializer import current
from hpcoll.comm.requests.call_hooks import BeginningCall
from hpcoll.runtime.engine.object_layout import BYTES_LENGTH_AT
from hpcoll.runtime.program.fields import BUSY, CELL_FLAG, CELL_HEAD_NBYTES, DONE, SPECIAL
from hpcoll.selection.config import EVERY_CALL

_PROTOCOL = current().protocol
DEFAULT = get_referents(MPI.pickle) if _PROTOCOL is not None and BYTES_LENGTH_AT is not None else None  # what it was given
_WHOLE = 1 << 30  # bytes of a segment
_ALGORITHMS = {"bcast": "binomial"}  # for many ranks; whose messages are single blocks
_FEW = 8


class Lane:
    """A lane.

    Args:
        context: Context of the communicator.
        pool: Where lanes of this kind wait that nobody has.
        method: Lower-case method.
        root: Its root, or 0.

    Attributes:
        engine: Address of the engine.
        target: Address of the cells that are received.
        data: Pickle in the cell that was put last, of the default serializer; None: another, or a special cell.
        views: Bytes of each received cell, behind its head.
        room: Bytes that there are.
    """

    __slots__ = (
        "_engine", "_messages", "_plan", "_sent", "_sent_words", "_slots", "_words", "buffers", "collective", "context", "data", "engine",
        "keep", "method", "pool", "room", "root", "source", "target", "views",
    )  # fmt: skip

    def __init__(self, context: Context, pool: list[Any], method: str, root: int = 0) -> None:
        on, every = context.resources, context.resources.config.check == EVERY_CALL
        context.check(BeginningCall(method, (root,), root=root, limit_s=context.limit_s))
        self.context, self.method, self.root, self.pool = context, method, root, [] if every else pool
        call = call_of_cells(method, root, on.rank, on.nranks)
        assert call.cells is not None
        self.collective = call.collective
        nbytes, (nsent, nreceived) = call.count, call.cells
        self._sent, received = (np.zeros(max(1, n) * nbytes, np.uint8) for n in (nsent, nreceived))
        self._sent_words, self._words = (memoryview(one).cast("q")[:: nbytes // 8] for one in (self._sent, received))  # type: ignore[arg-type]
        algorithm = _ALGORITHMS.get(call.collective, "direct") if on.nranks > _FEW else "direct"
        with context.failure_scope(method):
            self._plan = context.planner.plan(call, method, (), algorithm, _WHOLE)
            self._engine = self._plan.take(on.begin(), call)
            self._plan.give(on.begin(), self._engine)
        self.engine, self.source, self.target = self._engine.address, self._sent.ctypes.data, received.ctypes.data
        self.room = nbytes - CELL_HEAD_NBYTES
        self.views, self._slots = (
            [memoryview(one)[at + CELL_HEAD_NBYTES : at + nbytes] for at in range(0, n * nbytes, nbytes)]  # type: ignore[arg-type]
            for one, n in ((received, nreceived), (self._sent, max(1, nsent)))
        )
        self.buffers = list[Any]()
        self.keep = partial(cells.keeps, found=self.buffers)
        self.data: Any = None
        self._messages = list[Outgoing]()  # of a call under way that takes the long way

    def put(self, obj: Any) -> int:
        """Pickle an object, and return the address of its cell."""
        if get_referents(MPI.pickle) == DEFAULT:
            try:
                data = floats.pickled(obj) if type(obj) is list and len(obj) >= floats.LEAST else None
                self.data = data = data or dumps(obj, _PROTOCOL, buffer_callback=self.keep)
            except Exception as error:
                self.data = None
                return self._put(cells.refusal(error, self.room))
            if len(data) <= self.room and not self.buffers:
                return id(data) + BYTES_LENGTH_AT  # type: ignore[operator]
            self.data, buffers = None, self.buffers.copy()
            self.buffers.clear()
            return self._put(cells.message(data, buffers, self.room))
        self.data = None
        return self._put(cells.message_of(obj, self.room))

    def put_all(self, objects: Any) -> int:
        """Pickle an object for each rank, or as many None; return the address of their cells."""
        messages, nranks = list[Outgoing](), self.context.nranks
        try:
            found = [None] * nranks if objects is None else list(objects)
            if len(found) != nranks:
                raise ValueError(f"expecting {nranks} items, got {len(found)}")
            messages += (cells.message_of(one, self.room) for one in found)
            for message in messages:
                if message.error is not None:
                    raise message.error
        except Exception as error:
            messages = [cells.refusal(error, self.room)] * nranks
        for number, message in enumerate(messages):
            self._sent_words[number] = message.length
            self._slots[number][: len(message.payload)] = message.payload
        self._messages = messages
        return self.source

    def _put(self, message: Outgoing) -> int:
        self._messages, self._sent_words[0] = [message], message.length
        self._slots[0][: len(message.payload)] = message.payload
        return self.source

    def finish(self, status: int, limit_s: float | None) -> list[Any]:
        """End a call that the short way does not; return the objects that have come.

        Args:
            status: Answer of the engine.
            limit_s: Seconds that the call may take, or None.
        """
        mine, incoming, special = self.settle(status, limit_s)
        if special:
            parts = self.parts(limit_s)
            parts.exchange(self.collective, self.root, mine, incoming)
            parts.end()
        self.raise_first(mine, incoming)
        if self.collective == "bcast" and self.context.rank == self.root:
            return [mine[0].copied()]
        return [one.load() for one in incoming]

    def settle(self, status: int, limit_s: float | None) -> tuple[list[Outgoing], list[Incoming], bool]:
        """Wait until all cells have come; return the messages of this rank, what it receives, and whether that goes on in parts."""
        context = self.context
        if status == BUSY:
            context.run(status, (self.method, self.root, None, None), ())
        if status not in (DONE, SPECIAL):
            context.go_on(self._plan, self._engine, status, limit_s, (self.data, self._sent))
        sources = [self.root] if self.collective in ("bcast", "scatter") else range(len(self.views))
        incoming = [Incoming(view, self._words[i], source) for i, (view, source) in enumerate(zip(self.views, sources, strict=True))]
        mine, self._messages = self._messages or [cells.message(self.data or b"", (), self.room)], []
        special = any(one.length & CELL_FLAG for one in mine) or any(word & CELL_FLAG for word in self._words[: len(incoming)])
        return mine, incoming, special

    def parts(self, limit_s: float | None) -> CallParts:
        """Return the parts of the call whose cells have come."""
        return CallParts(self.context, self._engine, self.method, limit_s)

    def raise_first(self, mine: Sequence[Outgoing], incoming: Sequence[Incoming]) -> None:
        """Raise the first error of this rank or another, if there is one."""
        for message in mine:
            if message.error is not None:
                raise message.error
        for one in incoming:
            if one.refused:
                raise cells.remote_error(self.context.rank, self.method, one.source, one.refused)
