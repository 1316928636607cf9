"""The blocking lower-case collectives, on Python objects, with mpi4py's signatures: as `hpcoll.comm.methods.blocking`.

Objects that fit their cells take the short way, which is written out here; all else is in `hpcoll.comm.objects`.
"""

from gc import get_referents
from operator import index
from pickle import loads
from typing import Any

from mpi4py import MPI

from hpcoll.comm.arguments.call import Time, limit_of
from hpcoll.comm.context.attach import WithContext
from hpcoll.comm.objects.exchange import DEFAULT, CellExchange
from hpcoll.comm.objects.operators import Op
from hpcoll.comm.objects.reductions import combined, fold, scan
from hpcoll.comm.status.regions import tagged
from hpcoll.runtime.engine.entry import call_compiled
from hpcoll.runtime.program.fields import AS_BEFORE, RUN


class BlockingObjects(WithContext):
    """An intracommunicator whose collectives on Python objects run on hpcoll."""

    def bcast(self, obj: Any, root: int = 0, *, timeout: Time = None, tag: str | None = None) -> Any:
        """Return the root's object on all ranks, as a copy.

        Args:
            obj: Any object that `mpi4py.MPI.pickle` takes, read at the root.
            root: Rank whose object is sent, equal on all ranks.
            timeout: Seconds, or text such as ``"5m"``; None: what ``HPCOLL_TIMEOUT`` says.
            tag: Name of the call, as of a `region` around it alone; None: none.

        Raises:
            ArgumentError: Another rank has no object to send, since it cannot be pickled; names the rank, which raises the error itself.
            mpi4py.MPI.Exception: ``root`` is no rank.
            MismatchError, PeerFailed, CollectiveTimeout, TransportError: As in `Allreduce`.
        """
        if tag is not None:
            return tagged(BlockingObjects.bcast, locals())
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context.rank)
        pool = context.exchanges["bcast" if root == 0 else ("bcast", root)]
        exchange = (
            pool.pop() if pool else CellExchange(context, pool, "bcast", _checked(root, context.nranks))
        )
        status = exchange.run(obj)
        made = exchange.made.pop() if not status else exchange.finish(status, timeout)[0]
        exchange.pool.append(exchange)
        return made

    def scatter(self, sendobj: Any, root: int = 0, *, timeout: Time = None, tag: str | None = None) -> Any:
        """Return this rank's object of those that the root sends.

        Args:
            sendobj: As many objects as there are ranks, read at the root; None: that many None.
            root: Rank that sends, equal on all ranks.
            timeout: As in `bcast`.
            tag: As in `bcast`.

        Raises:
            ValueError: There are more or fewer objects than ranks; other ranks raise `ArgumentError`, which names the root.
            ArgumentError: As in `bcast`; likewise all others.
        """
        if tag is not None:
            return tagged(BlockingObjects.scatter, locals())
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context.rank)
        pool = context.exchanges["scatter" if root == 0 else ("scatter", root)]
        exchange = (
            pool.pop() if pool else CellExchange(context, pool, "scatter", _checked(root, context.nranks))
        )
        source = exchange.put_all(sendobj) if context.rank == root else exchange.target
        status = call_compiled(RUN, exchange.engine, source, exchange.target, AS_BEFORE)
        made = (
            exchange.finish(status, timeout)[0]
            if status or get_referents(MPI.pickle) != DEFAULT
            else loads(exchange.views[0])
        )
        exchange.pool.append(exchange)
        return made

    def gather(
        self, sendobj: Any, root: int = 0, *, timeout: Time = None, tag: str | None = None
    ) -> list[Any] | None:
        """Return every rank's object, in rank order, at the root, and None elsewhere; arguments and errors as of `bcast`."""
        if tag is not None:
            return tagged(BlockingObjects.gather, locals())
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context.rank)
        pool = context.exchanges["gather" if root == 0 else ("gather", root)]
        exchange = (
            pool.pop() if pool else CellExchange(context, pool, "gather", _checked(root, context.nranks))
        )
        status = exchange.run(sendobj)
        made = exchange.finish(status, timeout) if status else exchange.taken()
        exchange.pool.append(exchange)
        return made if context.rank == root else None

    def allgather(self, sendobj: Any, *, timeout: Time = None, tag: str | None = None) -> list[Any]:
        """Return every rank's object, in rank order; arguments and errors as of `bcast`."""
        if tag is not None:
            return tagged(BlockingObjects.allgather, locals())
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context.rank)
        pool = context.exchanges["allgather"]
        exchange = pool.pop() if pool else CellExchange(context, pool, "allgather")
        status = exchange.run(sendobj)
        made = exchange.finish(status, timeout) if status else exchange.taken()
        exchange.pool.append(exchange)
        return made

    def alltoall(self, sendobj: Any, *, timeout: Time = None, tag: str | None = None) -> list[Any]:
        """Return what each rank sends to this one, in rank order; arguments and errors as of `scatter`, on every rank."""
        if tag is not None:
            return tagged(BlockingObjects.alltoall, locals())
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context.rank)
        pool = context.exchanges["alltoall"]
        exchange = pool.pop() if pool else CellExchange(context, pool, "alltoall")
        status = call_compiled(RUN, exchange.engine, exchange.put_all(sendobj), exchange.target, AS_BEFORE)
        made = (
            exchange.finish(status, timeout)
            if status or get_referents(MPI.pickle) != DEFAULT
            else list(map(loads, exchange.views))
        )
        exchange.pool.append(exchange)
        return made

    def reduce(
        self, sendobj: Any, op: Op = MPI.SUM, root: int = 0, *, timeout: Time = None, tag: str | None = None
    ) -> Any:
        """Return the combination of every rank's object at the root, and None elsewhere.

        Args:
            sendobj: Any object, as of `bcast`.
            op: Any function of two objects, or an ``MPI.Op``; applied in mpi4py's order.
            root: Rank that gets the result, equal on all ranks.
            timeout: As in `bcast`.
            tag: As in `bcast`.

        Raises:
            Exception: What ``op`` raises; where rank 0 applies it for all, `ArgumentError` elsewhere.
            ArgumentError: As in `bcast`; likewise all others.
        """
        if tag is not None:
            return tagged(BlockingObjects.reduce, locals())
        return self._reduced("reduce", root, sendobj, op, timeout)

    def allreduce(
        self, sendobj: Any, op: Op = MPI.SUM, *, timeout: Time = None, tag: str | None = None
    ) -> Any:
        """Return the combination of every rank's object on all ranks; arguments and errors as of `reduce`."""
        if tag is not None:
            return tagged(BlockingObjects.allreduce, locals())
        return self._reduced("allreduce", None, sendobj, op, timeout)

    def scan(self, sendobj: Any, op: Op = MPI.SUM, *, timeout: Time = None, tag: str | None = None) -> Any:
        """Return the combination of the objects of ranks ``0`` to ``r`` on rank ``r``; arguments and errors as of `reduce`."""
        if tag is not None:
            return tagged(BlockingObjects.scan, locals())
        return self._reduced("scan", None, sendobj, op, timeout)

    def exscan(self, sendobj: Any, op: Op = MPI.SUM, *, timeout: Time = None, tag: str | None = None) -> Any:
        """Return the combination of the objects of ranks before this one, None on rank 0; arguments and errors as of `reduce`."""
        if tag is not None:
            return tagged(BlockingObjects.exscan, locals())
        return self._reduced("exscan", None, sendobj, op, timeout)

    def _reduced(self, method: str, root: int | None, sendobj: Any, op: Op, timeout: Time) -> Any:
        """Return the result of a `reduce`, or with no root of another reduction."""
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context.rank)
        pool = context.exchanges[method if not root else (method, root)]
        exchange = (
            pool.pop()
            if pool
            else CellExchange(context, pool, method, _checked(root or 0, context.nranks), op)
        )
        if op is not exchange.op:
            exchange.use(op)
        wanted = root is None or context.rank == root
        status, made = exchange.run(sendobj), None
        if method in ("scan", "exscan"):
            made = scan(exchange, status, timeout, op, itself=method == "scan")
        elif status:
            made = combined(exchange, status, timeout, op, wanted=wanted)
        else:
            objects = exchange.taken()
            made = fold(objects, op) if wanted else None
        exchange.pool.append(exchange)
        return made


def _checked(root: Any, nranks: int) -> int:
    """Return a root as an int; raise mpi4py's error where it is none."""
    if not 0 <= index(root) < nranks:
        raise MPI.Exception(MPI.ERR_ROOT)
    return index(root)
