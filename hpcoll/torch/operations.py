"""The collectives and operators of torch.distributed as those of hpcoll: method, arguments, and a function that stores the result."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI

from hpcoll.base.errors import ArgumentError, ArgumentTypeError
from hpcoll.base.ops import AVG, premul_sum
from hpcoll.comm.communicator import Communicator
from hpcoll.torch.tensors import COMBINED, Store, apart, array_of, contiguous, joined, spread

Tensors = Sequence[torch.Tensor]
_RedOp = dist.ReduceOp.RedOpType
_OPERATORS: dict[Any, Any] = {
    _RedOp.SUM: MPI.SUM,
    _RedOp.PRODUCT: MPI.PROD,
    _RedOp.MIN: MPI.MIN,
    _RedOp.MAX: MPI.MAX,
    _RedOp.BAND: MPI.BAND,
    _RedOp.BOR: MPI.BOR,
    _RedOp.BXOR: MPI.BXOR,
    _RedOp.AVG: AVG,
}
# Of truth values, as with NCCL: a sum is true where one is.
_OF_BOOLS: dict[Any, Any] = {
    _RedOp.SUM: MPI.LOR,
    _RedOp.MAX: MPI.LOR,
    _RedOp.BOR: MPI.LOR,
    _RedOp.PRODUCT: MPI.LAND,
    _RedOp.MIN: MPI.LAND,
    _RedOp.BAND: MPI.LAND,
    _RedOp.BXOR: MPI.LXOR,
}
_WHOLE = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})  # what torch divides


def _kind(op: Any) -> Any:
    return op if isinstance(op, _RedOp) else op.op


def operator_for(op: Any, dtype: torch.dtype) -> Any:
    """Return the operator of hpcoll for one of torch's, on elements of a type; ArgumentTypeError where there is none."""
    kind = _kind(op)
    if dtype not in COMBINED:
        raise ArgumentTypeError(f"a reduction needs elements that can be combined, got {dtype}")
    if kind == _RedOp.PREMUL_SUM:
        # older versions tell it when pickled only
        return premul_sum(float(op.factor if hasattr(op, "factor") else op.__getstate__()[1]))
    operator = (_OF_BOOLS if dtype == torch.bool else _OPERATORS).get(kind)
    if operator is None:
        raise ArgumentTypeError(f"a reduction of {dtype} needs an operator that it has, got {kind}")
    return operator


class TorchOperation(NamedTuple):
    """A nonblocking collective of a `Communicator`."""

    method: str
    arguments: tuple[Any, ...]  # positional ones
    # copies the result to tensors that have gaps or lie apart; None where it is there already
    store: Store | None = None
    # makes it with copies of tensors that lie too far apart for the MPI library
    near: "Callable[[], TorchOperation] | None" = None

    def begin(self, comm: Communicator, order: str | None, **stream: int) -> tuple[MPI.Request, Store | None]:
        """Return the request, and the function that stores the result once it has ended; ``order`` is that of reductions."""
        more = {"order": order} if order is not None and "reduce" in self.method else {}
        try:
            return getattr(comm, self.method)(*self.arguments, **stream, **more), self.store
        except MPI.Exception:
            if self.near is None:
                raise
            return self.near().begin(comm, order, **stream)


class Me(NamedTuple):
    """The calling rank, and the size of its group."""

    rank: int
    nranks: int


def _combining(me: Me, op: Any, flat: torch.Tensor, store: Store | None) -> tuple[Any, Store | None]:
    """Return the operator as `operator_for`, and the function that stores the result of a reduction into some memory.

    Means of integers are sums that are divided here, and rounded towards zero as with NCCL.
    """
    if _kind(op) == _RedOp.AVG and flat.dtype in _WHOLE:
        return MPI.SUM, _both(partial(flat.div_, me.nranks, rounding_mode="trunc"), store)
    return operator_for(op, flat.dtype), store


def _sent(tensor: torch.Tensor) -> Any:
    """Return a tensor as an array that is sent."""
    return array_of(contiguous(tensor, filled=False)[0])


def allreduce(me: Me, tensor: torch.Tensor, op: Any) -> TorchOperation:
    """Return an allreduce in place."""
    flat, store = contiguous(tensor, filled=True, combined=True)
    combined, store = _combining(me, op, flat, store)
    return TorchOperation("Iallreduce", (MPI.IN_PLACE, array_of(flat), combined), store)


def reduce(me: Me, tensor: torch.Tensor, op: Any, root: int) -> TorchOperation:
    """Return a reduce in place at the root; tensors of other ranks stay as they are."""
    flat, store = contiguous(tensor, filled=me.rank == root, combined=True)
    combined, store = _combining(me, op, flat, store)
    if me.rank == root:
        return TorchOperation("Ireduce", (MPI.IN_PLACE, array_of(flat), combined, root), store)
    return TorchOperation("Ireduce", (array_of(flat), None, combined, root))


