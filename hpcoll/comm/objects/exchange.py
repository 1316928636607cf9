"""Exchanges of cells: the cells of calls of one method and root, and the engine that moves them. One call at a time has an exchange.

The short way, of objects whose pickles fit their cells, is one crossing into compiled code, which pickles, sends and loads
(`hpcoll.runtime.engine.compiled.object_calls`). All else is `CellExchange.finish`.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from gc import get_referents
from operator import and_
from pickle import dumps, loads
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.comm.arguments.cells import call_of_cells
from hpcoll.comm.context.context import Context
from hpcoll.comm.objects import cells, floats
from hpcoll.comm.objects.cells import Incoming, Outgoing
from hpcoll.comm.objects.operators import OPCODES, TYPES, Op, code_of, operator_of
from hpcoll.comm.objects.parts import CallParts
from hpcoll.comm.objects.serializer import current
from hpcoll.comm.plans.signature import OPERATOR_AT, OPERATOR_END
from hpcoll.comm.requests.call_hooks import HOOKS, BeginningCall
from hpcoll.runtime.engine.entry import call_compiled
from hpcoll.runtime.engine.object_layout import BYTES_LENGTH_AT
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program import object_fields as o
from hpcoll.runtime.program.fields import (
    AS_BEFORE,
    BUSY,
    CELL_FLAG,
    CELL_HEAD_NBYTES,
    DONE,
    ON_OBJECT,
    RUN,
    SPECIAL,
    UNLIKE,
)
from hpcoll.selection.config import EVERY_CALL

_PROTOCOL = current().protocol
_PICKLE = MPI.pickle
# what it was given
DEFAULT = get_referents(MPI.pickle) if _PROTOCOL is not None and BYTES_LENGTH_AT is not None else None
_WHOLE = 1 << 30  # bytes of a segment
_ALGORITHMS = {"bcast": "binomial"}  # for many ranks; whose messages are single blocks
_FEW = 8
# ranks from which two results have a combination in common
_SHARED_FROM = {"allreduce": 2, "scan": 3, "exscan": 4}


class CellExchange:
    """The cells of calls of one method and root, and their engine.

    Args:
        context: Context of the communicator.
        pool: List of the exchanges of this kind that no call has.
        method: Lower-case method.
        root: Its root, or 0.
        op: Operator of the call at hand, where it has one.
        first: Exchange with whose latest call this one's go on: rank 0's object goes to all.

    Attributes:
        op: Operator of the latest call, where that is known by itself.
        engine: Address of the engine.
        target: Address of the cells that are received.
        made: What `run` has loaded.
        data: Pickle in the cell that is sent, of the default serializer; None: another, or a special cell.
        views: Bytes of each received cell, behind its head.
        room: Bytes that there are.
    """

    __slots__ = (
        "_arguments",
        "_at",
        "_code",
        "_engine",
        "_fields",
        "_in_place",
        "_kinds",
        "_messages",
        "_plan",
        "_sends",
        "_sent",
        "_sent_kinds",
        "_sent_words",
        "_shared",
        "_signature",
        "_slots",
        "_started",
        "_state",
        "_words",
        "buffers",
        "collective",
        "context",
        "data",
        "engine",
        "keep",
        "made",
        "method",
        "op",
        "pool",
        "room",
        "root",
        "source",
        "target",
        "views",
    )

    def __init__(
        self,
        context: Context,
        pool: list[Any],
        method: str,
        root: int = 0,
        op: Op | None = None,
        first: "CellExchange | None" = None,
    ) -> None:
        resources = context.resources
        if first is None:
            number = 0 if op is None else operator_of(op).number
            context.check(BeginningCall(method, (root, number), root=root, limit_s=context.limit_s))
        self.context = context
        self.method = method
        self.root = root
        self.pool = [] if resources.config.check == EVERY_CALL else pool
        call = call_of_cells(method if first is None else "bcast", root, resources.rank, resources.nranks)
        assert call.cells is not None
        self.collective = call.collective
        nbytes, (nsent, nreceived) = call.count, call.cells
        self._sent, received = (np.zeros(max(1, n) * nbytes, np.uint8) for n in (nsent, nreceived))
        sent_words, words = (cells.data.cast("q") for cells in (self._sent, received))
        self._sent_words = sent_words[:: nbytes // 8]
        self._words = words[:: nbytes // 8]
        self._sent_kinds = sent_words[1 :: nbytes // 8]
        self._kinds = words[1 :: nbytes // 8]
        algorithm = _ALGORITHMS.get(call.collective, "direct") if resources.nranks > _FEW else "direct"
        with context.failure_scope(method):
            self._plan = context.planner.plan(
                call, method if first is None else "part", (), algorithm, _WHOLE
            )
            self._engine = self._plan.take(resources.begin(), call)
            self._plan.give(resources.begin(), self._engine)
        self.engine = self._engine.address
        self.source = self._sent.ctypes.data
        self.target = received.ctypes.data
        self.room = nbytes - CELL_HEAD_NBYTES
        self.views, self._slots = (
            [memoryview(array)[at + CELL_HEAD_NBYTES : at + nbytes] for at in range(0, n * nbytes, nbytes)]  # type: ignore[arg-type]
            for array, n in ((received, nreceived), (self._sent, max(1, nsent)))
        )
        self.buffers, self.made, self.data = list[Any](), list[Any](), None  # type: list[Any], list[Any], Any
        self.keep = partial(cells.keeps, buffers=self.buffers)
        # of a call under way that takes the long way; bytes: a pickle that fits its cell
        self._messages = list[bytes | Outgoing]()
        self._sends = call.collective != "bcast" or resources.rank == root
        self._in_place = self._sends and call.collective == "bcast"
        self._fields, self._arguments = self._laid_out()
        self._started, self._state = memoryview(self._fields), memoryview(self._engine.state)  # type: ignore[arg-type]
        self._at = self._fields.ctypes.data
        self._signature = (
            self._state[f.SIGNATURE] & (1 << OPERATOR_AT) - 1
            | self._state[f.SIGNATURE] >> OPERATOR_END << OPERATOR_END
        )
        self._shared, self._code, self.op = None, None, None  # type: Any, Any, Any
        if first is not None:
            self._state[f.FORM] |= f.PART
        elif op is not None:
            self.use(op)

    def _laid_out(self) -> tuple[np.ndarray, tuple[Any, ...]]:
        """Return the fields for compiled code (`hpcoll.runtime.program.object_fields`), and the objects that only they refer to."""
        given = [0, 0, 0] if DEFAULT is None else [id(default) for default in DEFAULT[:3]]
        views = np.array([*map(id, self.views)], np.int64)
        keywords = ("buffer_callback",) if o.BY_NAMES else {"buffer_callback": self.keep}
        fields = [
            self.engine,
            self.target,
            self._sends,
            self._in_place,
            self.room,
            id(_PICKLE),
            *given,
            id(self.buffers),
            id(dumps),
            id(loads),
            id(keywords),
            id(self.made),
            BYTES_LENGTH_AT or 0,
            len(self.views),
            views.ctypes.data,
            0,
            0,
            id(_PROTOCOL),
            id(self.keep),
            0,
            0,
            0,
            0,
            TYPES.ctypes.data,
            TYPES.ctypes.data + TYPES.nbytes,
            id(np.ndarray),
            OPCODES.ctypes.data,
        ]
        return np.array(fields, np.int64), (views, keywords, _PROTOCOL)

    def use(self, op: Op) -> None:
        """Let the next calls be of an operator. One that may refer to anything is not kept."""
        code = code_of(op)
        if code is not None and code is self._code:
            return
        number, kinds = operator_of(op)
        asks = self.context.nranks >= _SHARED_FROM.get(self.method, math.inf)
        self._started[o.SIGNATURE] = self._signature + (number << OPERATOR_AT)
        self._started[o.KINDS] = kinds | f.ASKS if asks else 0
        self._code = code
        self.op = op if kinds and code is None else None

    @property
    def unlike(self) -> bool:
        """Say whether ranks that combined the objects which have come, each by itself, might get different ones."""
        kinds = self._started[o.KINDS]
        return bool(kinds) and not reduce(and_, self._kinds, kinds & f.ANY_KIND)

    def share(self, make: Callable[[], Any], limit_s: float | None) -> Any:
        """Return what rank 0 makes on all ranks, as a part of the call whose cells have come.

        Raises:
            Exception: What ``make`` raises on rank 0; `ArgumentError` elsewhere.
        """
        shared = self._shared
        obj = None
        context = self.context
        if shared is None:
            shared = self._shared = CellExchange(context, [], self.method, first=self)
        shared._state[f.ACCOUNT] = self._state[f.ACCOUNT]
        shared._state[f.SIGNATURE : f.CHECKED_TAG + 1] = self._state[f.SIGNATURE : f.CHECKED_TAG + 1]
        try:
            obj = make() if context.rank == 0 else None
        except Exception as error:
            shared.data = None
            status = shared._begin(shared._put(cells.refusal(error, shared.room)))
        except BaseException as error:
            context.interrupted(self._plan.named(0), error)
            raise
        else:
            status = shared.run(obj)
        made = shared.made.pop() if not status else shared.finish(status, limit_s)[0]
        self.parts(limit_s).end()
        return made

    def run(self, obj: Any) -> int:
        """Send an object, and receive others; return `DONE` where these are in ``made`` now, else a status for `finish`."""
        self.data = None
        if MPI.pickle is not _PICKLE:
            return self._run_slowly(obj)
        if type(obj) is list and len(obj) >= floats.LEAST and get_referents(_PICKLE) == DEFAULT:
            self.data = floats.pickled(obj)
            if self.data is not None:
                # and the word behind its length has all bits: it is of all kinds
                fits = len(self.data) <= self.room
                self._started[o.KIND] = f.ANY_KIND
                return self._begin(id(self.data) + BYTES_LENGTH_AT if fits else self._announce(self.data))  # type: ignore[operator]
        try:
            status: int = call_compiled(ON_OBJECT, self._at, id(obj), 0, 0)
        except Exception as error:
            if self._started[o.SENT]:
                raise
            self.buffers.clear()
            return self._begin(self._put(cells.refusal(error, self.room)))
        if status == DONE:
            return status
        self.data = self.made.pop() if self.made else None
        if status != o.LONG_WAY:
            return status
        return self._run_slowly(obj) if self.data is None else self._begin(self._announce(self.data))

    def _run_slowly(self, obj: Any) -> int:
        self._started[o.KIND] = 0
        return self._begin(self._put(cells.message_of(obj, self.room)) if self._sends else self.target)

    def _begin(self, at: int) -> int:
        """Send a cell as `run` does."""
        if self._started[o.SIGNATURE]:
            self._state[f.SIGNATURE], self._state[f.KINDS] = (
                self._started[o.SIGNATURE],
                self._started[o.KINDS],
            )
        status: int = call_compiled(RUN, self.engine, at, at if self._in_place else self.target, AS_BEFORE)
        if status == DONE and self.data is not None:
            self.made += map(loads, [self.data] if self._in_place else self.views)
        elif status == DONE:
            self.made += self.finish(status, None)
        return status

    def taken(self) -> list[Any]:
        """Return the objects that `run` has made."""
        return _emptied(self.made)

    def _announce(self, data: bytes) -> int:
        """Say in a cell what is to come of a pickle and the buffers that were found with it."""
        self.data = None
        return self._put(cells.message(data, _emptied(self.buffers), self.room))

    def put_all(self, objects: Any) -> int:
        """Pickle an object for each rank, or as many None; return the address of their cells."""
        nranks = self.context.nranks
        room = self.room
        messages = self._messages
        messages.clear()
        try:
            given = [None] * nranks if objects is None else list(objects)
            if len(given) != nranks:
                raise ValueError(f"expecting {nranks} items, got {len(given)}")
            if get_referents(MPI.pickle) == DEFAULT:
                for obj in given:
                    data = dumps(obj, _PROTOCOL, buffer_callback=self.keep)
                    messages.append(
                        data
                        if not self.buffers and len(data) <= room
                        else cells.message(data, _emptied(self.buffers), room)
                    )
            else:
                for obj in given:
                    message = cells.message_of(obj, room)
                    if message.error is not None:
                        raise message.error
                    messages.append(message)
        except Exception as error:
            self.buffers.clear()
            messages[:] = [cells.refusal(error, room)] * nranks
        for number, sent in enumerate(messages):
            length, payload = (len(sent), sent) if isinstance(sent, bytes) else (sent.length, sent.payload)
            self._sent_words[number] = length
            self._slots[number][: len(payload)] = payload
        return self.source

    def _put(self, message: Outgoing) -> int:
        self._messages = [message]
        self._sent_words[0] = message.length
        self._sent_kinds[0] = self._started[o.KIND]
        self._slots[0][: len(message.payload)] = message.payload
        return self.source

    def finish(self, status: int, limit_s: float | None) -> list[Any]:
        """End a call that the short way does not; return the objects that have come.

        Args:
            status: Answer of the engine.
            limit_s: Seconds that the call may take, or None.
        """
        mine, incoming, special = self.settle(status, limit_s)
        self.receive(mine, incoming, limit_s, special=special)
        if self.collective == "bcast" and self.context.rank == self.root:
            return [mine[0].copied()]
        return [message.load() for message in incoming]

    def settle(self, status: int, limit_s: float | None) -> tuple[list[Outgoing], list[Incoming], bool]:
        """Wait until all cells have come; return the messages of this rank, what it receives, and whether that goes on in parts."""
        context = self.context
        if status == BUSY:
            context.run(status, (self.method, self.root, None, None, None), ())
        if status not in (DONE, SPECIAL, UNLIKE):
            # which has the memory that messages use
            context.go_on(self._plan, self._engine, status, limit_s, (self,))
            HOOKS.noted(context, False)
        sources = [self.root] if self.collective in ("bcast", "scatter") else range(len(self.views))
        words = self._words[: len(self.views)]
        incoming = [Incoming(*cell) for cell in zip(self.views, words, sources)]
        sent = self._messages or [self.data or b""]
        self._messages = []
        mine = [one if isinstance(one, Outgoing) else cells.message(one, (), self.room) for one in sent]
        special = any(word & CELL_FLAG for word in (*(message.length for message in mine), *words))
        return mine, incoming, special

    def receive(
        self,
        mine: Sequence[Outgoing],
        incoming: Sequence[Incoming],
        limit_s: float | None,
        *,
        special: bool,
        ends: bool = True,
    ) -> None:
        """Receive what follows the cells of a call, if any is ``special``; raise the first error. The call ends with that, or goes on."""
        refused = any(outgoing.error is not None for outgoing in mine) or any(
            came.refused for came in incoming
        )
        if special:
            parts = self.parts(limit_s)
            if self.collective != "allgather" or not refused:  # else all ranks know
                parts.exchange(self.collective, self.root, mine, incoming)
            if ends or refused:
                parts.end()
        for message in mine:
            if message.error is not None:
                raise message.error
        for came in incoming:
            if came.refused:
                raise cells.remote_error(self.context.rank, self.method, came.source, came.refused)

    def parts(self, limit_s: float | None) -> CallParts:
        """Return the parts of the call whose cells have come."""
        return CallParts(self.context, self._engine, self.method, limit_s)


def _emptied(given: list[Any]) -> list[Any]:
    """Return what a list has, and empty it."""
    buffers = given.copy()
    given.clear()
    return buffers
