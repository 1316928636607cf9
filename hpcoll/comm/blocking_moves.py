"""The blocking upper-case collectives that combine nothing, with mpi4py's signatures: as `hpcoll.comm.blocking`."""

from typing import Any

from mpi4py import MPI

from hpcoll.comm.arguments.timeout import Time, limit_of
from hpcoll.comm.blocking import Name, Nbytes
from hpcoll.comm.context.attach import WithContext
from hpcoll.runtime.engine.entry import run_cached

_IN_PLACE = MPI.IN_PLACE


class BlockingMoves(WithContext):
    """An intracommunicator whose blocking collectives that move data, and whose barriers, run on hpcoll."""

    def Barrier(self, *, algorithm: Name = None, segment: Nbytes = None, timeout: Time = None) -> None:
        """Return when every rank has called it."""
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context)
        key = "Barrier" if algorithm is None and segment is None else ("Barrier", 0, algorithm, segment)
        status = run_cached(context.tables[key], _IN_PLACE, context.token, None)
        if status:
            context.run(status, key, (), _IN_PLACE, context.token, limit_s=timeout)

    def Bcast(
        self, buf: Any, root: int = 0, *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None
    ) -> None:
        """Copy the root's buffer to all ranks.

        Args:
            buf: Equally many bytes on all ranks; may be read-only at the root.
            root: Equal on all ranks.
            algorithm, segment, timeout: See the class.
        """
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context)
        key = "Bcast" if root == 0 and algorithm is None and segment is None else ("Bcast", root, algorithm, segment)
        status = run_cached(context.tables[key], _IN_PLACE, buf, None)
        if status:
            context.run(status, key, (buf, root), _IN_PLACE, buf, stream=stream, limit_s=timeout)

    def Allgather(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None
    ) -> None:
        """Give every rank the blocks of all.

        Args:
            sendbuf: One block, or ``MPI.IN_PLACE`` when it already lies in its place in recvbuf.
            recvbuf: ``nranks`` blocks.
            algorithm, segment, timeout: See the class.
        """
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context)
        key = "Allgather" if algorithm is None and segment is None else ("Allgather", 0, algorithm, segment)
        status = run_cached(context.tables[key], sendbuf, recvbuf, None)
        if status:
            context.run(status, key, (sendbuf, recvbuf), sendbuf, recvbuf, stream=stream, limit_s=timeout)

    def Allgatherv(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None
    ) -> None:
        """`Allgather` of blocks that differ in size: recvbuf is ``[array, counts, displs, type]``, equal counts on all ranks."""
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context)
        key = "Allgatherv" if algorithm is None and segment is None else ("Allgatherv", 0, algorithm, segment)
        status = run_cached(context.tables[key], sendbuf, recvbuf, None)
        if status:
            context.run(status, key, (sendbuf, recvbuf), sendbuf, recvbuf, stream=stream, limit_s=timeout)

    def Gather(
        self, sendbuf: Any, recvbuf: Any, root: int = 0,
        *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None,
    ) -> None:  # fmt: skip
        """Give the root the blocks of all.

        Args:
            sendbuf: One block; at the root also ``MPI.IN_PLACE``.
            recvbuf: ``nranks`` blocks at the root; ignored elsewhere.
            root, algorithm, segment, timeout: As in `Bcast`.
        """
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context)
        send, recv = (sendbuf, recvbuf) if context.rank == root else (_IN_PLACE, sendbuf)
        key = "Gather" if root == 0 and algorithm is None and segment is None else ("Gather", root, algorithm, segment)
        status = run_cached(context.tables[key], send, recv, None)
        if status:
            context.run(status, key, (sendbuf, recvbuf, root), send, recv, stream=stream, limit_s=timeout)

    def Gatherv(
        self, sendbuf: Any, recvbuf: Any, root: int = 0,
        *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None,
    ) -> None:  # fmt: skip
        """`Gather` of blocks that differ in size; counts and displacements are the root's."""
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context)
        key = "Gatherv" if root == 0 and algorithm is None and segment is None else ("Gatherv", root, algorithm, segment)
        status = run_cached(context.tables[key], sendbuf, recvbuf, None)
        if status:
            context.run(status, key, (sendbuf, recvbuf, root), sendbuf, recvbuf, stream=stream, limit_s=timeout)

    def Scatter(
        self, sendbuf: Any, recvbuf: Any, root: int = 0,
        *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None,
    ) -> None:  # fmt: skip
        """Give block ``r`` of the root's sendbuf to rank ``r``.

        Args:
            sendbuf: ``nranks`` blocks at the root; ignored elsewhere.
            recvbuf: One block; at the root also ``MPI.IN_PLACE``.
            root, algorithm, segment, timeout: As in `Bcast`.
        """
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context)
        send, recv = (sendbuf, recvbuf) if context.rank == root else (_IN_PLACE, recvbuf)
        if recv is _IN_PLACE:
            send, recv = _IN_PLACE, sendbuf
        key = "Scatter" if root == 0 and algorithm is None and segment is None else ("Scatter", root, algorithm, segment)
        status = run_cached(context.tables[key], send, recv, None)
        if status:
            context.run(status, key, (sendbuf, recvbuf, root), send, recv, stream=stream, limit_s=timeout)

    def Scatterv(
        self, sendbuf: Any, recvbuf: Any, root: int = 0,
        *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None,
    ) -> None:  # fmt: skip
        """`Scatter` of blocks that differ in size; counts and displacements are the root's."""
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context)
        key = "Scatterv" if root == 0 and algorithm is None and segment is None else ("Scatterv", root, algorithm, segment)
        status = run_cached(context.tables[key], sendbuf, recvbuf, None)
        if status:
            context.run(status, key, (sendbuf, recvbuf, root), sendbuf, recvbuf, stream=stream, limit_s=timeout)

    def Alltoall(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None
    ) -> None:
        """Give block ``j`` of rank ``i``'s sendbuf to rank ``j`` as block ``i``.

        Args:
            sendbuf: ``nranks`` blocks, or ``MPI.IN_PLACE`` when recvbuf holds them.
            recvbuf: ``nranks`` blocks.
            algorithm, segment, timeout: See the class.
        """
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context)
        key = "Alltoall" if algorithm is None and segment is None else ("Alltoall", 0, algorithm, segment)
        status = run_cached(context.tables[key], sendbuf, recvbuf, None)
        if status:
            context.run(status, key, (sendbuf, recvbuf), sendbuf, recvbuf, stream=stream, limit_s=timeout)

    def Alltoallv(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: Name = None, segment: Nbytes = None, stream: Any = None, timeout: Time = None
    ) -> None:
        """`Alltoall` of blocks that differ in size; each rank gives its own counts and displacements."""
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context)
        key = "Alltoallv" if algorithm is None and segment is None else ("Alltoallv", 0, algorithm, segment)
        status = run_cached(context.tables[key], sendbuf, recvbuf, None)
        if status:
            context.run(status, key, (sendbuf, recvbuf), sendbuf, recvbuf, stream=stream, limit_s=timeout)
