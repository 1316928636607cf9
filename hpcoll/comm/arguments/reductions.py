"""Arguments of the collectives that reduce, checked and described.

float16 and bfloat16 go to the engine as float32, and are rounded once, at the end. Factors are applied before (premultiplied sum) or after
(average). An in-place reduce_scatter works beside its buffer, which holds the input until all ranks have it.
"""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np

from hpcoll.base.dtypes import check_op, is_bfloat16, is_exact, is_extended, kind, working_dtype, working_op
from hpcoll.base.errors import ArgumentError
from hpcoll.base.ops import MAX, MIN, ReduceOp
from hpcoll.comm.arguments.buffer_specs import LAYOUTS
from hpcoll.comm.arguments.buffers import Resolved, check_overlap, check_same_order, resolve
from hpcoll.comm.arguments.call import (
    Blocks,
    Call,
    factor_of,
    is_in_place,
    result_count,
    to_native,
    to_ours,
    view,
)


def reduction(
    collective: str,
    sendbuf: Any,
    recvbuf: Any,
    op: Any,
    root: int,
    rank: int,
    nranks: int,
) -> Call | None:
    """Describe an Allreduce, Reduce, Scan, Exscan or Reduce_scatter_block; None when only the MPI library can serve it.

    Raises:
        ArgumentError: Bad buffer, operator or count.
    """
    ours = to_ours(op, rank)
    receives = collective != "reduce" or rank == root
    in_place = is_in_place(sendbuf)
    if in_place and not receives:
        raise ArgumentError(f"rank {rank}: only the root of a reduce may pass MPI.IN_PLACE as sendbuf")
    nblocks = nranks if collective == "reduce_scatter" else 1
    recv = (
        resolve(recvbuf, name="recvbuf", rank=rank, nparts=nblocks if in_place else 1, writable=True)
        if receives
        else None
    )
    send = recv if in_place else resolve(sendbuf, name="sendbuf", rank=rank, nparts=nblocks)
    if ours is None or send is None or (receives and recv is None) or not _reducible(ours, send, recv, rank):
        return None
    if recv is not None and not in_place:
        expected = _share(send.count, nblocks, "sendbuf", rank)
        if recv.dtype != send.dtype or recv.count != expected:
            raise ArgumentError(
                f"rank {rank}: recvbuf needs {expected} elements of {send.dtype}, got {recv.count} of {recv.dtype}"
            )
        check_same_order(sendbuf, recvbuf, rank)
        in_place = check_overlap(send, recv, rank)
    count = _share(send.count, nblocks, "recvbuf" if in_place else "sendbuf", rank)
    return _call(collective, ours, root, count, send, recv, in_place=in_place, nranks=nranks)


def reduction_of_blocks(
    sendbuf: Any,
    recvbuf: Any,
    recvcounts: Any,
    op: Any,
    rank: int,
    nranks: int,
    allgather: Callable[[int], list[int]],
) -> Call | None:
    """Describe a Reduce_scatter, whose blocks vary, as `reduction` does; ``allgather`` finds the counts that the caller leaves out."""
    recvcounts = every_count(sendbuf, recvbuf, rank, allgather) if recvcounts is None else recvcounts
    if recvcounts is None:
        return None
    counts = tuple(int(count) for count in recvcounts)
    if len(counts) != nranks or min(counts) < 0:
        raise ArgumentError(f"rank {rank}: recvcounts needs {nranks} counts >= 0, got {list(counts)}")
    ours, in_place = to_ours(op, rank), is_in_place(sendbuf)
    recv = resolve(recvbuf, name="recvbuf", rank=rank, writable=True)
    send = recv if in_place else resolve(sendbuf, name="sendbuf", rank=rank)
    if ours is None or send is None or recv is None or not _reducible(ours, send, recv, rank):
        return None
    if send.count != sum(counts) or (
        not in_place and (recv.count < counts[rank] or recv.dtype != send.dtype)
    ):
        raise ArgumentError(
            f"rank {rank}: reduce_scatter of counts {list(counts)} needs {sum(counts)} elements sent and {counts[rank]} received, "
            f"got {send.count} of {send.dtype} and {recv.count} of {recv.dtype}"
        )
    in_place = in_place or check_overlap(send, recv, rank)
    displs = accumulate(counts[:-1], initial=0)
    blocks = (tuple(zip(displs, counts, strict=True)), ((0, counts[rank]),), counts)
    return _call(
        "reduce_scatter", ours, 0, send.count, send, recv, in_place=in_place, nranks=nranks, blocks=blocks
    )