def broadcast(me: Me, tensor: torch.Tensor, root: int) -> TorchOperation:
    """Return a broadcast."""
    flat, store = contiguous(tensor, filled=me.rank != root)
    return TorchOperation("Ibcast", (array_of(flat), root), store)


def allgather(me: Me, outputs: Tensors, given: torch.Tensor, *, far: bool = True) -> TorchOperation:
    """Return an allgather with an output per rank; outputs may differ in size, alike on all ranks."""
    _check_list(me, outputs, given, "all_gather", "output")
    sizes = [output.numel() for output in outputs]
    _check_size(me, sizes[me.rank], given, f"all_gather's output {me.rank}")
    sent = _sent(given)
    if not given.is_cuda:
        blocks, store = spread(outputs, sent=False, filled=True, far=far)
        near = partial(allgather, me, outputs, given, far=False) if far else None
        return TorchOperation("Iallgatherv", (sent, blocks), store, near)
    flat, store = joined(outputs, sent=False, filled=True)
    if len(set(sizes)) == 1:
        return TorchOperation("Iallgather", (sent, array_of(flat)), store)
    return TorchOperation("Iallgatherv", (sent, (array_of(flat), sizes)), store)


def allgather_single(me: Me, output: torch.Tensor, given: torch.Tensor) -> TorchOperation:
    """Return an allgather into one output."""
    _check_types(me, output, given, "all_gather_single")
    _check_size(me, output.numel(), given, "all_gather_single's output", me.nranks)
    sent = _sent(given)
    flat, store = contiguous(output, filled=True)
    return TorchOperation("Iallgather", (sent, array_of(flat)), store)


def reduce_scatter(me: Me, output: torch.Tensor, given: Tensors, op: Any) -> TorchOperation:
    """Return a reduce-scatter with an input per rank; inputs may differ in size, alike on all ranks."""
    _check_list(me, given, output, "reduce_scatter", "input")
    sizes = [tensor.numel() for tensor in given]
    _check_size(me, sizes[me.rank], output, f"reduce_scatter's input {me.rank}")
    sent, give_back = joined(given, sent=True, filled=False, combined=True)
    flat, bring = apart(*contiguous(output, filled=True, combined=True), sent)
    combined, bring = _combining(me, op, flat, bring)
    arrays = (array_of(sent), array_of(flat))
    store = _both(give_back, bring)
    if len(set(sizes)) == 1:
        return TorchOperation("Ireduce_scatter_block", (*arrays, combined), store)
    return TorchOperation("Ireduce_scatter", (*arrays, sizes, combined), store)


def reduce_scatter_single(me: Me, output: torch.Tensor, given: torch.Tensor, op: Any) -> TorchOperation:
    """Return a reduce-scatter of one input."""
    _check_types(me, output, given, "reduce_scatter_single")
    _check_size(me, given.numel(), output, "reduce_scatter_single's input", me.nranks)
    sent, _ = contiguous(given, filled=False, combined=True)
    flat, store = apart(*contiguous(output, filled=True, combined=True), sent)
    combined, store = _combining(me, op, flat, store)
    return TorchOperation("Ireduce_scatter_block", (array_of(sent), array_of(flat), combined), store)


def alltoall(me: Me, outputs: Tensors, given: Tensors, *, far: bool = True) -> TorchOperation:
    """Return an alltoall with an input and an output per rank, which may all differ in size."""
    _check_list(me, outputs, given[0] if given else None, "all_to_all", "output")
    _check_list(me, given, outputs[0], "all_to_all", "input")
    if not outputs[0].is_cuda:
        blocks, store = spread(outputs, sent=False, filled=True, far=far)
        arguments = spread(given, sent=True, filled=False, far=far)[0], blocks
        return TorchOperation(
            "Ialltoallv", arguments, store, partial(alltoall, me, outputs, given, far=False) if far else None
        )
    sent, _ = joined(given, sent=True, filled=False)
    flat, store = joined(outputs, sent=False, filled=True)
    spec = (array_of(sent), [tensor.numel() for tensor in given])
    return TorchOperation(
        "Ialltoallv", (spec, (array_of(flat), [output.numel() for output in outputs])), store
    )


def alltoall_single(
    me: Me, output: torch.Tensor, given: torch.Tensor, output_sizes: Sequence[int], input_sizes: Sequence[int]
) -> TorchOperation:
    """Return an alltoall of rows: as many from and to each rank as the sizes say, or equally many without sizes."""
    _check_types(me, output, given, "all_to_all_single")
    sent = _sent(given)
    flat, store = contiguous(output, filled=True)
    if not output_sizes and not input_sizes and given.numel() == output.numel():
        _rows(me, given, (), "input")
        return TorchOperation("Ialltoall", (sent, array_of(flat)), store)
    counts = _rows(me, given, input_sizes, "input"), _rows(me, output, output_sizes, "output")
    return TorchOperation("Ialltoallv", ((sent, counts[0]), (array_of(flat), counts[1])), store)


