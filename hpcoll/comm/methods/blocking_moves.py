"""The blocking upper-case collectives that move data, with mpi4py's signatures: as `hpcoll.comm.methods.blocking`."""

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from hpcoll.base.keywords import quick_keywords
from hpcoll.comm.arguments.call import Time, limit_of
from hpcoll.comm.context.attach import WithContext
from hpcoll.comm.methods.blocking import Name, Nbytes
from hpcoll.comm.status.regions import regions, tagged
from hpcoll.runtime.engine.entry import run_cached

_IN_PLACE = MPI.IN_PLACE


_TEXT = """{}; errors as in `Allreduce`.

Args:
    sendbuf: {}
    recvbuf: {}
    algorithm: Name from ``hpcoll.algorithms(...)``, or ``"native"``; None: chosen per call.
    segment: Bytes per segment, or text such as ``"256K"``; None: chosen per call.
    stream: CUDA stream that orders the work on GPU arrays, or its handle; None: each array's own.
    timeout: Seconds, or text such as ``"5m"``; None: what ``HPCOLL_TIMEOUT`` says.
    tag: Name of the call, as of a `region` around it alone; None: none.
"""


def between_buffers(qualified: str, what: str, sends: str, receives: str) -> Callable[..., None]:
    """Return a blocking method that takes a buffer to send and one to receive.

    Arguments are its name, with its class, and the texts of its docstring.
    """
    name = qualified.rsplit(".", 1)[1]

    def run(
        self: WithContext,
        sendbuf: Any,
        recvbuf: Any,
        *,
        algorithm: Name = None,
        segment: Nbytes = None,
        stream: Any = None,
        timeout: Time = None,
        tag: str | None = None,
    ) -> None:
        if tag is not None:
            with regions[tag]:
                return run(
                    self,
                    sendbuf,
                    recvbuf,
                    algorithm=algorithm,
                    segment=segment,
                    stream=stream,
                    timeout=timeout,
                )
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context.rank)
        key = name if algorithm is None and segment is None else (name, 0, algorithm, segment)
        status = run_cached(context.tables[key], sendbuf, recvbuf, None)
        if status:
            context.run(status, key, (sendbuf, recvbuf), sendbuf, recvbuf, stream=stream, limit_s=timeout)

    run.__name__, run.__qualname__, run.__doc__ = name, qualified, _TEXT.format(what, sends, receives)
    return run


