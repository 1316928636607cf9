"""The blocking upper-case collectives, with mpi4py's signatures: arguments and docstrings of each.

The decorator makes the methods (`hpcoll.comm.methods.blocking_shapes.collective`).
"""

from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from hpcoll.comm.arguments.call import Time
from hpcoll.comm.context.attach import WithContext
from hpcoll.comm.methods.blocking_shapes import collective
from hpcoll.comm.methods.keywords import Op

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from hpcoll.comm.methods.keywords import BarrierKeywords, Keywords, ReductionKeywords


class Blocking(WithContext):
    """An intracommunicator whose blocking collectives run on hpcoll."""

    @collective
    def Allreduce(
        self, sendbuf: Any, recvbuf: Any, op: Op = MPI.SUM, **keywords: "Unpack[ReductionKeywords]"
    ) -> None:
        """Combine every rank's sendbuf and give the result to all ranks.

        Args:
            sendbuf: ``count`` elements, or ``MPI.IN_PLACE`` when recvbuf holds the contribution.
            recvbuf: ``count`` elements of the same type.
            op: Operator, equal on all ranks: an ``MPI.Op`` or a `hpcoll.ReduceOp`.
            **keywords: `ReductionKeywords`.

        With ``order="rank"`` contributions are combined by one expression in rank order, the canonical one, whatever algorithm,
        message size, placement or kind of memory. Operators and element types that only the MPI library has are gathered first then,
        and take memory for all ranks' contributions.

        Raises:
            ArgumentError: Wrong buffer, operator, root or keyword; raised before any message leaves.
            KernelError: The operator does not compile for the element type.
            MismatchError: Ranks have made different calls; raised on all ranks, as the next two are.
            PeerFailed: A rank has ended or called MPI_Abort.
            CollectiveTimeout: The call has not ended within ``timeout``.
            TransportError: The MPI library failed; `DeviceError`: the CUDA driver failed.
        """

    @collective
    def Reduce(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Op = MPI.SUM,
        root: int = 0,
        **keywords: "Unpack[ReductionKeywords]",
    ) -> None:
        """Combine every rank's sendbuf and give the result to the root; errors as in `Allreduce`.

        Args:
            sendbuf: ``count`` elements; at the root also ``MPI.IN_PLACE``, when recvbuf holds its contribution.
            recvbuf: ``count`` elements of the same type at the root; ignored elsewhere.
            op: Operator, as in `Allreduce`.
            root: Rank that gets the result, equal on all ranks.
            **keywords: `ReductionKeywords`.
        """

    @collective
    def Reduce_scatter_block(
        self, sendbuf: Any, recvbuf: Any, op: Op = MPI.SUM, **keywords: "Unpack[ReductionKeywords]"
    ) -> None:
        """Combine every rank's sendbuf and give block ``r`` of the result to rank ``r``; errors as in `Allreduce`.

        Args:
            sendbuf: ``nranks * count`` elements. With ``MPI.IN_PLACE`` recvbuf holds them, and gets the result at its start.
            recvbuf: ``count`` elements of the same type.
            op: Operator, as in `Allreduce`.
            **keywords: `ReductionKeywords`.
        """

    @collective
    def Reduce_scatter(
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Any = None,
        op: Op = MPI.SUM,
        **keywords: "Unpack[ReductionKeywords]",
    ) -> None:
        """Combine every rank's sendbuf and give block ``r`` of the result, of a size of its own, to rank ``r``; errors as in `Allreduce`.

        Args:
            sendbuf: ``sum(recvcounts)`` elements. With ``MPI.IN_PLACE`` recvbuf holds them, and gets the result at its start.
            recvbuf: ``recvcounts[rank]`` elements of the same type.
            recvcounts: Elements of each rank's block, equal on all ranks; None: every rank tells the size of its recvbuf.
            op: Operator, as in `Allreduce`.
            **keywords: `ReductionKeywords`.
        """

    @collective
    def Scan(
        self, sendbuf: Any, recvbuf: Any, op: Op = MPI.SUM, **keywords: "Unpack[ReductionKeywords]"
    ) -> None:
        """Combine the sendbufs of ranks ``0`` to ``r`` for rank ``r``; errors as in `Allreduce`.

        Args:
            sendbuf: ``count`` elements, or ``MPI.IN_PLACE`` when recvbuf holds the contribution.
            recvbuf: ``count`` elements of the same type.
            op: Operator, as in `Allreduce`.
            **keywords: `ReductionKeywords`.
        """

    @collective
    def Exscan(
        self, sendbuf: Any, recvbuf: Any, op: Op = MPI.SUM, **keywords: "Unpack[ReductionKeywords]"
    ) -> None:
        """Combine the sendbufs of ranks ``0`` to ``r - 1`` for rank ``r``; errors as in `Allreduce`.

        Args:
            sendbuf: ``count`` elements, or ``MPI.IN_PLACE`` when recvbuf holds the contribution.
            recvbuf: ``count`` elements of the same type; that of rank 0 stays as it is.
            op: Operator, as in `Allreduce`.
            **keywords: `ReductionKeywords`.
        """

    @collective
    def Bcast(self, buf: Any, root: int = 0, **keywords: "Unpack[Keywords]") -> None:
        """Copy the root's buffer to all ranks; errors as in `Allreduce`.

        Args:
            buf: Equally many bytes on all ranks: read at the root, where it may be read-only, and written elsewhere.
            root: Rank whose buffer is copied, equal on all ranks.
            **keywords: `Keywords`.
        """

    @collective
    def Allgather(self, sendbuf: Any, recvbuf: Any, **keywords: "Unpack[Keywords]") -> None:
        """Give every rank the blocks of all ranks; errors as in `Allreduce`.

        Args:
            sendbuf: One block, or ``MPI.IN_PLACE`` when it already lies in its place in recvbuf.
            recvbuf: ``nranks`` blocks of equally many bytes, ordered by rank.
            **keywords: `Keywords`.
        """

    @collective
    def Allgatherv(self, sendbuf: Any, recvbuf: Any, **keywords: "Unpack[Keywords]") -> None:
        """Give every rank the blocks of all ranks, each of a size of its own; errors as in `Allreduce`.

        Args:
            sendbuf: One block, or ``MPI.IN_PLACE`` when it already lies in its place in recvbuf.
            recvbuf: ``[array, counts, displs, type]``: elements and displacement of each rank's block; counts are equal on all ranks.
            **keywords: `Keywords`.
        """

    @collective
    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0, **keywords: "Unpack[Keywords]") -> None:
        """Give the root the blocks of all ranks; errors as in `Allreduce`.

        Args:
            sendbuf: One block; at the root also ``MPI.IN_PLACE``, when it already lies in its place in recvbuf.
            recvbuf: ``nranks`` blocks of equally many bytes at the root; ignored elsewhere.
            root: Rank that gets the blocks, equal on all ranks.
            **keywords: `Keywords`.
        """

    @collective
    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0, **keywords: "Unpack[Keywords]") -> None:
        """Give the root the blocks of all ranks, each of a size of its own; errors as in `Allreduce`.

        Args:
            sendbuf: One block; at the root also ``MPI.IN_PLACE``, when it already lies in its place in recvbuf.
            recvbuf: ``[array, counts, displs, type]`` at the root: elements and displacement of each rank's block; ignored elsewhere.
            root: Rank that gets the blocks, equal on all ranks.
            **keywords: `Keywords`.
        """

    @collective
    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0, **keywords: "Unpack[Keywords]") -> None:
        """Give block ``r`` of the root's sendbuf to rank ``r``; errors as in `Allreduce`.

        Args:
            sendbuf: ``nranks`` blocks of equally many bytes at the root; ignored elsewhere.
            recvbuf: One block; at the root also ``MPI.IN_PLACE``, when its block may stay where it is.
            root: Rank that has the blocks, equal on all ranks.
            **keywords: `Keywords`.
        """

    @collective
    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0, **keywords: "Unpack[Keywords]") -> None:
        """Give block ``r`` of the root's sendbuf, of a size of its own, to rank ``r``; errors as in `Allreduce`.

        Args:
            sendbuf: ``[array, counts, displs, type]`` at the root: elements and displacement of each rank's block; ignored elsewhere.
            recvbuf: One block; at the root also ``MPI.IN_PLACE``, when its block may stay where it is.
            root: Rank that has the blocks, equal on all ranks.
            **keywords: `Keywords`.
        """

    @collective
    def Alltoall(self, sendbuf: Any, recvbuf: Any, **keywords: "Unpack[Keywords]") -> None:
        """Give block ``j`` of rank ``i``'s sendbuf to rank ``j``, as block ``i`` of its recvbuf; errors as in `Allreduce`.

        Args:
            sendbuf: ``nranks`` blocks, or ``MPI.IN_PLACE`` when recvbuf holds them.
            recvbuf: ``nranks`` blocks of equally many bytes.
            **keywords: `Keywords`.
        """

    @collective
    def Alltoallv(self, sendbuf: Any, recvbuf: Any, **keywords: "Unpack[Keywords]") -> None:
        """Give block ``j`` of rank ``i``'s sendbuf to rank ``j``, with sizes of their own; errors as in `Allreduce`.

        Args:
            sendbuf: ``[array, counts, displs, type]``: elements and displacement of the block for each rank, or ``MPI.IN_PLACE``
                when recvbuf holds them.
            recvbuf: ``[array, counts, displs, type]``, likewise, of the block from each rank.
            **keywords: `Keywords`.
        """

    @collective
    def Alltoallw(self, sendbuf: Any, recvbuf: Any, **keywords: "Unpack[Keywords]") -> None:
        """Give block ``j`` of rank ``i``'s sendbuf to rank ``j``, with datatypes of their own; errors as in `Allreduce`.

        Args:
            sendbuf: ``[array, counts, displs, types]``: elements, displacement in bytes, and datatype of the block for each rank, or
                ``MPI.IN_PLACE`` when recvbuf holds them.
            recvbuf: ``[array, counts, displs, types]``, likewise, of the block from each rank.
            **keywords: `Keywords`.
        """

    @collective
    def Barrier(self, **keywords: "Unpack[BarrierKeywords]") -> None:
        """Return when every rank has called it; errors as in `Allreduce`.

        Args:
            **keywords: `BarrierKeywords`.
        """

    def barrier(self, *, timeout: Time = None, tag: str | None = None) -> None:
        """Return when every rank has called it, as `Barrier`."""
        if timeout is None and tag is None:
            Blocking.Barrier(self)
        else:
            Blocking.Barrier(self, timeout=timeout, tag=tag)
