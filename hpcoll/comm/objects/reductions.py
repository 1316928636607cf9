"""Reductions of objects: the operator is applied in mpi4py's order, which shows where it neither commutes nor associates.

Ranks gather all objects. Each combines them by itself, where all are known to get the same (`hpcoll.comm.objects.operators`); else rank 0
does, and its result goes to all. Where some are long and ranks are many, objects go up a tree of ranks, and
the result down again. So no rank has more than a few objects, and an error anywhere gets to all that wait for it.
"""

from collections.abc import Callable, Sequence
from gc import get_referents
from pickle import loads
from typing import Any

import mpi4py
import numpy as np
from mpi4py import MPI

from hpcoll.comm.arguments.cells import GATHERED_RANKS
from hpcoll.comm.objects.cells import Incoming, Outgoing, loaded, message_of, pickled, refusal, remote_error
from hpcoll.comm.objects.exchange import DEFAULT, CellExchange
from hpcoll.comm.objects.operators import Op
from hpcoll.comm.objects.parts import NOTHING, place_of
from hpcoll.runtime.program.fields import CELL_HEAD_NBYTES, UNLIKE

_IN_TREES = bool(getattr(mpi4py.rc, "fast_reduce", True))  # which mpi4py reads once, too


def fold(objects: Sequence[Any], op: Op) -> Any:
    """Combine objects as mpi4py's `reduce` does: up a binomial tree to rank 0."""
    if len(objects) == 2:
        return op(objects[0], objects[1])
    return _combined(lambda rank: objects[rank], op, 0, len(objects))


def scanned(objects: Sequence[Any], op: Op, end: int) -> Any:
    """Combine the objects of the ranks before ``end`` as mpi4py's `scan` does; None where there is none."""
    return _combined(lambda rank: objects[rank], op, 0, end) if end else None


def _combined(
    get: Callable[[int], Any], op: Op, first: int, end: int, kept: dict[tuple[int, int], bytes] | None = None
) -> Any:
    """Combine the objects of ranks from ``first`` to before ``end``: those of the largest power of two with those behind.

    Args:
        get: Returns a rank's object, each time another copy where what is combined is ``kept``.
        op: Operator.
        first: First rank.
        end: Rank behind the last.
        kept: Pickles of what has been combined, which is combined once.
    """
    if end - first == 1:
        return get(first)
    if kept is None or (first, end) not in kept:
        middle = first + (1 << (end - first - 1).bit_length() - 1) if _IN_TREES else end - 1
        both = op(_combined(get, op, first, middle, kept), _combined(get, op, middle, end, kept))
        if kept is None:
            return both
        kept[first, end] = pickled(both)
    return loaded(kept[first, end], ())


def combined(exchange: CellExchange, status: int, limit_s: float | None, op: Op, *, wanted: bool) -> Any:
    """End a `reduce` or `allreduce` that the short way does not, and return its result where that is wanted.

    Arguments as of `CellExchange.finish`.
    """
    if status == UNLIKE and exchange.data is not None and get_referents(MPI.pickle) == DEFAULT:
        return exchange.share(lambda: fold([*map(loads, exchange.views)], op), limit_s)
    mine, incoming, special = exchange.settle(status, limit_s)
    unlike = exchange.unlike
    refused = mine[0].error is not None or any(message.refused for message in incoming)
    if special and not refused and _IN_TREES and exchange.context.nranks > GATHERED_RANKS:
        return _Tree(exchange, limit_s, op, incoming).combine(mine[0])
    exchange.receive(mine, incoming, limit_s, special=special, ends=not unlike)
    if unlike:
        return exchange.share(lambda: fold([message.load() for message in incoming], op), limit_s)
    return fold([message.load() for message in incoming], op) if wanted else None


def scan(exchange: CellExchange, status: int, limit_s: float | None, op: Op, *, itself: bool) -> Any:
    """End a `scan`, or an `exscan`, which does not count this rank ``itself``; arguments as of `CellExchange.finish`."""
    rank = exchange.context.rank
    nranks = exchange.context.nranks
    if not status:
        return scanned(exchange.taken(), op, rank + itself)
    if status == UNLIKE and exchange.data is not None and get_referents(MPI.pickle) == DEFAULT:
        get: Callable[[int], Any] = lambda rank: loads(exchange.views[rank])  # noqa: E731
    else:
        mine, incoming, special = exchange.settle(status, limit_s)
        unlike = exchange.unlike
        exchange.receive(mine, incoming, limit_s, special=special, ends=not unlike)
        if not unlike:
            return scanned([message.load() for message in incoming], op, rank + itself)
        get = lambda rank: incoming[rank].load()  # noqa: E731

    def results() -> list[bytes | None]:
        """Return the pickles of all ranks' results, which have the same objects in what they share."""
        kept = dict[tuple[int, int], bytes]()
        ends = range(itself, nranks + itself)
        return [pickled(_combined(get, op, 0, end, kept)) if end else None for end in ends]

    result = exchange.share(results, limit_s)[rank]
    return None if result is None else loaded(result, ())