def every_count(
    sendbuf: Any, recvbuf: Any, rank: int, allgather: Callable[[int], list[int]]
) -> list[int] | None:
    """Gather the counts that a Reduce_scatter leaves out, one per rank; None where only the MPI library can tell them."""
    if (
        type(recvbuf) is np.ndarray
        and LAYOUTS.get(recvbuf.dtype)
        and (flags := recvbuf.flags).c_contiguous
        and flags.writeable
    ):
        return None if is_in_place(sendbuf) else allgather(recvbuf.size)  # `resolve` takes 0.8 us
    own = None if is_in_place(sendbuf) else resolve(recvbuf, name="recvbuf", rank=rank, writable=True)
    return None if own is None else allgather(own.count)


def _reducible(op: ReduceOp, send: Resolved, recv: Resolved | None, rank: int) -> bool:
    """Say whether hpcoll reduces such elements; refuse an operator that does not take them."""
    own, theirs = send.dtype, send.dtype if recv is None else recv.dtype
    if send.datatype is not None or (recv is not None and recv.datatype is not None):
        return False
    if not kind(own) or (theirs is not own and not kind(theirs)):
        return False
    check_op(op, own, rank)
    return not (is_extended(own) or is_extended(theirs))


def _share(count: int, nblocks: int, name: str, rank: int) -> int:
    if count % nblocks:
        raise ArgumentError(f"rank {rank}: {name} needs {nblocks} equal blocks, got {count} elements")
    return count // nblocks


def _call(
    collective: str,
    op: ReduceOp,
    root: int,
    count: int,
    send: Resolved,
    recv: Resolved | None,
    *,
    in_place: bool,
    nranks: int,
    blocks: Blocks | None = None,
) -> Call:
    """Return the call, with work before and after it: another element type, a factor, a copy of input that results would overwrite."""
    own, work = send.dtype, working_dtype(send.dtype)
    call = Call(
        collective,
        send.address,
        0 if recv is None else recv.address,
        count,
        work,
        working_op(op, own),
        root,
        in_place,
        blocks,
        to_native(op) is not None and not is_bfloat16(own),
        work is not own or ((op is MIN or op is MAX) and own.kind == "f"),  # which let NaN through
        aliased=in_place,
        keep=(send, recv),
        one_fold=is_exact(op, own),
        element=own,
    )
    if not send.count or send.gpu is not None or (recv is not None and recv.gpu is not None):
        return call  # on a GPU launches do the work
    beside = collective == "reduce_scatter" and in_place and recv is not None
    if work == own and op.premultiplier is None and not op.average and not beside:
        return call
    return _worked(call, send, recv, nranks)


def _worked(call: Call, send: Resolved, recv: Resolved | None, nranks: int) -> Call:
    """Return a call that works on a converted copy of its input, beside its buffer, or with a result that is divided or rounded last."""
    op, own, work = call.op, send.dtype, call.dtype
    assert op is not None
    if work != own or op.premultiplier is not None:
        source = view(send).astype(work)
        if op.premultiplier is not None:
            source *= factor_of(op, work)
        call = call._replace(
            send=source.ctypes.data, in_place=False, as_given=False, keep=(*call.keep, source)
        )
    if recv is None:
        return call
    if (
        call.collective == "reduce_scatter" and call.in_place
    ):  # its input lies where results come, until all have it
        call = call._replace(in_place=False, copied=send.nbytes)
    divisor = nranks if op.average else 1
    if work == own and divisor == 1:
        return call
    target = view(recv)[: result_count(call)]
    result = target if work == own else np.empty(target.size, work)

    def finish() -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            if divisor > 1:
                np.divide(result, divisor, out=result)
            if result is not target:
                target[...] = result

    keep = (*call.keep, result)
    return call._replace(recv=result.ctypes.data, finish=finish, as_given=False, keep=keep)
