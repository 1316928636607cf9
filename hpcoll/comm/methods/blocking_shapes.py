"""The functions that run blocking collectives: one for all methods whose arguments are alike.

The call cache finds a call like an earlier one and runs it in one crossing into compiled code. Any other call is described
(`hpcoll.comm.arguments.methods`) and run by a plan.

CPython is quickest with arguments that may be positional. So the keywords may, and one before them, which nobody names, finds out that
they are not: what is given by position too much lands there. That is why each function lists the keywords, and tests one after the
other: ``**keywords`` in their place costs 24 ns a call, and one chained comparison with None 30 to 40, of 490.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from mpi4py import MPI

from hpcoll.comm.arguments.call import Time, limit_of, order_of
from hpcoll.comm.arguments.methods import METHODS, with_counts
from hpcoll.comm.arguments.reductions import every_count
from hpcoll.comm.context.attach import WithContext
from hpcoll.comm.methods.keywords import Name, Nbytes, Op, as_declared
from hpcoll.comm.status.regions import regions
from hpcoll.runtime.engine.entry import run_cached
from hpcoll.runtime.program.call_fields import MANY
from hpcoll.selection.config import RANK_ORDER

_Method = TypeVar("_Method", bound=Callable[..., None])
_Run = Callable[..., None]
_IN_PLACE = MPI.IN_PLACE


def collective(declared: _Method) -> _Method:
    """Return the blocking method of which a function has name, arguments and docstring."""
    name = declared.__name__
    made: _Method = as_declared(_SHAPES[METHODS[name].arguments](name), declared)
    return made


def _run_with(
    comm: WithContext,
    method: str,
    arguments: tuple[Any, ...],
    found_by: tuple[Any, Any, Any, int],
    extra: Any,
    algorithm: Name,
    segment: Nbytes,
    timeout: Time,
    tag: str | None,
    stream: Any = None,
    order: str | None = None,
) -> None:
    """Run a call that has keywords, or ``extra`` arguments by position."""
    if extra is not ...:
        raise TypeError(f"{method}() takes {len(arguments)} positional arguments; its keywords go by name")
    if tag is not None:
        with regions[tag]:
            return _run_with(
                comm, method, arguments, found_by, ..., algorithm, segment, timeout, None, stream, order
            )
    context = comm._context
    limit_s = None if timeout is None else limit_of(timeout, context.rank)
    order = None if order is None else order_of(order, context.rank)
    send, recv, op, root = found_by
    if method == "Reduce_scatter" and arguments[2] is None and not context.closed:
        with context.failure_scope(method):
            counts = every_count(arguments[0], arguments[1], context.rank, context.caller.allgather)
        arguments = *arguments[:2], counts, arguments[3]
        send, recv = with_counts(*arguments[:3])
    plain = algorithm is None and segment is None and order is None and root == 0
    key = method if plain else (method, root, algorithm, segment, order)
    status = run_cached(context.plain[method] if plain else context.tables[key], send, recv, op)
    if status:
        context.run(status, key, arguments, send, recv, stream=stream, limit_s=limit_s)


def _barrier(name: str) -> _Run:
    def _run(
        self: WithContext,
        extra: Any = ...,
        algorithm: Name = None,
        segment: Nbytes = None,
        timeout: Time = None,
        tag: str | None = None,
    ) -> None:
        if (
            extra is not ...
            or algorithm is not None
            or segment is not None
            or timeout is not None
            or tag is not None
        ):
            found_by = _IN_PLACE, self._context.token, None, 0
            return _run_with(self, name, (), found_by, extra, algorithm, segment, timeout, tag)
        context = self._calls
        status = run_cached(context.plain[name], _IN_PLACE, context.token, None)
        if status:
            context.run(status, name, (), _IN_PLACE, context.token)

    return _run


def _broadcast(name: str) -> _Run:
    def _run(
        self: WithContext,
        buf: Any,
        root: int = 0,
        extra: Any = ...,
        algorithm: Name = None,
        segment: Nbytes = None,
        timeout: Time = None,
        tag: str | None = None,
        stream: Any = None,
    ) -> None:
        if (
            extra is not ...
            or algorithm is not None
            or segment is not None
            or timeout is not None
            or tag is not None
        ):
            found_by = _IN_PLACE, buf, None, root
            return _run_with(
                self, name, (buf, root), found_by, extra, algorithm, segment, timeout, tag, stream
            )
        context = self._calls
        address = context.plain[name] if root == 0 else context.tables[name, root, None, None, None]
        status = run_cached(address, _IN_PLACE, buf, None)
        if status:
            context.run(status, (name, root, None, None, None), (buf, root), _IN_PLACE, buf, stream=stream)

    return _run


def _between_buffers(name: str) -> _Run:
    def _run(
        self: WithContext,
        sendbuf: Any,
        recvbuf: Any,
        extra: Any = ...,
        algorithm: Name = None,
        segment: Nbytes = None,
        timeout: Time = None,
        tag: str | None = None,
        stream: Any = None,
    ) -> None:
        if (
            extra is not ...
            or algorithm is not None
            or segment is not None
            or timeout is not None
            or tag is not None
        ):
            given = sendbuf, recvbuf
            return _run_with(
                self, name, given, (*given, None, 0), extra, algorithm, segment, timeout, tag, stream
            )
        context = self._calls
        status = run_cached(context.plain[name], sendbuf, recvbuf, None)
        if status:
            context.run(status, name, (sendbuf, recvbuf), sendbuf, recvbuf, stream=stream)

    return _run


def _rooted(name: str) -> _Run:
    row = METHODS[name]
    varies, gathers = MANY in row.holds, row.at_root == "recvbuf"

    def _run(
        self: WithContext,
        sendbuf: Any,
        recvbuf: Any,
        root: int = 0,
        extra: Any = ...,
        algorithm: Name = None,
        segment: Nbytes = None,
        timeout: Time = None,
        tag: str | None = None,
        stream: Any = None,
    ) -> None:
        context = self._calls
        send, recv = sendbuf, recvbuf
        if not varies:
            if context.rank != root:
                send, recv = _IN_PLACE, sendbuf if gathers else recvbuf
            elif recv is _IN_PLACE and not gathers:
                send, recv = _IN_PLACE, sendbuf
        if (
            extra is not ...
            or algorithm is not None
            or segment is not None
            or timeout is not None
            or tag is not None
        ):
            given, found_by = (sendbuf, recvbuf, root), (send, recv, None, root)
            return _run_with(self, name, given, found_by, extra, algorithm, segment, timeout, tag, stream)
        address = context.plain[name] if root == 0 else context.tables[name, root, None, None, None]
        status = run_cached(address, send, recv, None)
        if status:
            context.run(
                status, (name, root, None, None, None), (sendbuf, recvbuf, root), send, recv, stream=stream
            )

    return _run


def _reduction(name: str) -> _Run:
    def _run(
        self: WithContext,
        sendbuf: Any,
        recvbuf: Any,
        op: Op = MPI.SUM,
        extra: Any = ...,
        algorithm: Name = None,
        segment: Nbytes = None,
        timeout: Time = None,
        tag: str | None = None,
        stream: Any = None,
        order: str | None = None,
    ) -> None:
        if (
            extra is not ...
            or algorithm is not None
            or segment is not None
            or timeout is not None
            or tag is not None
            or (order is not None and order is not RANK_ORDER)
        ):
            given = sendbuf, recvbuf, op
            return _run_with(
                self, name, given, (*given, 0), extra, algorithm, segment, timeout, tag, stream, order
            )
        context = self._calls
        tables = context.plain if order is None else context.ordered
        status = run_cached(tables[name], sendbuf, recvbuf, op)
        if status:
            context.run(
                status,
                name if order is None else (name, 0, None, None, order),
                (sendbuf, recvbuf, op),
                sendbuf,
                recvbuf,
                stream=stream,
            )

    return _run


def _rooted_reduction(name: str) -> _Run:
    def _run(
        self: WithContext,
        sendbuf: Any,
        recvbuf: Any,
        op: Op = MPI.SUM,
        root: int = 0,
        extra: Any = ...,
        algorithm: Name = None,
        segment: Nbytes = None,
        timeout: Time = None,
        tag: str | None = None,
        stream: Any = None,
        order: str | None = None,
    ) -> None:
        context = self._calls
        send, recv = (sendbuf, recvbuf) if context.rank == root else (_IN_PLACE, sendbuf)
        if (
            extra is not ...
            or algorithm is not None
            or segment is not None
            or timeout is not None
            or tag is not None
            or (order is not None and order is not RANK_ORDER)
        ):
            given, found_by = (sendbuf, recvbuf, op, root), (send, recv, op, root)
            return _run_with(
                self, name, given, found_by, extra, algorithm, segment, timeout, tag, stream, order
            )
        key = name, root, None, None, order
        tables = context.plain if order is None else context.ordered
        status = run_cached(tables[name] if root == 0 else context.tables[key], send, recv, op)
        if status:
            context.run(status, key, (sendbuf, recvbuf, op, root), send, recv, stream=stream)

    return _run


def _varying_reduction(name: str) -> _Run:
    def _run(
        self: WithContext,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Any = None,
        op: Op = MPI.SUM,
        extra: Any = ...,
        algorithm: Name = None,
        segment: Nbytes = None,
        timeout: Time = None,
        tag: str | None = None,
        stream: Any = None,
        order: str | None = None,
    ) -> None:
        send, recv = with_counts(sendbuf, recvbuf, recvcounts)
        if (
            extra is not ...
            or algorithm is not None
            or segment is not None
            or timeout is not None
            or tag is not None
            or (order is not None and order is not RANK_ORDER)
            or recvcounts is None
        ):
            given, found_by = (sendbuf, recvbuf, recvcounts, op), (send, recv, op, 0)
            return _run_with(
                self, name, given, found_by, extra, algorithm, segment, timeout, tag, stream, order
            )
        context = self._calls
        tables = context.plain if order is None else context.ordered
        status = run_cached(tables[name], send, recv, op)
        if status:
            context.run(
                status,
                name if order is None else (name, 0, None, None, order),
                (sendbuf, recvbuf, recvcounts, op),
                send,
                recv,
                stream=stream,
            )

    return _run


# by the arguments of the methods
_SHAPES: dict[tuple[str, ...], Callable[[str], _Run]] = {
    (): _barrier,
    ("buf", "root"): _broadcast,
    ("sendbuf", "recvbuf"): _between_buffers,
    ("sendbuf", "recvbuf", "root"): _rooted,
    ("sendbuf", "recvbuf", "op"): _reduction,
    ("sendbuf", "recvbuf", "op", "root"): _rooted_reduction,
    ("sendbuf", "recvbuf", "recvcounts", "op"): _varying_reduction,
}