class _Tree:
    """A binomial tree of ranks, up which objects go in parts of a call.

    Args:
        exchange: CellExchange of the call.
        limit_s: Seconds that each part may take, or None.
        op: Operator.
        incoming: Objects of all ranks, of which the cells have come.
    """

    def __init__(
        self, exchange: CellExchange, limit_s: float | None, op: Op, incoming: Sequence[Incoming]
    ) -> None:
        self._exchange = exchange
        self._op = op
        self._incoming = incoming
        self._rank = exchange.context.rank
        self._nranks = exchange.context.nranks
        self._parts = exchange.parts(limit_s)
        self._error: Exception | None = None
        self._found: Any = None

    def combine(self, mine: Outgoing) -> Any:
        """Combine this rank's object with those of all others."""
        self._try(lambda: mine.copied())
        step = 1
        while step < self._nranks:
            if self._rank & step:
                self._send(self._rank - step, mine if step == 1 else self._message(), headed=step > 1)
                break
            if self._rank + step < self._nranks:
                came = self._receive(self._rank + step, self._incoming[self._rank + 1] if step == 1 else None)
                self._try(lambda came=came: self._op(self._found, self._loaded(came)))  # type: ignore[misc]
            step *= 2
        made = self._shared() if self._exchange.method == "allreduce" else self._at_root(self._exchange.root)
        self._parts.end()
        if self._error is not None:
            raise self._error
        return made

    def _try(self, make: Callable[[], Any]) -> None:
        """Make the object at hand, unless there is none; the first error stays."""
        if self._error is None:
            try:
                self._found = make()
            except Exception as error:
                self._error = error
                self._found = None

    def _loaded(self, message: Incoming) -> Any:
        if message.refused:
            raise remote_error(self._rank, self._exchange.method, message.source, message.refused)
        return message.load()

    def _message(self) -> Outgoing:
        room = self._exchange.room
        return message_of(self._found, room) if self._error is None else refusal(self._error, room)

    def _shared(self) -> Any:
        """Return rank 0's result on all ranks."""
        message = self._message() if self._rank == 0 else None
        cell = self._cell(message)
        self._parts.run_part("bcast", 0, [place_of(cell)], [place_of(cell)], (cell,))
        came = _incoming(cell, 0)
        self._parts.exchange("bcast", 0, [message] if message is not None else [], [came])
        if message is None:
            self._try(lambda: self._loaded(came))
        elif message.error is None:
            self._try(message.copied)
        else:
            self._error = self._error or message.error
        return self._found

    def _at_root(self, root: int) -> Any:
        """Return rank 0's result at the root."""
        if root != 0 and self._rank == 0:
            self._send(root, self._message(), headed=True)
        if root != 0 and self._rank == root:
            came = self._receive(0, None)
            self._try(lambda: self._loaded(came))
        return self._found if self._rank == root else None

    def _send(self, peer: int, message: Outgoing, *, headed: bool) -> None:
        if headed:
            self._pair(peer, self._cell(message), sends=True)
        for block in message.blocks:
            self._pair(peer, block, sends=True)
        self._error = self._error or message.error

    def _receive(self, peer: int, message: Incoming | None) -> Incoming:
        if message is None:
            cell = self._cell()
            self._pair(peer, cell, sends=False)
            message = _incoming(cell, peer)
        while (block := message.next_block()) is not None:
            self._pair(peer, block, sends=False)
        return message

    def _cell(self, message: Outgoing | None = None) -> np.ndarray:
        """Return a cell of a message, or one for a message."""
        cell = np.zeros(self._exchange.room + CELL_HEAD_NBYTES, np.uint8)
        if message is not None:
            payload = np.frombuffer(message.payload, np.uint8)
            cell[:8].view(np.int64)[0] = message.length
            cell[CELL_HEAD_NBYTES : CELL_HEAD_NBYTES + len(payload)] = payload
        return cell

    def _pair(self, peer: int, block: Any, *, sends: bool) -> None:
        """Send a block to a rank, or receive one of it."""
        nothing = [NOTHING] * self._nranks
        places = nothing.copy()
        places[peer] = place_of(block)
        self._parts.run_part(
            "alltoall", 0, places if sends else nothing, nothing if sends else places, (block,)
        )


def _incoming(cell: np.ndarray, source: int) -> Incoming:
    return Incoming(memoryview(cell)[CELL_HEAD_NBYTES:], int(cell[:8].view(np.int64)[0]), source)  # type: ignore[arg-type]
