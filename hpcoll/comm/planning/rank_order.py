"""Reductions in rank order of what only the MPI library can combine: its operators, user-made ones, and element types of its own.

A call of hpcoll's own gathers all contributions to a rank's result, and ``MPI_Reduce_local`` folds them at its end. That takes memory for
them: a message for each rank, for a reduce-scatter one message in all. The operator must live as long as the call.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.base import canonical
from hpcoll.base.errors import ArgumentError
from hpcoll.base.ops import ReduceOp
from hpcoll.comm.arguments.buffer_specs import split
from hpcoll.comm.arguments.buffers import Resolved, resolve
from hpcoll.comm.arguments.call import Call, is_in_place, to_native
from hpcoll.comm.arguments.methods import METHODS, Caller, Method

_LINE_NBYTES = 64


class Contributions:
    """Memory for several blocks, each of ``count`` elements of a datatype, one behind the other."""

    def __init__(self, datatype: MPI.Datatype, count: int, nblocks: int) -> None:
        (lower, true_extent), extent = datatype.Get_true_extent(), datatype.extent
        before, behind = max(0, -lower), max(0, lower + true_extent - extent)
        before += -before % _LINE_NBYTES  # as aligned as the memory itself is
        self._memory = np.empty(before + nblocks * count * extent + behind, np.uint8)
        self._first, self._step = self._memory.ctypes.data + before, count * extent
        self._end, self._spec = self._memory.ctypes.data + self._memory.nbytes, (count, datatype)

    def block(self, at: int) -> list[Any]:
        """Return the spec of a block, whose buffer reaches to the end of the memory."""
        address = self._first + at * self._step
        return [MPI.buffer.fromaddress(address, max(0, self._end - address)), *self._spec]

    def fold(self, op: MPI.Op, first: int, nblocks: int) -> list[Any]:
        """Fold blocks from ``first`` on, in canonical order, into the last of them; return its spec."""
        if nblocks > 1:
            left = canonical.split(nblocks)
            op.Reduce_local(self.fold(op, first, left), self.fold(op, first + left, nblocks - left))
        return self.block(first + nblocks - 1)


def _spec(address: int, count: int, datatype: MPI.Datatype) -> list[Any]:
    return [MPI.buffer.fromaddress(address, max(0, count * datatype.extent)), count, datatype]


def gathered(caller: Caller, row: Method, arguments: tuple[Any, ...]) -> Call:
    """Return the call that gathers the contributions to this rank's result of a reduction, and folds them at its end.

    Raises:
        ArgumentError: Wrong arguments, or only the MPI library can move them, too.
    """
    me, given = caller.rank, dict(zip(row.arguments, arguments, strict=False))
    op, root, blocks = given["op"], caller.root(given.get("root", 0)), row.collective == "reduce_scatter"
    receives = row.collective != "reduce" or me == root
    send, recv, in_place = given["sendbuf"], given["recvbuf"], is_in_place(given["sendbuf"])
    parts = caller.nranks if row.name == "Reduce_scatter_block" else 1
    target = (
        resolve(recv, name="recvbuf", rank=me, nparts=parts if in_place else 1, writable=True)
        if receives
        else None
    )
    source = target if in_place else resolve(send, name="sendbuf", rank=me, nparts=parts)
    if source is None or (receives and target is None) or source.gpu is not None:
        raise _refused(me, "hpcoll cannot move these buffers")
    datatype, op = _datatype(recv if in_place else send, source, me), _operator(op, me)
    counts = (
        _counts(caller, row, given.get("recvcounts"), source, target, in_place=in_place)
        if blocks
        else [source.count]
    )
    own = counts[me] if blocks else source.count
    if target is not None and not in_place and (target.count < own or target.dtype != source.dtype):
        raise ArgumentError(
            f"rank {me}: recvbuf needs {own} elements of {source.dtype}, got {target.count} of {target.dtype}"
        )
    # refuses an operator that does not take them
    op.Reduce_local(_spec(0, 0, datatype), _spec(0, 0, datatype))
    used = {"scan": me + 1, "exscan": me}.get(row.collective, caller.nranks if receives else 0)
    made = Contributions(datatype, own, caller.nranks if receives else 0)
    sent, all_blocks = _spec(source.address, source.count, datatype), made.block(0)
    if blocks:
        sent[1], all_blocks[1] = counts, [own] * caller.nranks
        call = METHODS["Alltoallv"].describe(caller, sent, all_blocks)
    elif row.collective == "reduce":
        call = METHODS["Gather"].describe(caller, sent, all_blocks if receives else None, root)
    else:
        call = METHODS["Allgather"].describe(caller, sent, all_blocks)
    if call is None:
        raise _refused(me, f"hpcoll cannot move elements of {datatype.name or 'this datatype'}")
    result = None if target is None or not used or not own else _spec(target.address, own, datatype)
    return call._replace(
        finish=_after(call, made, op, used, result),
        as_given=False,
        keep=(*call.keep, made, source, target, op),
    )


def _after(
    call: Call, made: Contributions, op: MPI.Op, used: int, result: list[Any] | None
) -> Callable[[], None] | None:
    """Return what follows the call: the fold of the first blocks, whose result is stored."""
    if result is None:
        return call.finish

    def finish() -> None:
        if call.finish is not None:
            call.finish()
        MPI.COMM_SELF.Sendrecv(made.fold(op, 0, used), 0, 0, result, 0, 0)

    return finish


def _refused(rank: int, why: str) -> ArgumentError:
    return ArgumentError(f"rank {rank}: order='rank' cannot serve this call: {why}")


def _operator(op: Any, rank: int) -> MPI.Op:
    found = to_native(op) if isinstance(op, ReduceOp) else op
    if found is None:
        raise _refused(rank, f"the MPI library has no operator {op!r} for this element type")
    return found


def _datatype(given: Any, found: Resolved, rank: int) -> MPI.Datatype:
    datatype = split(given, "", vector=False)[3] or found.dtype.char
    try:
        return MPI.Datatype.fromcode(datatype) if isinstance(datatype, str) else datatype
    except ValueError:
        raise _refused(rank, f"the MPI library has no datatype for {found.dtype}") from None


def _counts(
    caller: Caller, row: Method, given: Any, source: Resolved, target: Resolved | None, *, in_place: bool
) -> list[int]:
    """Return the elements of each rank's block."""
    if row.name == "Reduce_scatter_block":
        return [source.count // caller.nranks] * caller.nranks
    if given is None and not in_place and target is not None:
        return caller.allgather(target.count)
    counts = [] if given is None else [int(count) for count in given]
    if len(counts) != caller.nranks or min(counts) < 0 or sum(counts) != source.count:
        raise ArgumentError(
            f"rank {caller.rank}: recvcounts needs {caller.nranks} counts that sum to {source.count}, got {counts}"
        )
    return counts
