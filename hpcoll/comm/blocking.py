"""The blocking upper-case collectives with mpi4py's signatures.

A call like an earlier one on plain arrays crosses into compiled code at once; any other is described (`hpcoll.comm.calls.methods`) and
run by a plan.
"""

from typing import Any, TypeAlias

from mpi4py import MPI

from hpcoll.base.ops import ReduceOp
from hpcoll.comm.attach import WithContext
from hpcoll.comm.calls.methods import with_counts
from hpcoll.comm.calls.reductions import every_count
from hpcoll.runtime.engine.entry import run_cached

Op: TypeAlias = MPI.Op | ReduceOp
Name: TypeAlias = str | None  # of an algorithm
Nbytes: TypeAlias = int | str | None  # bytes, or text such as "256K"

_IN_PLACE = MPI.IN_PLACE


class Blocking(WithContext):
    """An intracommunicator whose blocking collectives run on hpcoll."""

    def Allreduce(
        self, sendbuf: Any, recvbuf: Any, op: Op = MPI.SUM, *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None
    ) -> None:
        """Combine every rank's sendbuf and give the result to all.

        Args:
            sendbuf: ``count`` elements, or ``MPI.IN_PLACE`` when recvbuf holds the contribution.
            recvbuf: ``count`` elements of the same type.
            op: Operator; all ranks name the same.
            algorithm, segment: See the class.
        """
        context = self._context
        key = ("Allreduce", 0, algorithm, segment)
        status = run_cached(context.tables[key], sendbuf, recvbuf, op)
        if status:
            context.run(status, key, (sendbuf, recvbuf, op), sendbuf, recvbuf, stream=stream)

    def Reduce(
        self, sendbuf: Any, recvbuf: Any, op: Op = MPI.SUM, root: int = 0,
        *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None,
    ) -> None:  # fmt: skip
        """Combine every rank's sendbuf and give the result to the root.

        Args:
            sendbuf: ``count`` elements; at the root also ``MPI.IN_PLACE``.
            recvbuf: ``count`` elements at the root; ignored elsewhere.
            op, root: Equal on all ranks.
            algorithm, segment: See the class.
        """
        context = self._context
        send, recv = (sendbuf, recvbuf) if context.rank == root else (_IN_PLACE, sendbuf)
        key = ("Reduce", root, algorithm, segment)
        status = run_cached(context.tables[key], send, recv, op)
        if status:
            context.run(status, key, (sendbuf, recvbuf, op, root), send, recv, stream=stream)

    def Reduce_scatter_block(
        self, sendbuf: Any, recvbuf: Any, op: Op = MPI.SUM, *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None
    ) -> None:
        """Combine every rank's sendbuf and give block ``r`` of the result to rank ``r``.

        Args:
            sendbuf: ``nranks * count`` elements; with ``MPI.IN_PLACE`` recvbuf holds them and gets the result at its start.
            recvbuf: ``count`` elements.
            op, algorithm, segment: As in `Allreduce`.
        """
        context = self._context
        key = ("Reduce_scatter_block", 0, algorithm, segment)
        status = run_cached(context.tables[key], sendbuf, recvbuf, op)
        if status:
            context.run(status, key, (sendbuf, recvbuf, op), sendbuf, recvbuf, stream=stream)

    def Reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: Op = MPI.SUM,
        *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None,
    ) -> None:  # fmt: skip
        """`Reduce_scatter_block` with blocks of ``recvcounts[r]`` elements, equal on all ranks; None: each rank's recvbuf tells its own."""
        context = self._context
        if recvcounts is None and not context.closed:
            recvcounts = every_count(sendbuf, recvbuf, context.rank, context.caller.allgather)
        key, send = ("Reduce_scatter", 0, algorithm, segment), with_counts(sendbuf, recvcounts)
        status = run_cached(context.tables[key], send, recvbuf, op)
        if status:
            context.run(status, key, (sendbuf, recvbuf, recvcounts, op), send, recvbuf, stream=stream)

    def Scan(
        self, sendbuf: Any, recvbuf: Any, op: Op = MPI.SUM, *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None
    ) -> None:
        """Combine the sendbufs of ranks ``0 .. r`` for rank ``r``; arguments as in `Allreduce`."""
        context = self._context
        key = ("Scan", 0, algorithm, segment)
        status = run_cached(context.tables[key], sendbuf, recvbuf, op)
        if status:
            context.run(status, key, (sendbuf, recvbuf, op), sendbuf, recvbuf, stream=stream)

    def Exscan(
        self, sendbuf: Any, recvbuf: Any, op: Op = MPI.SUM, *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None
    ) -> None:
        """Combine the sendbufs of ranks ``0 .. r-1`` for rank ``r``; rank 0's recvbuf is left as it is. Arguments as in `Allreduce`."""
        context = self._context
        key = ("Exscan", 0, algorithm, segment)
        status = run_cached(context.tables[key], sendbuf, recvbuf, op)
        if status:
            context.run(status, key, (sendbuf, recvbuf, op), sendbuf, recvbuf, stream=stream)

    def Barrier(self, *, algorithm: Name = None, segment: Nbytes = None) -> None:
        """Return when every rank has called it."""
        context = self._context
        key = ("Barrier", 0, algorithm, segment)
        status = run_cached(context.tables[key], _IN_PLACE, context.token, None)
        if status:
            context.run(status, key, (), _IN_PLACE, context.token)

    def Bcast(self, buf: Any, root: int = 0, *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None) -> None:
        """Copy the root's buffer to all ranks.

        Args:
            buf: Equally many bytes on all ranks; may be read-only at the root.
            root: Equal on all ranks.
            algorithm, segment: See the class.
        """
        context = self._context
        key = ("Bcast", root, algorithm, segment)
        status = run_cached(context.tables[key], _IN_PLACE, buf, None)
        if status:
            context.run(status, key, (buf, root), _IN_PLACE, buf, stream=stream)

    def Allgather(self, sendbuf: Any, recvbuf: Any, *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None) -> None:
        """Give every rank the blocks of all.

        Args:
            sendbuf: One block, or ``MPI.IN_PLACE`` when it already lies in its place in recvbuf.
            recvbuf: ``nranks`` blocks.
            algorithm, segment: See the class.
        """
        context = self._context
        key = ("Allgather", 0, algorithm, segment)
        status = run_cached(context.tables[key], sendbuf, recvbuf, None)
        if status:
            context.run(status, key, (sendbuf, recvbuf), sendbuf, recvbuf, stream=stream)

    def Allgatherv(self, sendbuf: Any, recvbuf: Any, *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None) -> None:
        """`Allgather` of blocks that differ in size: recvbuf is ``[array, counts, displs, type]``, equal counts on all ranks."""
        context = self._context
        key = ("Allgatherv", 0, algorithm, segment)
        status = run_cached(context.tables[key], sendbuf, recvbuf, None)
        if status:
            context.run(status, key, (sendbuf, recvbuf), sendbuf, recvbuf, stream=stream)

    def Gather(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None
    ) -> None:
        """Give the root the blocks of all.

        Args:
            sendbuf: One block; at the root also ``MPI.IN_PLACE``.
            recvbuf: ``nranks`` blocks at the root; ignored elsewhere.
            root, algorithm, segment: As in `Bcast`.
        """
        context = self._context
        send, recv = (sendbuf, recvbuf) if context.rank == root else (_IN_PLACE, sendbuf)
        key = ("Gather", root, algorithm, segment)
        status = run_cached(context.tables[key], send, recv, None)
        if status:
            context.run(status, key, (sendbuf, recvbuf, root), send, recv, stream=stream)

    def Gatherv(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None
    ) -> None:
        """`Gather` of blocks that differ in size; counts and displacements are the root's."""
        context = self._context
        key = ("Gatherv", root, algorithm, segment)
        status = run_cached(context.tables[key], sendbuf, recvbuf, None)
        if status:
            context.run(status, key, (sendbuf, recvbuf, root), sendbuf, recvbuf, stream=stream)

    def Scatter(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None
    ) -> None:
        """Give block ``r`` of the root's sendbuf to rank ``r``.

        Args:
            sendbuf: ``nranks`` blocks at the root; ignored elsewhere.
            recvbuf: One block; at the root also ``MPI.IN_PLACE``.
            root, algorithm, segment: As in `Bcast`.
        """
        context = self._context
        send, recv = (sendbuf, recvbuf) if context.rank == root else (_IN_PLACE, recvbuf)
        if recv is _IN_PLACE:
            send, recv = _IN_PLACE, sendbuf
        key = ("Scatter", root, algorithm, segment)
        status = run_cached(context.tables[key], send, recv, None)
        if status:
            context.run(status, key, (sendbuf, recvbuf, root), send, recv, stream=stream)

    def Scatterv(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None
    ) -> None:
        """`Scatter` of blocks that differ in size; counts and displacements are the root's."""
        context = self._context
        key = ("Scatterv", root, algorithm, segment)
        status = run_cached(context.tables[key], sendbuf, recvbuf, None)
        if status:
            context.run(status, key, (sendbuf, recvbuf, root), sendbuf, recvbuf, stream=stream)

    def Alltoall(self, sendbuf: Any, recvbuf: Any, *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None) -> None:
        """Give block ``j`` of rank ``i``'s sendbuf to rank ``j`` as block ``i``.

        Args:
            sendbuf: ``nranks`` blocks, or ``MPI.IN_PLACE`` when recvbuf holds them.
            recvbuf: ``nranks`` blocks.
            algorithm, segment: See the class.
        """
        context = self._context
        key = ("Alltoall", 0, algorithm, segment)
        status = run_cached(context.tables[key], sendbuf, recvbuf, None)
        if status:
            context.run(status, key, (sendbuf, recvbuf), sendbuf, recvbuf, stream=stream)

    def Alltoallv(self, sendbuf: Any, recvbuf: Any, *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None) -> None:
        """`Alltoall` of blocks that differ in size; each rank gives its own counts and displacements."""
        context = self._context
        key = ("Alltoallv", 0, algorithm, segment)
        status = run_cached(context.tables[key], sendbuf, recvbuf, None)
        if status:
            context.run(status, key, (sendbuf, recvbuf), sendbuf, recvbuf, stream=stream)
