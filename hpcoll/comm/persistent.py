"""The persistent upper-case collectives with mpi4py's signatures."""

from typing import Any

from mpi4py import MPI

from hpcoll.comm.arguments.timeout import Time
from hpcoll.comm.blocking import Name, Nbytes, Op
from hpcoll.comm.context.attach import WithContext
from hpcoll.comm.context.start import make_persistent


class PersistentCollectives(WithContext):
    """An intracommunicator whose collectives can be planned once: ``Start()`` and ``Wait()`` of what these methods return run them.

    Making one is collective. Arguments and errors are those of the blocking method of the name.
    """

    def Allreduce_init(
        self, sendbuf: Any, recvbuf: Any, op: Op = MPI.SUM, info: MPI.Info = MPI.INFO_NULL,
        *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None,
    ) -> MPI.Prequest:  # fmt: skip
        """`Blocking.Allreduce`, planned once; ``info`` is ignored."""
        return make_persistent(self._context, "Allreduce", (sendbuf, recvbuf, op), algorithm, segment, stream, timeout)

    def Reduce_init(
        self, sendbuf: Any, recvbuf: Any, op: Op = MPI.SUM, root: int = 0, info: MPI.Info = MPI.INFO_NULL,
        *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None,
    ) -> MPI.Prequest:  # fmt: skip
        """`Blocking.Reduce`, planned once; ``info`` is ignored."""
        return make_persistent(self._context, "Reduce", (sendbuf, recvbuf, op, root), algorithm, segment, stream, timeout)

    def Reduce_scatter_block_init(
        self, sendbuf: Any, recvbuf: Any, op: Op = MPI.SUM, info: MPI.Info = MPI.INFO_NULL,
        *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None,
    ) -> MPI.Prequest:  # fmt: skip
        """`Blocking.Reduce_scatter_block`, planned once; ``info`` is ignored."""
        return make_persistent(self._context, "Reduce_scatter_block", (sendbuf, recvbuf, op), algorithm, segment, stream, timeout)

    def Reduce_scatter_init(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: Op = MPI.SUM, info: MPI.Info = MPI.INFO_NULL,
        *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None,
    ) -> MPI.Prequest:  # fmt: skip
        """`Blocking.Reduce_scatter`, planned once; ``info`` is ignored."""
        return make_persistent(self._context, "Reduce_scatter", (sendbuf, recvbuf, recvcounts, op), algorithm, segment, stream, timeout)

    def Scan_init(
        self, sendbuf: Any, recvbuf: Any, op: Op = MPI.SUM, info: MPI.Info = MPI.INFO_NULL,
        *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None,
    ) -> MPI.Prequest:  # fmt: skip
        """`Blocking.Scan`, planned once; ``info`` is ignored."""
        return make_persistent(self._context, "Scan", (sendbuf, recvbuf, op), algorithm, segment, stream, timeout)

    def Exscan_init(
        self, sendbuf: Any, recvbuf: Any, op: Op = MPI.SUM, info: MPI.Info = MPI.INFO_NULL,
        *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None,
    ) -> MPI.Prequest:  # fmt: skip
        """`Blocking.Exscan`, planned once; ``info`` is ignored."""
        return make_persistent(self._context, "Exscan", (sendbuf, recvbuf, op), algorithm, segment, stream, timeout)

    def Barrier_init(
        self, info: MPI.Info = MPI.INFO_NULL, *, algorithm: Name = None, segment: Nbytes = None, timeout: Time = None
    ) -> MPI.Prequest:
        """`Blocking.Barrier`, planned once; ``info`` is ignored."""
        return make_persistent(self._context, "Barrier", (), algorithm, segment, None, timeout)

    def Bcast_init(
        self, buf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL,
        *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None,
    ) -> MPI.Prequest:  # fmt: skip
        """`Blocking.Bcast`, planned once; ``info`` is ignored."""
        return make_persistent(self._context, "Bcast", (buf, root), algorithm, segment, stream, timeout)

    def Allgather_init(
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL,
        *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None,
    ) -> MPI.Prequest:  # fmt: skip
        """`Blocking.Allgather`, planned once; ``info`` is ignored."""
        return make_persistent(self._context, "Allgather", (sendbuf, recvbuf), algorithm, segment, stream, timeout)

    def Allgatherv_init(
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL,
        *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None,
    ) -> MPI.Prequest:  # fmt: skip
        """`Blocking.Allgatherv`, planned once; ``info`` is ignored."""
        return make_persistent(self._context, "Allgatherv", (sendbuf, recvbuf), algorithm, segment, stream, timeout)

    def Gather_init(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL,
        *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None,
    ) -> MPI.Prequest:  # fmt: skip
        """`Blocking.Gather`, planned once; ``info`` is ignored."""
        return make_persistent(self._context, "Gather", (sendbuf, recvbuf, root), algorithm, segment, stream, timeout)

    def Gatherv_init(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL,
        *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None,
    ) -> MPI.Prequest:  # fmt: skip
        """`Blocking.Gatherv`, planned once; ``info`` is ignored."""
        return make_persistent(self._context, "Gatherv", (sendbuf, recvbuf, root), algorithm, segment, stream, timeout)

    def Scatter_init(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL,
        *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None,
    ) -> MPI.Prequest:  # fmt: skip
        """`Blocking.Scatter`, planned once; ``info`` is ignored."""
        return make_persistent(self._context, "Scatter", (sendbuf, recvbuf, root), algorithm, segment, stream, timeout)

    def Scatterv_init(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL,
        *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None,
    ) -> MPI.Prequest:  # fmt: skip
        """`Blocking.Scatterv`, planned once; ``info`` is ignored."""
        return make_persistent(self._context, "Scatterv", (sendbuf, recvbuf, root), algorithm, segment, stream, timeout)

    def Alltoall_init(
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL,
        *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None,
    ) -> MPI.Prequest:  # fmt: skip
        """`Blocking.Alltoall`, planned once; ``info`` is ignored."""
        return make_persistent(self._context, "Alltoall", (sendbuf, recvbuf), algorithm, segment, stream, timeout)

    def Alltoallv_init(
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL,
        *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None,
    ) -> MPI.Prequest:  # fmt: skip
        """`Blocking.Alltoallv`, planned once; ``info`` is ignored."""
        return make_persistent(self._context, "Alltoallv", (sendbuf, recvbuf), algorithm, segment, stream, timeout)
