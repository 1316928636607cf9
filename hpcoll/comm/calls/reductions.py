"""Arguments of the collectives that combine contributions, checked and described.

float16 and bfloat16 go to the engine as float32 and are rounded once, at the end; factors are applied before (premultiplied
sum) or after (average); an in-place reduce_scatter works beside its buffer, which holds the input until all have it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcoll.base.dtypes import check_op, is_bfloat16, is_extended, working_dtype
from hpcoll.base.errors import ArgumentError
from hpcoll.base.ops import MAX, MIN, ReduceOp
from hpcoll.comm.calls import gpu_staging
from hpcoll.comm.calls.buffers import Resolved, check_overlap, check_same_order, resolve
from hpcoll.comm.calls.call import Call, factor_of, is_in_place, view
from hpcoll.comm.calls.operators import to_native, to_ours


def reduction(
    collective: str, sendbuf: Any, recvbuf: Any, op: Any, root: int, rank: int, nranks: int, one_fold: bool = False
) -> Call | None:
    """Allreduce, Reduce, Scan, Exscan, Reduce_scatter_block: None when only the MPI library can serve it.

    ``one_fold``: see `hpcoll.comm.calls.methods.Caller`.

    Raises:
        ArgumentError: bad buffer, operator or count.
    """
    ours = to_ours(op, rank)
    receives = collective != "reduce" or rank == root
    in_place = is_in_place(sendbuf)
    if in_place and not receives:
        raise ArgumentError(f"rank {rank}: only the root of a reduce may pass MPI.IN_PLACE as sendbuf")
    recv = resolve(recvbuf, name="recvbuf", rank=rank, writable=True) if receives else None
    nblocks = nranks if collective == "reduce_scatter" else 1
    send = recv if in_place else resolve(sendbuf, name="sendbuf", rank=rank, nparts=nblocks)
    if ours is None or send is None or (receives and recv is None):
        return None
    if any(one.datatype is not None for one in (send, recv) if one is not None):
        return None
    check_op(ours, send.dtype, rank)
    if any(is_extended(one.dtype) for one in (send, recv) if one is not None):
        return None
    if recv is not None and not in_place:
        expected = _share(send.count, nblocks, "sendbuf", rank)
        if recv.dtype != send.dtype or recv.count != expected:
            raise ArgumentError(f"rank {rank}: recvbuf needs {expected} elements of {send.dtype}, got {recv.count} of {recv.dtype}")
        check_same_order(sendbuf, recvbuf, rank)
        in_place = check_overlap(send, recv, rank)
    count = _share(send.count, nblocks, "recvbuf" if in_place else "sendbuf", rank)
    call = Call(collective, send.address, recv.address if recv else 0, count, send.dtype, ours, root, in_place, aliased=in_place)
    return _reduction_call(call, send, recv, nranks, one_fold)


def reduction_of_blocks(
    sendbuf: Any, recvbuf: Any, recvcounts: Any, op: Any, rank: int, nranks: int, allgather: Callable[[int], list[int]]
) -> Call | None:
    """Reduce_scatter, whose blocks vary; arguments as `reduction`, ``allgather`` for the counts that the caller leaves out."""
    if recvcounts is None:
        own = resolve(recvbuf, name="recvbuf", rank=rank, writable=True)
        if own is None or is_in_place(sendbuf):
            return None
        recvcounts = allgather(own.count)
    counts = tuple(int(count) for count in recvcounts)
    if len(counts) != nranks or min(counts) < 0:
        raise ArgumentError(f"rank {rank}: recvcounts needs {nranks} counts >= 0, got {list(counts)}")
    ours, in_place = to_ours(op, rank), is_in_place(sendbuf)
    recv = resolve(recvbuf, name="recvbuf", rank=rank, writable=True)
    send = recv if in_place else resolve(sendbuf, name="sendbuf", rank=rank)
    if ours is None or send is None or recv is None:
        return None
    if any(one.datatype is not None for one in (send, recv)):
        return None
    check_op(ours, send.dtype, rank)
    if any(is_extended(one.dtype) for one in (send, recv)):
        return None
    if send.count != sum(counts) or (not in_place and (recv.count < counts[rank] or recv.dtype != send.dtype)):
        raise ArgumentError(
            f"rank {rank}: reduce_scatter of counts {list(counts)} needs {sum(counts)} elements sent and {counts[rank]} received, "
            f"got {send.count} of {send.dtype} and {recv.count} of {recv.dtype}"
        )
    in_place = in_place or check_overlap(send, recv, rank)
    displs = [sum(counts[:i]) for i in range(nranks)]
    blocks = (tuple(zip(displs, counts, strict=True)), ((0, counts[rank]),), counts)
    call = Call("reduce_scatter", send.address, recv.address, sum(counts), send.dtype, ours, 0, in_place, blocks, aliased=in_place)
    return _reduction_call(call, send, recv, nranks)


def _share(count: int, nblocks: int, name: str, rank: int) -> int:
    if count % nblocks:
        raise ArgumentError(f"rank {rank}: {name} needs {nblocks} equal blocks, got {count} elements")
    return count // nblocks


def _reduction_call(call: Call, send: Resolved, recv: Resolved | None, nranks: int, one_fold: bool = False) -> Call:
    """Add what happens before and after: another element type, a factor, a result that must not overwrite its input."""
    op, dtype = call.op, send.dtype
    assert op is not None
    work = working_dtype(dtype)
    native = to_native(op) is not None and not is_bfloat16(dtype)
    call = call._replace(
        native=native, strict=work != dtype or _lets_nan_through(op, dtype), dtype=work, keep=(send.owner, recv.owner if recv else None)
    )
    if not send.count:
        return call
    if send.gpu is not None or (recv is not None and recv.gpu is not None):
        return gpu_staging.reduction(call, send, recv, nranks, one_fold)
    source = view(send)
    if work != dtype or op.premultiplier is not None:
        source = _scaled(source.astype(work), op)
        call = call._replace(send=source.ctypes.data, in_place=False, keep=(*call.keep, source), direct=False)
    if recv is None:
        return call
    target = view(recv)[: call.blocks[1][0][1] if call.blocks else call.count]
    if call.collective == "reduce_scatter" and call.in_place:
        call = call._replace(in_place=False, copied=send.nbytes)
    result = np.empty(target.size, work) if work != dtype else target
    divisor = nranks if op.average else 1

    def finish() -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            if divisor > 1:
                np.divide(result, divisor, out=result)
            if result is not target:
                target[...] = result

    if result is not target:
        call = call._replace(recv=result.ctypes.data, in_place=False, keep=(*call.keep, result))
    return call._replace(finish=finish, direct=False) if result is not target or divisor > 1 else call


def _lets_nan_through(op: ReduceOp, dtype: np.dtype) -> bool:
    return op in (MIN, MAX) and dtype.kind == "f"


def _scaled(source: np.ndarray, op: ReduceOp) -> np.ndarray:
    if op.premultiplier is not None:
        source *= factor_of(op, source.dtype)
    return source
