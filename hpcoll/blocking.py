"""The blocking upper-case collectives with mpi4py's signatures. Floor 7.

Each method describes its call (`hpcoll.reductions`, `hpcoll.movements`) and runs it by a plan; a call like an earlier one on
plain arrays skips the description.
"""

from functools import cached_property
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll import movements, reductions
from hpcoll.call import Call, check_root
from hpcoll.context import Context, context_of
from hpcoll.dtypes import is_bfloat16
from hpcoll.errors import ArgumentError
from hpcoll.operators import BY_IDENTITY, to_native
from hpcoll.ops import ReduceOp

_known = BY_IDENTITY.get  # what stands for an operator in a key: ours for MPI's predefined ones


class Blocking(MPI.Intracomm):
    """An intracommunicator whose blocking collectives run on hpcoll."""

    _context = cached_property(context_of)  # Communicator sets it; objects that mpi4py makes (Idup) find it when first used

    def _ready(self) -> Context:
        """The context, if collectives may still run on it."""
        context = self._context
        if context.closed or MPI.Is_finalized():
            why = "MPI is finalised" if MPI.Is_finalized() else context.closed
            raise ArgumentError(f"rank {context.rank}: this communicator cannot be used: {why}")
        return context

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
        context = self._ready()
        key = ("allreduce", _known(id(op), op), algorithm, segment)
        native = lambda aliased=False: MPI.Intracomm.Allreduce(self, _theirs(sendbuf, aliased), _theirs(recvbuf), _native(op))  # noqa: E731
        if context.repeat(key, sendbuf, recvbuf, native):
            return
        call = reductions.reduction("allreduce", sendbuf, recvbuf, op, 0, context.rank, context.nranks)
        context.execute(call, algorithm, segment, native, key, sendbuf, recvbuf)

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
        context = self._ready()
        root = check_root(root, context.nranks, context.rank)
        send, recv = (sendbuf, recvbuf) if context.rank == root else (MPI.IN_PLACE, sendbuf)
        key = ("reduce", _known(id(op), op), root, algorithm, segment)
        native = lambda aliased=False: MPI.Intracomm.Reduce(self, _theirs(sendbuf, aliased), _theirs(recvbuf), _native(op), root)  # noqa: E731
        if context.repeat(key, send, recv, native):
            return
        call = reductions.reduction("reduce", sendbuf, recvbuf, op, root, context.rank, context.nranks)
        context.execute(call, algorithm, segment, native, key, send, recv)

    def Reduce_scatter_block(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op | ReduceOp = MPI.SUM, *, algorithm: str | None = None, segment: int | str | None = None
    ) -> None:
        """Combine every rank's sendbuf and give block ``r`` of the result to rank ``r``.

        Args:
            sendbuf: ``nranks * count`` elements; with ``MPI.IN_PLACE`` recvbuf holds them and gets the result at its start.
            recvbuf: ``count`` elements.
            op, algorithm, segment: As in `Allreduce`.
        """
        context = self._ready()
        key = ("reduce_scatter", _known(id(op), op), algorithm, segment)
        native = lambda aliased=False: MPI.Intracomm.Reduce_scatter_block(self, _theirs(sendbuf, aliased), _theirs(recvbuf), _native(op))  # noqa: E731
        if context.repeat(key, sendbuf, recvbuf, native):
            return
        call = reductions.reduction("reduce_scatter", sendbuf, recvbuf, op, 0, context.rank, context.nranks)
        context.execute(call, algorithm, segment, native, key, sendbuf, recvbuf)

    def Reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: MPI.Op | ReduceOp = MPI.SUM,
        *, algorithm: str | None = None, segment: int | str | None = None,
    ) -> None:  # fmt: skip
        """`Reduce_scatter_block` with blocks of ``recvcounts[r]`` elements, equal on all ranks; None: each rank's recvbuf tells its own."""
        context = self._ready()
        call = reductions.reduction_of_blocks(sendbuf, recvbuf, recvcounts, op, context.rank, context.nranks, context.comm.allgather)
        context.execute(
            call,
            algorithm,
            segment,
            lambda aliased=False: MPI.Intracomm.Reduce_scatter(self, _theirs(sendbuf, aliased), _theirs(recvbuf), recvcounts, _native(op)),
        )

    def Scan(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op | ReduceOp = MPI.SUM, *, algorithm: str | None = None, segment: int | str | None = None
    ) -> None:
        """Combine the sendbufs of ranks ``0 .. r`` for rank ``r``; arguments as in `Allreduce`."""
        context = self._ready()
        key = ("scan", _known(id(op), op), algorithm, segment)
        native = lambda aliased=False: MPI.Intracomm.Scan(self, _theirs(sendbuf, aliased), _theirs(recvbuf), _native(op))  # noqa: E731
        if context.repeat(key, sendbuf, recvbuf, native):
            return
        call = reductions.reduction("scan", sendbuf, recvbuf, op, 0, context.rank, context.nranks)
        context.execute(call, algorithm, segment, native, key, sendbuf, recvbuf)

    def Exscan(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op | ReduceOp = MPI.SUM, *, algorithm: str | None = None, segment: int | str | None = None
    ) -> None:
        """Combine the sendbufs of ranks ``0 .. r-1`` for rank ``r``; rank 0's recvbuf is left as it is. Arguments as in `Allreduce`."""
        context = self._ready()
        key = ("exscan", _known(id(op), op), algorithm, segment)
        native = lambda aliased=False: MPI.Intracomm.Exscan(self, _theirs(sendbuf, aliased), _theirs(recvbuf), _native(op))  # noqa: E731
        if context.repeat(key, sendbuf, recvbuf, native):
            return
        call = reductions.reduction("exscan", sendbuf, recvbuf, op, 0, context.rank, context.nranks)
        if context.rank == 0 and call is not None:
            call = call._replace(finish=None)
        context.execute(call, algorithm, segment, native, key, sendbuf, recvbuf)

    def Barrier(self, *, algorithm: str | None = None, segment: int | str | None = None) -> None:
        """Return when every rank has called it."""
        context = self._ready()
        key = ("barrier", algorithm, segment)
        native = lambda: MPI.Intracomm.Barrier(self)  # noqa: E731
        if not context.repeat(key, MPI.IN_PLACE, context.token, native):
            address = context.token.ctypes.data
            call = Call("barrier", address, address, 1, context.token.dtype, in_place=True)
            context.execute(call, algorithm, segment, native, key, MPI.IN_PLACE, context.token)

    def Bcast(self, buf: Any, root: int = 0, *, algorithm: str | None = None, segment: int | str | None = None) -> None:
        """Copy the root's buffer to all ranks.

        Args:
            buf: Equally many bytes on all ranks; may be read-only at the root.
            root: Equal on all ranks.
            algorithm, segment: See the class.
        """
        context = self._ready()
        root = check_root(root, context.nranks, context.rank)
        key = ("bcast", root, algorithm, segment)
        native = lambda: MPI.Intracomm.Bcast(self, _theirs(buf), root)  # noqa: E731
        if context.repeat(key, MPI.IN_PLACE, buf, native):
            return
        call = movements.bcast(buf, root, context.rank, context.nranks)
        context.execute(call, algorithm, segment, native, key, MPI.IN_PLACE, buf)

    def Allgather(self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, segment: int | str | None = None) -> None:
        """Give every rank the blocks of all.

        Args:
            sendbuf: One block, or ``MPI.IN_PLACE`` when it already lies in its place in recvbuf.
            recvbuf: ``nranks`` blocks.
            algorithm, segment: See the class.
        """
        context = self._ready()
        key = ("allgather", algorithm, segment)
        native = lambda aliased=False: MPI.Intracomm.Allgather(self, _theirs(sendbuf, aliased), _theirs(recvbuf))  # noqa: E731
        if context.repeat(key, sendbuf, recvbuf, native):
            return
        call = movements.allgather(sendbuf, recvbuf, context.rank, context.nranks)
        context.execute(call, algorithm, segment, native, key, sendbuf, recvbuf)

    def Allgatherv(self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, segment: int | str | None = None) -> None:
        """`Allgather` of blocks that differ in size: recvbuf is ``[array, counts, displs, type]``, equal counts on all ranks."""
        context = self._ready()
        call = movements.allgatherv(sendbuf, recvbuf, context.rank, context.nranks)
        context.execute(
            call, algorithm, segment, lambda aliased=False: MPI.Intracomm.Allgatherv(self, _theirs(sendbuf, aliased), _theirs(recvbuf))
        )

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0, *, algorithm: str | None = None, segment: int | str | None = None) -> None:
        """Give the root the blocks of all.

        Args:
            sendbuf: One block; at the root also ``MPI.IN_PLACE``.
            recvbuf: ``nranks`` blocks at the root; ignored elsewhere.
            root, algorithm, segment: As in `Bcast`.
        """
        context = self._ready()
        root = check_root(root, context.nranks, context.rank)
        send, recv = (sendbuf, recvbuf) if context.rank == root else (MPI.IN_PLACE, sendbuf)
        key = ("gather", root, algorithm, segment)
        native = lambda aliased=False: MPI.Intracomm.Gather(self, _theirs(sendbuf, aliased), _theirs(recvbuf), root)  # noqa: E731
        if context.repeat(key, send, recv, native):
            return
        call = movements.gather(sendbuf, recvbuf, root, context.rank, context.nranks)
        context.execute(call, algorithm, segment, native, key, send, recv)

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0, *, algorithm: str | None = None, segment: int | str | None = None) -> None:
        """`Gather` of blocks that differ in size; counts and displacements are the root's."""
        context = self._ready()
        root = check_root(root, context.nranks, context.rank)
        call = movements.gatherv(sendbuf, recvbuf, root, context.rank, context.nranks)
        context.execute(
            call, algorithm, segment, lambda aliased=False: MPI.Intracomm.Gatherv(self, _theirs(sendbuf, aliased), _theirs(recvbuf), root)
        )

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0, *, algorithm: str | None = None, segment: int | str | None = None) -> None:
        """Give block ``r`` of the root's sendbuf to rank ``r``.

        Args:
            sendbuf: ``nranks`` blocks at the root; ignored elsewhere.
            recvbuf: One block; at the root also ``MPI.IN_PLACE``.
            root, algorithm, segment: As in `Bcast`.
        """
        context = self._ready()
        root = check_root(root, context.nranks, context.rank)
        send, recv = (sendbuf, recvbuf) if context.rank == root else (MPI.IN_PLACE, recvbuf)
        key = ("scatter", root, algorithm, segment)
        native = lambda aliased=False: MPI.Intracomm.Scatter(self, _theirs(sendbuf), _theirs(recvbuf, aliased), root)  # noqa: E731
        if context.repeat(key, send, recv, native):
            return
        call = movements.scatter(sendbuf, recvbuf, root, context.rank, context.nranks)
        context.execute(call, algorithm, segment, native, key, send, recv)

    def Scatterv(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, *, algorithm: str | None = None, segment: int | str | None = None
    ) -> None:
        """`Scatter` of blocks that differ in size; counts and displacements are the root's."""
        context = self._ready()
        root = check_root(root, context.nranks, context.rank)
        call = movements.scatterv(sendbuf, recvbuf, root, context.rank, context.nranks)
        context.execute(
            call, algorithm, segment, lambda aliased=False: MPI.Intracomm.Scatterv(self, _theirs(sendbuf), _theirs(recvbuf, aliased), root)
        )

    def Alltoall(self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, segment: int | str | None = None) -> None:
        """Give block ``j`` of rank ``i``'s sendbuf to rank ``j`` as block ``i``.

        Args:
            sendbuf: ``nranks`` blocks, or ``MPI.IN_PLACE`` when recvbuf holds them.
            recvbuf: ``nranks`` blocks.
            algorithm, segment: See the class.
        """
        context = self._ready()
        key = ("alltoall", algorithm, segment)
        native = lambda aliased=False: MPI.Intracomm.Alltoall(self, _theirs(sendbuf, aliased), _theirs(recvbuf))  # noqa: E731
        if context.repeat(key, sendbuf, recvbuf, native):
            return
        call = movements.alltoall(sendbuf, recvbuf, context.rank, context.nranks)
        context.execute(call, algorithm, segment, native, key, sendbuf, recvbuf)

    def Alltoallv(self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, segment: int | str | None = None) -> None:
        """`Alltoall` of blocks that differ in size; each rank gives its own counts and displacements."""
        context = self._ready()
        call = movements.alltoallv(sendbuf, recvbuf, context.rank, context.nranks)
        context.execute(
            call, algorithm, segment, lambda aliased=False: MPI.Intracomm.Alltoallv(self, _theirs(sendbuf, aliased), _theirs(recvbuf))
        )


def _native(op: MPI.Op | ReduceOp) -> MPI.Op:
    """The MPI library's operator, for calls that it serves."""
    found = to_native(op) if isinstance(op, ReduceOp) else op
    if found is None:
        raise ArgumentError(f"the MPI library has no operator {op!r} for this element type")
    return found


def _theirs(spec: Any, aliased: bool = False) -> Any:
    """A buffer spec as mpi4py takes it: bfloat16, which has no MPI type, as 16-bit integers; no floats as counts;
    ``MPI.IN_PLACE`` for aliased memory.
    """
    if aliased:
        return MPI.IN_PLACE
    if type(spec) is np.ndarray and spec.dtype.kind != "V":
        return spec
    if isinstance(spec, list | tuple) and spec:
        return [_theirs(spec[0]), *map(_whole, spec[1:])]
    return spec.view(np.int16) if isinstance(spec, np.ndarray) and is_bfloat16(spec.dtype) else spec


def _whole(item: Any) -> Any:
    """Counts and displacements as integers, anything else as it is."""
    if isinstance(item, list | tuple):
        return type(item)(_whole(one) for one in item)
    if isinstance(item, np.ndarray):
        return item.astype(np.int64)
    return int(item) if isinstance(item, float) else item