def gather(me: Me, outputs: Tensors, given: torch.Tensor, root: int) -> TorchOperation:
    """Return a gather; only the root has outputs, of equal sizes."""
    sent = _sent(given)
    if me.rank != root:
        return TorchOperation("Igather", (sent, None, root))
    _check_list(me, outputs, given, "gather", "output")
    for at, output in enumerate(outputs):
        _check_size(me, output.numel(), given, f"gather's output {at}")
    flat, store = joined(outputs, sent=False, filled=True)
    return TorchOperation("Igather", (sent, array_of(flat), root), store)


def scatter(me: Me, output: torch.Tensor, given: Tensors, root: int) -> TorchOperation:
    """Return a scatter; only the root has inputs."""
    flat, store = contiguous(output, filled=True)
    if me.rank != root:
        return TorchOperation("Iscatter", (None, array_of(flat), root), store)
    _check_list(me, given, output, "scatter", "input")
    for at, tensor in enumerate(given):
        _check_size(me, tensor.numel(), output, f"scatter's input {at}")
    sent, _ = joined(given, sent=True, filled=False)
    flat, store = apart(flat, store, sent)
    return TorchOperation("Iscatter", (array_of(sent), array_of(flat), root), store)


def _both(one: Store | None, other: Store | None) -> Store | None:
    """Return a function that calls both, or the one that there is."""
    return (lambda: (one(), other())) if one and other else one or other


def _rows(me: Me, tensor: torch.Tensor, sizes: Sequence[int], name: str) -> list[int]:
    """Return the number of elements to or from each rank."""
    rows = tensor.shape[0] if tensor.dim() else 0
    if not sizes:
        if rows % me.nranks:
            raise ArgumentError(
                f"rank {me.rank}: all_to_all_single's {name} needs a number of rows that {me.nranks} divides, got {rows}"
            )
        sizes = [rows // me.nranks] * me.nranks
    if len(sizes) != me.nranks or sum(sizes) != rows:
        wanted = f"{me.nranks} sizes that sum to its {rows} rows"
        raise ArgumentError(f"rank {me.rank}: all_to_all_single's {name} needs {wanted}, got {list(sizes)}")
    row = tensor.numel() // rows if rows else 0
    return [size * row for size in sizes]


def _check_list(me: Me, tensors: Tensors, other: torch.Tensor | None, what: str, name: str) -> None:
    """Refuse a list that has not one tensor per rank, all like another tensor."""
    if len(tensors) != me.nranks:
        raise ArgumentError(
            f"rank {me.rank}: {what} needs {me.nranks} {name}s, one per rank, got {len(tensors)}"
        )
    for tensor in tensors:
        _check_types(me, tensor, tensors[0] if other is None else other, what)


def _check_types(me: Me, one: torch.Tensor, other: torch.Tensor, what: str) -> None:
    if one.dtype != other.dtype or one.device != other.device:
        wanted, got = (f"{some.dtype} on {some.device}" for some in (other, one))
        raise ArgumentTypeError(
            f"rank {me.rank}: {what} needs tensors of one element type and device, got {wanted} and {got}"
        )


def _check_size(me: Me, got: int, tensor: torch.Tensor, what: str, times: int = 1) -> None:
    if got != times * tensor.numel():
        raise ArgumentError(f"rank {me.rank}: {what} must have {times * tensor.numel()} elements, got {got}")


def add_up(comm: Communicator, tensor: torch.Tensor, op: object) -> None:
    """Replace a sparse tensor (COO) by the sum over ranks, whose indices are those of all; blocking.

    ArgumentTypeError: layout, device or operator is another one.
    """
    if tensor.layout != torch.sparse_coo or tensor.is_cuda or operator_for(op, tensor.dtype) is not MPI.SUM:
        wanted = "a sum of COO tensors on CPUs"
        raise ArgumentTypeError(
            f"rank {comm.rank}: a sparse all_reduce needs {wanted}, got {tensor.layout} on {tensor.device} and {op}"
        )
    mine = tensor.detach().coalesce()
    counts = np.empty(comm.size, np.int64)
    comm.Allgather(np.array([mine._nnz()]), counts)
    indices, values = (_gathered(comm, rows, counts) for rows in (mine.indices().T, mine.values()))
    with torch.no_grad():
        tensor.copy_(torch.sparse_coo_tensor(indices.T, values, tensor.shape).coalesce())


def _gathered(comm: Communicator, rows: torch.Tensor, counts: np.ndarray) -> torch.Tensor:
    """Return the rows of all ranks, of which each has ``counts``."""
    every = torch.empty((int(counts.sum()), *rows.shape[1:]), dtype=rows.dtype)
    width = math.prod(rows.shape[1:])
    comm.Allgatherv(_sent(rows), (_sent(every), (counts * width).tolist()))
    return every
