"""The non-blocking upper-case collectives with mpi4py's signatures."""

from typing import Any

from mpi4py import MPI

from hpcoll.comm.arguments.timeout import Time
from hpcoll.comm.blocking import Name, Nbytes, Op
from hpcoll.comm.context.attach import WithContext
from hpcoll.comm.context.start import issue


class NonBlocking(WithContext):
    """An intracommunicator whose collectives may be in flight while the program goes on.

    Arguments and errors are those of the blocking method of the name; the buffers belong to the collective until its request says that
    it is done. Requests are `requests.Request`, or the MPI library's own: where ``native`` runs, and for what has ended at once. All ranks
    must issue the calls of a communicator in the same order, as MPI demands.
    """

    def Iallreduce(
        self, sendbuf: Any, recvbuf: Any, op: Op = MPI.SUM,
        *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None,
    ) -> MPI.Request:  # fmt: skip
        """`Blocking.Allreduce` in flight."""
        return issue(self, "Allreduce", (sendbuf, recvbuf, op), algorithm, segment, stream, timeout)

    def Ireduce(
        self, sendbuf: Any, recvbuf: Any, op: Op = MPI.SUM, root: int = 0,
        *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None,
    ) -> MPI.Request:  # fmt: skip
        """`Blocking.Reduce` in flight."""
        return issue(self, "Reduce", (sendbuf, recvbuf, op, root), algorithm, segment, stream, timeout)

    def Ireduce_scatter_block(
        self, sendbuf: Any, recvbuf: Any, op: Op = MPI.SUM,
        *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None,
    ) -> MPI.Request:  # fmt: skip
        """`Blocking.Reduce_scatter_block` in flight."""
        return issue(self, "Reduce_scatter_block", (sendbuf, recvbuf, op), algorithm, segment, stream, timeout)

    def Ireduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: Op = MPI.SUM,
        *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None,
    ) -> MPI.Request:  # fmt: skip
        """`Blocking.Reduce_scatter` in flight."""
        return issue(self, "Reduce_scatter", (sendbuf, recvbuf, recvcounts, op), algorithm, segment, stream, timeout)

    def Iscan(
        self, sendbuf: Any, recvbuf: Any, op: Op = MPI.SUM,
        *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None,
    ) -> MPI.Request:  # fmt: skip
        """`Blocking.Scan` in flight."""
        return issue(self, "Scan", (sendbuf, recvbuf, op), algorithm, segment, stream, timeout)

    def Iexscan(
        self, sendbuf: Any, recvbuf: Any, op: Op = MPI.SUM,
        *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None,
    ) -> MPI.Request:  # fmt: skip
        """`Blocking.Exscan` in flight."""
        return issue(self, "Exscan", (sendbuf, recvbuf, op), algorithm, segment, stream, timeout)

    def Ibarrier(self, *, algorithm: Name = None, segment: Nbytes = None, timeout: Time = None) -> MPI.Request:
        """`Blocking.Barrier` in flight."""
        return issue(self, "Barrier", (), algorithm, segment, None, timeout)

    def Ibcast(
        self, buf: Any, root: int = 0, *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None
    ) -> MPI.Request:
        """`Blocking.Bcast` in flight."""
        return issue(self, "Bcast", (buf, root), algorithm, segment, stream, timeout)

    def Iallgather(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None
    ) -> MPI.Request:
        """`Blocking.Allgather` in flight."""
        return issue(self, "Allgather", (sendbuf, recvbuf), algorithm, segment, stream, timeout)

    def Iallgatherv(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None
    ) -> MPI.Request:
        """`Blocking.Allgatherv` in flight."""
        return issue(self, "Allgatherv", (sendbuf, recvbuf), algorithm, segment, stream, timeout)

    def Igather(
        self, sendbuf: Any, recvbuf: Any, root: int = 0,
        *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None,
    ) -> MPI.Request:  # fmt: skip
        """`Blocking.Gather` in flight."""
        return issue(self, "Gather", (sendbuf, recvbuf, root), algorithm, segment, stream, timeout)

    def Igatherv(
        self, sendbuf: Any, recvbuf: Any, root: int = 0,
        *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None,
    ) -> MPI.Request:  # fmt: skip
        """`Blocking.Gatherv` in flight."""
        return issue(self, "Gatherv", (sendbuf, recvbuf, root), algorithm, segment, stream, timeout)

    def Iscatter(
        self, sendbuf: Any, recvbuf: Any, root: int = 0,
        *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None,
    ) -> MPI.Request:  # fmt: skip
        """`Blocking.Scatter` in flight."""
        return issue(self, "Scatter", (sendbuf, recvbuf, root), algorithm, segment, stream, timeout)

    def Iscatterv(
        self, sendbuf: Any, recvbuf: Any, root: int = 0,
        *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None,
    ) -> MPI.Request:  # fmt: skip
        """`Blocking.Scatterv` in flight."""
        return issue(self, "Scatterv", (sendbuf, recvbuf, root), algorithm, segment, stream, timeout)

    def Ialltoall(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None
    ) -> MPI.Request:
        """`Blocking.Alltoall` in flight."""
        return issue(self, "Alltoall", (sendbuf, recvbuf), algorithm, segment, stream, timeout)

    def Ialltoallv(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None
    ) -> MPI.Request:
        """`Blocking.Alltoallv` in flight."""
        return issue(self, "Alltoallv", (sendbuf, recvbuf), algorithm, segment, stream, timeout)
