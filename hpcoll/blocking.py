"""The blocking upper-case collectives with mpi4py's signatures. Floor 7.

Each method describes its call (`hpcoll.reductions`, `hpcoll.movements`) and runs it by a plan; a call like an earlier one on
plain arrays skips the description.
"""

from functools import cached_property
from typing import Any

from mpi4py import MPI

from hpcoll import movements, reductions
from hpcoll.call import Call, check_root
from hpcoll.context import context_of
from hpcoll.operators import BY_IDENTITY
from hpcoll.ops import ReduceOp

_known = BY_IDENTITY.get  # what stands for an operator in a key: ours for MPI's predefined ones


class Blocking(MPI.Intracomm):
    """An intracommunicator whose blocking collectives run on hpcoll."""

    _context = cached_property(context_of)  # Communicator sets it; objects that mpi4py makes (Idup) find it when first used

    def Allreduce(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op | ReduceOp = MPI.SUM, *, algorithm: str | None = None, segment: int | str | None = None
    ) -> None:
        """Combine every rank's sendbuf and give the result to all.

        Args:
            sendbuf: ``count`` elements, or ``MPI.IN_PLACE`` when recvbuf holds the contribution.
            recvbuf: ``count`` elements of the same type.
            op: Operator; all ranks name the same.
            algorithm, segment: See the class.
        """
        context = self._context
        arguments = (sendbuf, recvbuf, op)
        key = ("Allreduce", _known(id(op), op), algorithm, segment)
        if not context.repeat(key, sendbuf, recvbuf, arguments):
            context.check()
            call = reductions.reduction("allreduce", sendbuf, recvbuf, op, 0, context.rank, context.nranks)
            context.execute(call, key, arguments, sendbuf, recvbuf)

    def Reduce(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op | ReduceOp = MPI.SUM, root: int = 0,
        *, algorithm: str | None = None, segment: int | str | None = None,
    ) -> None:  # fmt: skip
        """Combine every rank's sendbuf and give the result to the root.

        Args:
            sendbuf: ``count`` elements; at the root also ``MPI.IN_PLACE``.
            recvbuf: ``count`` elements at the root; ignored elsewhere.
            op, root: Equal on all ranks.
            algorithm, segment: See the class.
        """
        context = self._context
        root = check_root(root, context.nranks, context.rank)
        send, recv = (sendbuf, recvbuf) if context.rank == root else (MPI.IN_PLACE, sendbuf)
        arguments = (sendbuf, recvbuf, op, root)
        key = ("Reduce", _known(id(op), op), root, algorithm, segment)
        if not context.repeat(key, send, recv, arguments):
            context.check()
            call = reductions.reduction("reduce", sendbuf, recvbuf, op, root, context.rank, context.nranks)
            context.execute(call, key, arguments, send, recv)

    def Reduce_scatter_block(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op | ReduceOp = MPI.SUM, *, algorithm: str | None = None, segment: int | str | None = None
    ) -> None:
        """Combine every rank's sendbuf and give block ``r`` of the result to rank ``r``.

        Args:
            sendbuf: ``nranks * count`` elements; with ``MPI.IN_PLACE`` recvbuf holds them and gets the result at its start.
            recvbuf: ``count`` elements.
            op, algorithm, segment: As in `Allreduce`.
        """
        context = self._context
        arguments = (sendbuf, recvbuf, op)
        key = ("Reduce_scatter_block", _known(id(op), op), algorithm, segment)
        if not context.repeat(key, sendbuf, recvbuf, arguments):
            context.check()
            call = reductions.reduction("reduce_scatter", sendbuf, recvbuf, op, 0, context.rank, context.nranks)
            context.execute(call, key, arguments, sendbuf, recvbuf)

    def Reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: MPI.Op | ReduceOp = MPI.SUM,
        *, algorithm: str | None = None, segment: int | str | None = None,
    ) -> None:  # fmt: skip
        """`Reduce_scatter_block` with blocks of ``recvcounts[r]`` elements, equal on all ranks; None: each rank's recvbuf tells its own."""
        context = self._context
        context.check()
        call = reductions.reduction_of_blocks(sendbuf, recvbuf, recvcounts, op, context.rank, context.nranks, context.comm.allgather)
        context.execute(call, ("Reduce_scatter", None, algorithm, segment), (sendbuf, recvbuf, recvcounts, op))

    def Scan(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op | ReduceOp = MPI.SUM, *, algorithm: str | None = None, segment: int | str | None = None
    ) -> None:
        """Combine the sendbufs of ranks ``0 .. r`` for rank ``r``; arguments as in `Allreduce`."""
        context = self._context
        arguments = (sendbuf, recvbuf, op)
        key = ("Scan", _known(id(op), op), algorithm, segment)
        if not context.repeat(key, sendbuf, recvbuf, arguments):
            context.check()
            call = reductions.reduction("scan", sendbuf, recvbuf, op, 0, context.rank, context.nranks)
            context.execute(call, key, arguments, sendbuf, recvbuf)

    def Exscan(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op | ReduceOp = MPI.SUM, *, algorithm: str | None = None, segment: int | str | None = None
    ) -> None:
        """Combine the sendbufs of ranks ``0 .. r-1`` for rank ``r``; rank 0's recvbuf is left as it is. Arguments as in `Allreduce`."""
        context = self._context
        arguments = (sendbuf, recvbuf, op)
        key = ("Exscan", _known(id(op), op), algorithm, segment)
        if not context.repeat(key, sendbuf, recvbuf, arguments):
            context.check()
            call = reductions.reduction("exscan", sendbuf, recvbuf, op, 0, context.rank, context.nranks)
            if context.rank == 0 and call is not None:
                call = call._replace(finish=None)
            context.execute(call, key, arguments, sendbuf, recvbuf)

    def Barrier(self, *, algorithm: str | None = None, segment: int | str | None = None) -> None:
        """Return when every rank has called it."""
        context = self._context
        key = ("Barrier", None, algorithm, segment)
        if not context.repeat(key, MPI.IN_PLACE, context.token, ()):
            context.check()
            address = context.token.ctypes.data
            call = Call("barrier", address, address, 1, context.token.dtype, in_place=True)
            context.execute(call, key, (), MPI.IN_PLACE, context.token)

    def Bcast(self, buf: Any, root: int = 0, *, algorithm: str | None = None, segment: int | str | None = None) -> None:
        """Copy the root's buffer to all ranks.

        Args:
            buf: Equally many bytes on all ranks; may be read-only at the root.
            root: Equal on all ranks.
            algorithm, segment: See the class.
        """
        context = self._context
        root = check_root(root, context.nranks, context.rank)
        arguments = (buf, root)
        key = ("Bcast", root, algorithm, segment)
        if not context.repeat(key, MPI.IN_PLACE, buf, arguments):
            context.check()
            call = movements.bcast(buf, root, context.rank, context.nranks)
            context.execute(call, key, arguments, MPI.IN_PLACE, buf)

    def Allgather(self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, segment: int | str | None = None) -> None:
        """Give every rank the blocks of all.

        Args:
            sendbuf: One block, or ``MPI.IN_PLACE`` when it already lies in its place in recvbuf.
            recvbuf: ``nranks`` blocks.
            algorithm, segment: See the class.
        """
        context = self._context
        arguments = (sendbuf, recvbuf)
        key = ("Allgather", algorithm, segment)
        if not context.repeat(key, sendbuf, recvbuf, arguments):
            context.check()
            call = movements.allgather(sendbuf, recvbuf, context.rank, context.nranks)
            context.execute(call, key, arguments, sendbuf, recvbuf)

    def Allgatherv(self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, segment: int | str | None = None) -> None:
        """`Allgather` of blocks that differ in size: recvbuf is ``[array, counts, displs, type]``, equal counts on all ranks."""
        context = self._context
        context.check()
        call = movements.allgatherv(sendbuf, recvbuf, context.rank, context.nranks)
        context.execute(call, ("Allgatherv", None, algorithm, segment), (sendbuf, recvbuf))

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0, *, algorithm: str | None = None, segment: int | str | None = None) -> None:
        """Give the root the blocks of all.

        Args:
            sendbuf: One block; at the root also ``MPI.IN_PLACE``.
            recvbuf: ``nranks`` blocks at the root; ignored elsewhere.
            root, algorithm, segment: As in `Bcast`.
        """
        context = self._context
        root = check_root(root, context.nranks, context.rank)
        send, recv = (sendbuf, recvbuf) if context.rank == root else (MPI.IN_PLACE, sendbuf)
        arguments = (sendbuf, recvbuf, root)
        key = ("Gather", root, algorithm, segment)
        if not context.repeat(key, send, recv, arguments):
            context.check()
            call = movements.gather(sendbuf, recvbuf, root, context.rank, context.nranks)
            context.execute(call, key, arguments, send, recv)

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0, *, algorithm: str | None = None, segment: int | str | None = None) -> None:
        """`Gather` of blocks that differ in size; counts and displacements are the root's."""
        context = self._context
        context.check()
        root = check_root(root, context.nranks, context.rank)
        call = movements.gatherv(sendbuf, recvbuf, root, context.rank, context.nranks)
        context.execute(call, ("Gatherv", None, algorithm, segment), (sendbuf, recvbuf, root))

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0, *, algorithm: str | None = None, segment: int | str | None = None) -> None:
        """Give block ``r`` of the root's sendbuf to rank ``r``.

        Args:
            sendbuf: ``nranks`` blocks at the root; ignored elsewhere.
            recvbuf: One block; at the root also ``MPI.IN_PLACE``.
            root, algorithm, segment: As in `Bcast`.
        """
        context = self._context
        root = check_root(root, context.nranks, context.rank)
        send, recv = (sendbuf, recvbuf) if context.rank == root else (MPI.IN_PLACE, recvbuf)
        arguments = (sendbuf, recvbuf, root)
        key = ("Scatter", root, algorithm, segment)
        if not context.repeat(key, send, recv, arguments):
            context.check()
            call = movements.scatter(sendbuf, recvbuf, root, context.rank, context.nranks)
            context.execute(call, key, arguments, send, recv)

    def Scatterv(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, *, algorithm: str | None = None, segment: int | str | None = None
    ) -> None:
        """`Scatter` of blocks that differ in size; counts and displacements are the root's."""
        context = self._context
        context.check()
        root = check_root(root, context.nranks, context.rank)
        call = movements.scatterv(sendbuf, recvbuf, root, context.rank, context.nranks)
        context.execute(call, ("Scatterv", None, algorithm, segment), (sendbuf, recvbuf, root))

    def Alltoall(self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, segment: int | str | None = None) -> None:
        """Give block ``j`` of rank ``i``'s sendbuf to rank ``j`` as block ``i``.

        Args:
            sendbuf: ``nranks`` blocks, or ``MPI.IN_PLACE`` when recvbuf holds them.
            recvbuf: ``nranks`` blocks.
            algorithm, segment: See the class.
        """
        context = self._context
        arguments = (sendbuf, recvbuf)
        key = ("Alltoall", algorithm, segment)
        if not context.repeat(key, sendbuf, recvbuf, arguments):
            context.check()
            call = movements.alltoall(sendbuf, recvbuf, context.rank, context.nranks)
            context.execute(call, key, arguments, sendbuf, recvbuf)

    def Alltoallv(self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, segment: int | str | None = None) -> None:
        """`Alltoall` of blocks that differ in size; each rank gives its own counts and displacements."""
        context = self._context
        context.check()
        call = movements.alltoallv(sendbuf, recvbuf, context.rank, context.nranks)
        context.execute(call, ("Alltoallv", None, algorithm, segment), (sendbuf, recvbuf))