@quick_keywords
class BlockingMoves(WithContext):
    """An intracommunicator whose blocking collectives that move data run on hpcoll."""

    def Bcast(
        self,
        buf: Any,
        root: int = 0,
        *,
        algorithm: Name = None,
        segment: Nbytes = None,
        stream: Any = None,
        timeout: Time = None,
        tag: str | None = None,
    ) -> None:
        """Copy the root's buffer to all ranks; errors as in `Allreduce`.

        Args:
            buf: Equally many bytes on all ranks: read at the root, where it may be read-only, and written elsewhere.
            root: Rank whose buffer is copied, equal on all ranks.
            algorithm: Name from ``hpcoll.algorithms(...)``, or ``"native"``; None: chosen per call.
            segment: Bytes per segment, or text such as ``"256K"``; None: chosen per call.
            stream: CUDA stream that orders the work on GPU arrays, or its handle; None: each array's own.
            timeout: Seconds, or text such as ``"5m"``; None: what ``HPCOLL_TIMEOUT`` says.
            tag: Name of the call, as of a `region` around it alone; None: none.
        """
        if tag is not None:
            return tagged(BlockingMoves.Bcast, locals())
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context.rank)
        key = (
            "Bcast"
            if root == 0 and algorithm is None and segment is None
            else ("Bcast", root, algorithm, segment)
        )
        status = run_cached(context.tables[key], _IN_PLACE, buf, None)
        if status:
            context.run(status, key, (buf, root), _IN_PLACE, buf, stream=stream, limit_s=timeout)

    def Allgather(
        self,
        sendbuf: Any,
        recvbuf: Any,
        *,
        algorithm: Name = None,
        segment: Nbytes = None,
        stream: Any = None,
        timeout: Time = None,
        tag: str | None = None,
    ) -> None:
        """Give every rank the blocks of all ranks; errors as in `Allreduce`.

        Args:
            sendbuf: One block, or ``MPI.IN_PLACE`` when it already lies in its place in recvbuf.
            recvbuf: ``nranks`` blocks of equally many bytes, ordered by rank.
            algorithm: Name from ``hpcoll.algorithms(...)``, or ``"native"``; None: chosen per call.
            segment: Bytes per segment, or text such as ``"256K"``; None: chosen per call.
            stream: CUDA stream that orders the work on GPU arrays, or its handle; None: each array's own.
            timeout: Seconds, or text such as ``"5m"``; None: what ``HPCOLL_TIMEOUT`` says.
            tag: Name of the call, as of a `region` around it alone; None: none.
        """
        if tag is not None:
            return tagged(BlockingMoves.Allgather, locals())
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context.rank)
        key = "Allgather" if algorithm is None and segment is None else ("Allgather", 0, algorithm, segment)
        status = run_cached(context.tables[key], sendbuf, recvbuf, None)
        if status:
            context.run(status, key, (sendbuf, recvbuf), sendbuf, recvbuf, stream=stream, limit_s=timeout)

    def Allgatherv(
        self,
        sendbuf: Any,
        recvbuf: Any,
        *,
        algorithm: Name = None,
        segment: Nbytes = None,
        stream: Any = None,
        timeout: Time = None,
        tag: str | None = None,
    ) -> None:
        """Give every rank the blocks of all ranks, each of a size of its own; errors as in `Allreduce`.

        Args:
            sendbuf: One block, or ``MPI.IN_PLACE`` when it already lies in its place in recvbuf.
            recvbuf: ``[array, counts, displs, type]``: elements and displacement of each rank's block; counts are equal on all ranks.
            algorithm: Name from ``hpcoll.algorithms(...)``, or ``"native"``; None: chosen per call.
            segment: Bytes per segment, or text such as ``"256K"``; None: chosen per call.
            stream: CUDA stream that orders the work on GPU arrays, or its handle; None: each array's own.
            timeout: Seconds, or text such as ``"5m"``; None: what ``HPCOLL_TIMEOUT`` says.
            tag: Name of the call, as of a `region` around it alone; None: none.
        """
        if tag is not None:
            return tagged(BlockingMoves.Allgatherv, locals())
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context.rank)
        key = "Allgatherv" if algorithm is None and segment is None else ("Allgatherv", 0, algorithm, segment)
        status = run_cached(context.tables[key], sendbuf, recvbuf, None)
        if status:
            context.run(status, key, (sendbuf, recvbuf), sendbuf, recvbuf, stream=stream, limit_s=timeout)

    def Gather(
        self,
        sendbuf: Any,
        recvbuf: Any,
        root: int = 0,
        *,
        algorithm: Name = None,
        segment: Nbytes = None,
        stream: Any = None,
        timeout: Time = None,
        tag: str | None = None,
    ) -> None:
        """Give the root the blocks of all ranks; errors as in `Allreduce`.

        Args:
            sendbuf: One block; at the root also ``MPI.IN_PLACE``, when it already lies in its place in recvbuf.
            recvbuf: ``nranks`` blocks of equally many bytes at the root; ignored elsewhere.
            root: Rank that gets the blocks, equal on all ranks.
            algorithm: Name from ``hpcoll.algorithms(...)``, or ``"native"``; None: chosen per call.
            segment: Bytes per segment, or text such as ``"256K"``; None: chosen per call.
            stream: CUDA stream that orders the work on GPU arrays, or its handle; None: each array's own.
            timeout: Seconds, or text such as ``"5m"``; None: what ``HPCOLL_TIMEOUT`` says.
            tag: Name of the call, as of a `region` around it alone; None: none.
        """
        if tag is not None:
            return tagged(BlockingMoves.Gather, locals())
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context.rank)
        send, recv = (sendbuf, recvbuf) if context.rank == root else (_IN_PLACE, sendbuf)
        key = (
            "Gather"
            if root == 0 and algorithm is None and segment is None
            else ("Gather", root, algorithm, segment)
        )
        status = run_cached(context.tables[key], send, recv, None)
        if status:
            context.run(status, key, (sendbuf, recvbuf, root), send, recv, stream=stream, limit_s=timeout)

    def Gatherv(
        self,
        sendbuf: Any,
        recvbuf: Any,
        root: int = 0,
        *,
        algorithm: Name = None,
        segment: Nbytes = None,
        stream: Any = None,
        timeout: Time = None,
        tag: str | None = None,
    ) -> None:
        """Give the root the blocks of all ranks, each of a size of its own; errors as in `Allreduce`.

        Args:
            sendbuf: One block; at the root also ``MPI.IN_PLACE``, when it already lies in its place in recvbuf.
            recvbuf: ``[array, counts, displs, type]`` at the root: elements and displacement of each rank's block; ignored elsewhere.
            root: Rank that gets the blocks, equal on all ranks.
            algorithm: Name from ``hpcoll.algorithms(...)``, or ``"native"``; None: chosen per call.
            segment: Bytes per segment, or text such as ``"256K"``; None: chosen per call.
            stream: CUDA stream that orders the work on GPU arrays, or its handle; None: each array's own.
            timeout: Seconds, or text such as ``"5m"``; None: what ``HPCOLL_TIMEOUT`` says.
            tag: Name of the call, as of a `region` around it alone; None: none.
        """
        if tag is not None:
            return tagged(BlockingMoves.Gatherv, locals())
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context.rank)
        key = (
            "Gatherv"
            if root == 0 and algorithm is None and segment is None
            else ("Gatherv", root, algorithm, segment)
        )
        status = run_cached(context.tables[key], sendbuf, recvbuf, None)
        if status:
            context.run(
                status, key, (sendbuf, recvbuf, root), sendbuf, recvbuf, stream=stream, limit_s=timeout
            )

    def Scatter(
        self,
        sendbuf: Any,
        recvbuf: Any,
        root: int = 0,
        *,
        algorithm: Name = None,
        segment: Nbytes = None,
        stream: Any = None,
        timeout: Time = None,
        tag: str | None = None,
    ) -> None:
        """Give block ``r`` of the root's sendbuf to rank ``r``; errors as in `Allreduce`.

        Args:
            sendbuf: ``nranks`` blocks of equally many bytes at the root; ignored elsewhere.
            recvbuf: One block; at the root also ``MPI.IN_PLACE``, when its block may stay where it is.
            root: Rank that has the blocks, equal on all ranks.
            algorithm: Name from ``hpcoll.algorithms(...)``, or ``"native"``; None: chosen per call.
            segment: Bytes per segment, or text such as ``"256K"``; None: chosen per call.
            stream: CUDA stream that orders the work on GPU arrays, or its handle; None: each array's own.
            timeout: Seconds, or text such as ``"5m"``; None: what ``HPCOLL_TIMEOUT`` says.
            tag: Name of the call, as of a `region` around it alone; None: none.
        """
        if tag is not None:
            return tagged(BlockingMoves.Scatter, locals())
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context.rank)
        send, recv = (sendbuf, recvbuf) if context.rank == root else (_IN_PLACE, recvbuf)
        if recv is _IN_PLACE:
            send, recv = _IN_PLACE, sendbuf
        key = (
            "Scatter"
            if root == 0 and algorithm is None and segment is None
            else ("Scatter", root, algorithm, segment)
        )
        status = run_cached(context.tables[key], send, recv, None)
        if status:
            context.run(status, key, (sendbuf, recvbuf, root), send, recv, stream=stream, limit_s=timeout)

    def Scatterv(
        self,
        sendbuf: Any,
        recvbuf: Any,
        root: int = 0,
        *,
        algorithm: Name = None,
        segment: Nbytes = None,
        stream: Any = None,
        timeout: Time = None,
        tag: str | None = None,
    ) -> None:
        """Give block ``r`` of the root's sendbuf, of a size of its own, to rank ``r``; errors as in `Allreduce`.

        Args:
            sendbuf: ``[array, counts, displs, type]`` at the root: elements and displacement of each rank's block; ignored elsewhere.
            recvbuf: One block; at the root also ``MPI.IN_PLACE``, when its block may stay where it is.
            root: Rank that has the blocks, equal on all ranks.
            algorithm: Name from ``hpcoll.algorithms(...)``, or ``"native"``; None: chosen per call.
            segment: Bytes per segment, or text such as ``"256K"``; None: chosen per call.
            stream: CUDA stream that orders the work on GPU arrays, or its handle; None: each array's own.
            timeout: Seconds, or text such as ``"5m"``; None: what ``HPCOLL_TIMEOUT`` says.
            tag: Name of the call, as of a `region` around it alone; None: none.
        """
        if tag is not None:
            return tagged(BlockingMoves.Scatterv, locals())
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context.rank)
        key = (
            "Scatterv"
            if root == 0 and algorithm is None and segment is None
            else ("Scatterv", root, algorithm, segment)
        )
        status = run_cached(context.tables[key], sendbuf, recvbuf, None)
        if status:
            context.run(
                status, key, (sendbuf, recvbuf, root), sendbuf, recvbuf, stream=stream, limit_s=timeout
            )

    def Alltoall(
        self,
        sendbuf: Any,
        recvbuf: Any,
        *,
        algorithm: Name = None,
        segment: Nbytes = None,
        stream: Any = None,
        timeout: Time = None,
        tag: str | None = None,
    ) -> None:
        """Give block ``j`` of rank ``i``'s sendbuf to rank ``j``, as block ``i`` of its recvbuf; errors as in `Allreduce`.

        Args:
            sendbuf: ``nranks`` blocks, or ``MPI.IN_PLACE`` when recvbuf holds them.
            recvbuf: ``nranks`` blocks of equally many bytes.
            algorithm: Name from ``hpcoll.algorithms(...)``, or ``"native"``; None: chosen per call.
            segment: Bytes per segment, or text such as ``"256K"``; None: chosen per call.
            stream: CUDA stream that orders the work on GPU arrays, or its handle; None: each array's own.
            timeout: Seconds, or text such as ``"5m"``; None: what ``HPCOLL_TIMEOUT`` says.
            tag: Name of the call, as of a `region` around it alone; None: none.
        """
        if tag is not None:
            return tagged(BlockingMoves.Alltoall, locals())
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context.rank)
        key = "Alltoall" if algorithm is None and segment is None else ("Alltoall", 0, algorithm, segment)
        status = run_cached(context.tables[key], sendbuf, recvbuf, None)
        if status:
            context.run(status, key, (sendbuf, recvbuf), sendbuf, recvbuf, stream=stream, limit_s=timeout)

    def Alltoallv(
        self,
        sendbuf: Any,
        recvbuf: Any,
        *,
        algorithm: Name = None,
        segment: Nbytes = None,
        stream: Any = None,
        timeout: Time = None,
        tag: str | None = None,
    ) -> None:
        """Give block ``j`` of rank ``i``'s sendbuf to rank ``j``, with sizes of their own; errors as in `Allreduce`.

        Args:
            sendbuf: ``[array, counts, displs, type]``: elements and displacement of the block for each rank, or ``MPI.IN_PLACE``
                when recvbuf holds them.
            recvbuf: ``[array, counts, displs, type]``, likewise, of the block from each rank.
            algorithm: Name from ``hpcoll.algorithms(...)``, or ``"native"``; None: chosen per call.
            segment: Bytes per segment, or text such as ``"256K"``; None: chosen per call.
            stream: CUDA stream that orders the work on GPU arrays, or its handle; None: each array's own.
            timeout: Seconds, or text such as ``"5m"``; None: what ``HPCOLL_TIMEOUT`` says.
            tag: Name of the call, as of a `region` around it alone; None: none.
        """
        if tag is not None:
            return tagged(BlockingMoves.Alltoallv, locals())
        context = self._context
        if timeout is not None:
            timeout = limit_of(timeout, context.rank)
        key = "Alltoallv" if algorithm is None and segment is None else ("Alltoallv", 0, algorithm, segment)
        status = run_cached(context.tables[key], sendbuf, recvbuf, None)
        if status:
            context.run(status, key, (sendbuf, recvbuf), sendbuf, recvbuf, stream=stream, limit_s=timeout)

    Alltoallw = between_buffers(
        "BlockingMoves.Alltoallw",
        "Give block ``j`` of rank ``i``'s sendbuf to rank ``j``, with datatypes of their own",
        "``[array, counts, displs, types]``: elements, displacement in bytes, and datatype of the block for each rank, or\n"
        "        ``MPI.IN_PLACE`` when recvbuf holds them.",
        "``[array, counts, displs, types]``, likewise, of the block from each rank.",
    )
