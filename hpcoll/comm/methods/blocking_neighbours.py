"""The neighbourhood collectives with mpi4py's signatures, blocking, non-blocking and persistent: all alike but for their buffers."""

from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from hpcoll.comm.arguments.call import Time
from hpcoll.comm.context.attach import WithContext
from hpcoll.comm.methods.blocking_shapes import collective
from hpcoll.comm.methods.nonblocking import beginning, persistent
from hpcoll.comm.objects.neighbours import exchanged
from hpcoll.comm.status.regions import tagged

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from hpcoll.comm.methods.keywords import Keywords


class BlockingNeighbours(WithContext, MPI.Topocomm):
    """A communicator with a topology, whose blocking neighbourhood collectives run on hpcoll."""

    @collective
    def Neighbor_allgather(self, sendbuf: Any, recvbuf: Any, **keywords: "Unpack[Keywords]") -> None:
        """Give this rank's block to each neighbour; errors as in `Allreduce`.

        Args:
            sendbuf: One block.
            recvbuf: A block from each neighbour, of equally many bytes.
            **keywords: `Keywords`.
        """

    @collective
    def Neighbor_allgatherv(self, sendbuf: Any, recvbuf: Any, **keywords: "Unpack[Keywords]") -> None:
        """Give this rank's block to each neighbour, where blocks have sizes of their own; errors as in `Allreduce`.

        Args:
            sendbuf: One block.
            recvbuf: ``[array, counts, displs, type]``: elements and displacement of the block from each neighbour.
            **keywords: `Keywords`.
        """

    @collective
    def Neighbor_alltoall(self, sendbuf: Any, recvbuf: Any, **keywords: "Unpack[Keywords]") -> None:
        """Give each neighbour a block of its own; errors as in `Allreduce`.

        Args:
            sendbuf: A block for each neighbour.
            recvbuf: A block from each neighbour, of equally many bytes.
            **keywords: `Keywords`.
        """

    @collective
    def Neighbor_alltoallv(self, sendbuf: Any, recvbuf: Any, **keywords: "Unpack[Keywords]") -> None:
        """Give each neighbour a block of its own, with sizes of their own; errors as in `Allreduce`.

        Args:
            sendbuf: ``[array, counts, displs, type]``: elements and displacement of the block for each neighbour.
            recvbuf: ``[array, counts, displs, type]``, likewise, of the block from each neighbour.
            **keywords: `Keywords`.
        """

    @collective
    def Neighbor_alltoallw(self, sendbuf: Any, recvbuf: Any, **keywords: "Unpack[Keywords]") -> None:
        """Give each neighbour a block of its own, with datatypes of their own; errors as in `Allreduce`.

        Args:
            sendbuf: ``[array, counts, displs, types]``: elements, displacement in bytes, and datatype of the block for each neighbour.
            recvbuf: ``[array, counts, displs, types]``, likewise, of the block from each neighbour.
            **keywords: `Keywords`.
        """

    def neighbor_allgather(self, sendobj: Any, *, timeout: Time = None, tag: str | None = None) -> list[Any]:
        """Return an object from each neighbour, in their order, None for those behind an open edge.

        Args:
            sendobj: Any object that `mpi4py.MPI.pickle` takes.
            timeout: Seconds, or text such as ``"5m"``; None: what ``HPCOLL_TIMEOUT`` says.
            tag: Name of the call, as of a `region` around it alone; None: none.

        Raises:
            ArgumentError: A neighbour's object cannot be pickled; that rank raises the error itself.
            MismatchError, PeerFailed, CollectiveTimeout, TransportError: As in `Allreduce`.
        """
        if tag is not None:
            return tagged(BlockingNeighbours.neighbor_allgather, locals())
        return exchanged(self, "neighbor_allgather", lambda: [sendobj], 1, timeout)

    def neighbor_alltoall(self, sendobj: Any, *, timeout: Time = None, tag: str | None = None) -> list[Any]:
        """Return what each neighbour sends to this rank; arguments and errors as of `neighbor_allgather`.

        Args:
            sendobj: An object for each neighbour, in their order; None: that many None.
            timeout: As in `neighbor_allgather`.
            tag: As in `neighbor_allgather`.

        Raises:
            ValueError: There are more or fewer objects than neighbours.
        """
        if tag is not None:
            return tagged(BlockingNeighbours.neighbor_alltoall, locals())
        nsent = self.outdegree

        def objects() -> list[Any]:
            found = [None] * nsent if sendobj is None else list(sendobj)
            if len(found) != nsent:
                raise ValueError(f"expecting {nsent} items, got {len(found)}")
            return found

        return exchanged(self, "neighbor_alltoall", objects, nsent, timeout)


class NeighboursInFlight:
    """Neighbourhood collectives that may be in flight while the program goes on, and those that are planned once."""

    Ineighbor_allgather = beginning(BlockingNeighbours.Neighbor_allgather)
    Ineighbor_allgatherv = beginning(BlockingNeighbours.Neighbor_allgatherv)
    Ineighbor_alltoall = beginning(BlockingNeighbours.Neighbor_alltoall)
    Ineighbor_alltoallv = beginning(BlockingNeighbours.Neighbor_alltoallv)
    Ineighbor_alltoallw = beginning(BlockingNeighbours.Neighbor_alltoallw)
    Neighbor_allgather_init = persistent(BlockingNeighbours.Neighbor_allgather)
    Neighbor_allgatherv_init = persistent(BlockingNeighbours.Neighbor_allgatherv)
    Neighbor_alltoall_init = persistent(BlockingNeighbours.Neighbor_alltoall)
    Neighbor_alltoallv_init = persistent(BlockingNeighbours.Neighbor_alltoallv)
    Neighbor_alltoallw_init = persistent(BlockingNeighbours.Neighbor_alltoallw)


class Neighbours(NeighboursInFlight, BlockingNeighbours):
    """A communicator with a topology, whose neighbourhood collectives run on hpcoll.

    Blocks are in the order of neighbours that the topology has, and there is one for each, also for those behind an open edge of a grid:
    these are neither read nor written. A rank may be a neighbour several times, and its own.
    """
