"""The neighbourhood collectives with mpi4py's signatures, blocking, non-blocking and persistent: all alike but for their buffers."""

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from hpcoll.base.keywords import quick_keywords
from hpcoll.comm.arguments.call import Time
from hpcoll.comm.context.attach import WithContext
from hpcoll.comm.context.start import issue
from hpcoll.comm.methods.blocking import Name, Nbytes
from hpcoll.comm.methods.blocking_moves import between_buffers
from hpcoll.comm.methods.nonblocking import document, persistent
from hpcoll.comm.objects.neighbours import exchanged
from hpcoll.comm.status.regions import tagged


def _beginning(blocking: Callable[..., None]) -> Callable[..., MPI.Request]:
    """Return the method that begins a blocking one."""
    name = blocking.__name__

    def begin(
        self: WithContext,
        sendbuf: Any,
        recvbuf: Any,
        *,
        algorithm: Name = None,
        segment: Nbytes = None,
        stream: Any = None,
        timeout: Time = None,
        tag: str | None = None,
    ) -> MPI.Request:
        return issue(self, name, (sendbuf, recvbuf), algorithm, segment, stream, timeout, tag)

    begin.__name__, begin.__qualname__ = f"I{name.lower()}", f"Neighbours.I{name.lower()}"
    document(begin, blocking)
    return begin


@quick_keywords
class Neighbours(WithContext, MPI.Topocomm):
    """A communicator with a topology, whose neighbourhood collectives run on hpcoll.

    Blocks are in the order of neighbours that the topology has, and there is one for each, also for those behind an open edge of a grid:
    these are neither read nor written. A rank may be a neighbour several times, and its own.
    """

    Neighbor_allgather = between_buffers(
        "Neighbours.Neighbor_allgather",
        "Give this rank's block to each neighbour",
        "One block.",
        "A block from each neighbour, of equally many bytes.",
    )
    Neighbor_allgatherv = between_buffers(
        "Neighbours.Neighbor_allgatherv",
        "Give this rank's block to each neighbour, where blocks have sizes of their own",
        "One block.",
        "``[array, counts, displs, type]``: elements and displacement of the block from each neighbour.",
    )
    Neighbor_alltoall = between_buffers(
        "Neighbours.Neighbor_alltoall",
        "Give each neighbour a block of its own",
        "A block for each neighbour.",
        "A block from each neighbour, of equally many bytes.",
    )
    Neighbor_alltoallv = between_buffers(
        "Neighbours.Neighbor_alltoallv",
        "Give each neighbour a block of its own, with sizes of their own",
        "``[array, counts, displs, type]``: elements and displacement of the block for each neighbour.",
        "``[array, counts, displs, type]``, likewise, of the block from each neighbour.",
    )
    Neighbor_alltoallw = between_buffers(
        "Neighbours.Neighbor_alltoallw",
        "Give each neighbour a block of its own, with datatypes of their own",
        "``[array, counts, displs, types]``: elements, displacement in bytes, and datatype of the block for each neighbour.",
        "``[array, counts, displs, types]``, likewise, of the block from each neighbour.",
    )
    Ineighbor_allgather = _beginning(Neighbor_allgather)
    Ineighbor_allgatherv = _beginning(Neighbor_allgatherv)
    Ineighbor_alltoall = _beginning(Neighbor_alltoall)
    Ineighbor_alltoallv = _beginning(Neighbor_alltoallv)
    Ineighbor_alltoallw = _beginning(Neighbor_alltoallw)
    Neighbor_allgather_init = persistent(Neighbor_allgather)
    Neighbor_allgatherv_init = persistent(Neighbor_allgatherv)
    Neighbor_alltoall_init = persistent(Neighbor_alltoall)
    Neighbor_alltoallv_init = persistent(Neighbor_alltoallv)
    Neighbor_alltoallw_init = persistent(Neighbor_alltoallw)

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
            return tagged(Neighbours.neighbor_allgather, locals())
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
            return tagged(Neighbours.neighbor_alltoall, locals())
        nsent = self.outdegree

        def objects() -> list[Any]:
            found = [None] * nsent if sendobj is None else list(sendobj)
            if len(found) != nsent:
                raise ValueError(f"expecting {nsent} items, got {len(found)}")
            return found

        return exchanged(self, "neighbor_alltoall", objects, nsent, timeout)
