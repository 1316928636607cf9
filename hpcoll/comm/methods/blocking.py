"""The blocking upper-case collectives that reduce, and Barrier, with mpi4py's signatures; `blocking_moves` has the others.

The call cache finds a call like an earlier one and runs it in one crossing into compiled code. Any other call is described
(`hpcoll.comm.arguments.methods`) and run by a plan.
"""

from typing import Any, TypeAlias

from mpi4py import MPI

from hpcoll.base.keywords import quick_keywords
from hpcoll.base.ops import ReduceOp
from hpcoll.comm.arguments.call import Time, in_order, limit_of
from hpcoll.comm.arguments.methods import with_counts
from hpcoll.comm.arguments.reductions import every_count
from hpcoll.comm.context.attach import WithContext
from hpcoll.comm.status.regions import tagged
from hpcoll.runtime.engine.entry import run_cached
from hpcoll.schedules.row import Algorithm
from hpcoll.selection.config import RANK_ORDER

Op: TypeAlias = MPI.Op | ReduceOp
Name: TypeAlias = str | Algorithm | None  # of an algorithm, or its row
Nbytes: TypeAlias = int | str | None  # bytes, or text such as "256K"

_IN_PLACE = MPI.IN_PLACE


@quick_keywords
class BlockingReductions(WithContext):
    """An intracommunicator whose blocking reductions, and barriers, which combine nothing, run on hpcoll."""

    def Allreduce(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Op = MPI.SUM,
        *,
        algorithm: Name = None,
        segment: Nbytes = None,
        stream: Any = None,
        timeout: Time = None,
        tag: str | None = None,
        order: str | None = None,
    ) -> None:
        """Combine every rank's sendbuf and give the result to all ranks.

        Args:
            sendbuf: ``count`` elements, or ``MPI.IN_PLACE`` when recvbuf holds the contribution.
            recvbuf: ``count`` elements of the same type.
            op: Operator, equal on all ranks: an ``MPI.Op`` or a `hpcoll.ReduceOp`.
            algorithm: Name from ``hpcoll.algorithms(...)``, or ``"native"``; None: chosen per call.
            segment: Bytes per segment, or text such as ``"256K"``; None: chosen per call.
            stream: CUDA stream that orders the work on GPU arrays, or its handle; None: each array's own.
            timeout: Seconds, or text such as ``"5m"``; None: what ``HPCOLL_TIMEOUT`` says.
            tag: Name of the call, as of a `region` around it alone; None: none.
            order: ``"rank"``: combine contributions by one expression in rank order, the canonical one, whatever algorithm, message
                size, placement or kind of memory; None: what ``HPCOLL_ORDER`` says. Operators and element types that only the MPI
                library has are gathered first, and take memory for all ranks' contributions.

        Raises:
            ArgumentError: Wrong buffer, operator, root or keyword; raised before any message leaves.
            KernelError: The operator does not compile for the element type.
            MismatchError: Ranks have made different calls; raised on all ranks, as the next two are.
            PeerFailed: A rank has ended or called MPI_Abort.
            CollectiveTimeout: The call has not ended within ``timeout``.
            TransportError: The MPI library failed; `DeviceError`: the CUDA driver failed.
        """
        if tag is not None:
            return tagged(BlockingReductions.Allreduce, locals())
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context.rank)
        key = "Allreduce" if algorithm is None and segment is None else ("Allreduce", 0, algorithm, segment)
        if order is not None:
            key = (
                "Allreduce rank"
                if order is RANK_ORDER and key == "Allreduce"
                else in_order(key, order, context.rank)
            )
        status = run_cached(context.tables[key], sendbuf, recvbuf, op)
        if status:
            context.run(status, key, (sendbuf, recvbuf, op), sendbuf, recvbuf, stream=stream, limit_s=timeout)

    def Reduce(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Op = MPI.SUM,
        root: int = 0,
        *,
        algorithm: Name = None,
        segment: Nbytes = None,
        stream: Any = None,
        timeout: Time = None,
        tag: str | None = None,
        order: str | None = None,
    ) -> None:
        """Combine every rank's sendbuf and give the result to the root; errors as in `Allreduce`.

        Args:
            sendbuf: ``count`` elements; at the root also ``MPI.IN_PLACE``, when recvbuf holds its contribution.
            recvbuf: ``count`` elements of the same type at the root; ignored elsewhere.
            op: Operator, as in `Allreduce`.
            root: Rank that gets the result, equal on all ranks.
            algorithm: Name from ``hpcoll.algorithms(...)``, or ``"native"``; None: chosen per call.
            segment: Bytes per segment, or text such as ``"256K"``; None: chosen per call.
            stream: CUDA stream that orders the work on GPU arrays, or its handle; None: each array's own.
            timeout: Seconds, or text such as ``"5m"``; None: what ``HPCOLL_TIMEOUT`` says.
            tag: Name of the call, as of a `region` around it alone; None: none.
            order: ``"rank"``: one expression in rank order, see `Allreduce`; None: what ``HPCOLL_ORDER`` says.
        """
        if tag is not None:
            return tagged(BlockingReductions.Reduce, locals())
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context.rank)
        send, recv = (sendbuf, recvbuf) if context.rank == root else (_IN_PLACE, sendbuf)
        key = (
            "Reduce"
            if root == 0 and algorithm is None and segment is None
            else ("Reduce", root, algorithm, segment)
        )
        if order is not None:
            key = (
                "Reduce rank"
                if order is RANK_ORDER and key == "Reduce"
                else in_order(key, order, context.rank)
            )
        status = run_cached(context.tables[key], send, recv, op)
        if status:
            context.run(status, key, (sendbuf, recvbuf, op, root), send, recv, stream=stream, limit_s=timeout)

    def Reduce_scatter_block(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Op = MPI.SUM,
        *,
        algorithm: Name = None,
        segment: Nbytes = None,
        stream: Any = None,
        timeout: Time = None,
        tag: str | None = None,
        order: str | None = None,
    ) -> None:
        """Combine every rank's sendbuf and give block ``r`` of the result to rank ``r``; errors as in `Allreduce`.

        Args:
            sendbuf: ``nranks * count`` elements. With ``MPI.IN_PLACE`` recvbuf holds them, and gets the result at its start.
            recvbuf: ``count`` elements of the same type.
            op: Operator, as in `Allreduce`.
            algorithm: Name from ``hpcoll.algorithms(...)``, or ``"native"``; None: chosen per call.
            segment: Bytes per segment, or text such as ``"256K"``; None: chosen per call.
            stream: CUDA stream that orders the work on GPU arrays, or its handle; None: each array's own.
            timeout: Seconds, or text such as ``"5m"``; None: what ``HPCOLL_TIMEOUT`` says.
            tag: Name of the call, as of a `region` around it alone; None: none.
            order: ``"rank"``: one expression in rank order, see `Allreduce`; None: what ``HPCOLL_ORDER`` says.
        """
        if tag is not None:
            return tagged(BlockingReductions.Reduce_scatter_block, locals())
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context.rank)
        key = (
            "Reduce_scatter_block"
            if algorithm is None and segment is None
            else ("Reduce_scatter_block", 0, algorithm, segment)
        )
        if order is not None:
            short = order is RANK_ORDER and key == "Reduce_scatter_block"
            key = "Reduce_scatter_block rank" if short else in_order(key, order, context.rank)
        status = run_cached(context.tables[key], sendbuf, recvbuf, op)
        if status:
            context.run(status, key, (sendbuf, recvbuf, op), sendbuf, recvbuf, stream=stream, limit_s=timeout)

    def Reduce_scatter(
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Any = None,
        op: Op = MPI.SUM,
        *,
        algorithm: Name = None,
        segment: Nbytes = None,
        stream: Any = None,
        timeout: Time = None,
        tag: str | None = None,
        order: str | None = None,
    ) -> None:
        """Combine every rank's sendbuf and give block ``r`` of the result, of a size of its own, to rank ``r``; errors as in `Allreduce`.

        Args:
            sendbuf: ``sum(recvcounts)`` elements. With ``MPI.IN_PLACE`` recvbuf holds them, and gets the result at its start.
            recvbuf: ``recvcounts[rank]`` elements of the same type.
            recvcounts: Elements of each rank's block, equal on all ranks; None: every rank tells the size of its recvbuf.
            op: Operator, as in `Allreduce`.
            algorithm: Name from ``hpcoll.algorithms(...)``, or ``"native"``; None: chosen per call.
            segment: Bytes per segment, or text such as ``"256K"``; None: chosen per call.
            stream: CUDA stream that orders the work on GPU arrays, or its handle; None: each array's own.
            timeout: Seconds, or text such as ``"5m"``; None: what ``HPCOLL_TIMEOUT`` says.
            tag: Name of the call, as of a `region` around it alone; None: none.
            order: ``"rank"``: one expression in rank order, see `Allreduce`; None: what ``HPCOLL_ORDER`` says.
        """
        if tag is not None:
            return tagged(BlockingReductions.Reduce_scatter, locals())
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context.rank)
        if recvcounts is None and not context.closed:
            try:
                recvcounts = every_count(sendbuf, recvbuf, context.rank, context.caller.allgather)
            except Exception:  # entering the block takes 0.5 us
                with context.failure_scope("Reduce_scatter"):
                    raise
        send = with_counts(sendbuf, recvcounts)
        key = (
            "Reduce_scatter"
            if algorithm is None and segment is None
            else ("Reduce_scatter", 0, algorithm, segment)
        )
        if order is not None:
            key = (
                "Reduce_scatter rank"
                if order is RANK_ORDER and key == "Reduce_scatter"
                else in_order(key, order, context.rank)
            )
        status = run_cached(context.tables[key], send, recvbuf, op)
        if status:
            context.run(
                status, key, (sendbuf, recvbuf, recvcounts, op), send, recvbuf, stream=stream, limit_s=timeout
            )

    def Scan(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Op = MPI.SUM,
        *,
        algorithm: Name = None,
        segment: Nbytes = None,
        stream: Any = None,
        timeout: Time = None,
        tag: str | None = None,
        order: str | None = None,
    ) -> None:
        """Combine the sendbufs of ranks ``0`` to ``r`` for rank ``r``; errors as in `Allreduce`.

        Args:
            sendbuf: ``count`` elements, or ``MPI.IN_PLACE`` when recvbuf holds the contribution.
            recvbuf: ``count`` elements of the same type.
            op: Operator, as in `Allreduce`.
            algorithm: Name from ``hpcoll.algorithms(...)``, or ``"native"``; None: chosen per call.
            segment: Bytes per segment, or text such as ``"256K"``; None: chosen per call.
            stream: CUDA stream that orders the work on GPU arrays, or its handle; None: each array's own.
            timeout: Seconds, or text such as ``"5m"``; None: what ``HPCOLL_TIMEOUT`` says.
            tag: Name of the call, as of a `region` around it alone; None: none.
            order: ``"rank"``: one expression in rank order, see `Allreduce`; None: what ``HPCOLL_ORDER`` says.
        """
        if tag is not None:
            return tagged(BlockingReductions.Scan, locals())
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context.rank)
        key = "Scan" if algorithm is None and segment is None else ("Scan", 0, algorithm, segment)
        if order is not None:
            key = "Scan rank" if order is RANK_ORDER and key == "Scan" else in_order(key, order, context.rank)
        status = run_cached(context.tables[key], sendbuf, recvbuf, op)
        if status:
            context.run(status, key, (sendbuf, recvbuf, op), sendbuf, recvbuf, stream=stream, limit_s=timeout)

    def Exscan(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Op = MPI.SUM,
        *,
        algorithm: Name = None,
        segment: Nbytes = None,
        stream: Any = None,
        timeout: Time = None,
        tag: str | None = None,
        order: str | None = None,
    ) -> None:
        """Combine the sendbufs of ranks ``0`` to ``r - 1`` for rank ``r``; errors as in `Allreduce`.

        Args:
            sendbuf: ``count`` elements, or ``MPI.IN_PLACE`` when recvbuf holds the contribution.
            recvbuf: ``count`` elements of the same type; that of rank 0 stays as it is.
            op: Operator, as in `Allreduce`.
            algorithm: Name from ``hpcoll.algorithms(...)``, or ``"native"``; None: chosen per call.
            segment: Bytes per segment, or text such as ``"256K"``; None: chosen per call.
            stream: CUDA stream that orders the work on GPU arrays, or its handle; None: each array's own.
            timeout: Seconds, or text such as ``"5m"``; None: what ``HPCOLL_TIMEOUT`` says.
            tag: Name of the call, as of a `region` around it alone; None: none.
            order: ``"rank"``: one expression in rank order, see `Allreduce`; None: what ``HPCOLL_ORDER`` says.
        """
        if tag is not None:
            return tagged(BlockingReductions.Exscan, locals())
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context.rank)
        key = "Exscan" if algorithm is None and segment is None else ("Exscan", 0, algorithm, segment)
        if order is not None:
            key = (
                "Exscan rank"
                if order is RANK_ORDER and key == "Exscan"
                else in_order(key, order, context.rank)
            )
        status = run_cached(context.tables[key], sendbuf, recvbuf, op)
        if status:
            context.run(status, key, (sendbuf, recvbuf, op), sendbuf, recvbuf, stream=stream, limit_s=timeout)

    def Barrier(
        self, *, algorithm: Name = None, segment: Nbytes = None, timeout: Time = None, tag: str | None = None
    ) -> None:
        """Return when every rank has called it; errors as in `Allreduce`.

        Args:
            algorithm: Name from ``hpcoll.algorithms(...)``, or ``"native"``; None: chosen per call.
            segment: Bytes per segment, or text such as ``"256K"``; None: chosen per call.
            timeout: Seconds, or text such as ``"5m"``; None: what ``HPCOLL_TIMEOUT`` says.
            tag: Name of the call, as of a `region` around it alone; None: none.
        """
        if tag is not None:
            return tagged(BlockingReductions.Barrier, locals())
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context.rank)
        key = "Barrier" if algorithm is None and segment is None else ("Barrier", 0, algorithm, segment)
        status = run_cached(context.tables[key], _IN_PLACE, context.token, None)
        if status:
            context.run(status, key, (), _IN_PLACE, context.token, limit_s=timeout)

    def barrier(self, *, timeout: Time = None, tag: str | None = None) -> None:
        """Return when every rank has called it, as `Barrier`."""
        BlockingReductions.Barrier(self, timeout=timeout, tag=tag)
