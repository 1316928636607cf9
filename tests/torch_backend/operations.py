"""Calls of torch.distributed, each with what it must give on this rank, from contributions that every rank can compute."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from mpi4py import MPI

RANK, NRANKS = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
LAST = NRANKS - 1
RANKS = range(NRANKS)

Pairs = list[tuple[torch.Tensor, torch.Tensor]]


class Caller(NamedTuple):
    """A way of making calls.

    Attributes:
        in_flight: By ``async_op=True`` and ``wait``; else blocking.
        device: Of all tensors.
        dtype: Of their elements, which are small integers.
    """

    in_flight: bool
    device: torch.device
    dtype: torch.dtype = torch.float32

    def __call__(self, operation: Callable[..., Any], *args: Any, **more: Any) -> None:
        work = operation(*args, async_op=self.in_flight, **more)
        if self.in_flight:
            work.wait()

    def given(self, rank: int, *shape: int) -> torch.Tensor:
        """Return what a rank contributes; different on each."""
        flat = torch.arange(torch.Size(shape).numel(), device=self.device)
        return ((flat * 3 + rank * 2) % 5 + 1).to(self.dtype).view(shape)

    def every(self, *shape: int) -> list[torch.Tensor]:
        """Return what all ranks contribute."""
        return [self.given(rank, *shape) for rank in RANKS]

    def empty(self, *shape: int) -> torch.Tensor:
        """Return what is to be filled."""
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def total(self, *shape: int) -> torch.Tensor:
        """The sum of what all ranks contribute."""
        return torch.stack(self.every(*shape)).sum(0, dtype=self.dtype)


def all_reduce(by: Caller) -> Pairs:
    tensor = by.given(RANK, 3, 5)
    by(dist.all_reduce, tensor)
    return [(tensor, by.total(3, 5))]


def all_reduce_with_gaps(by: Caller) -> Pairs:
    """Call with gaps between the elements, which stay as they were."""
    around = by.empty(4, 6)
    around[:, ::2] = by.given(RANK, 4, 3)
    by(dist.all_reduce, around[:, ::2])
    return [(around[:, ::2], by.total(4, 3)), (around[:, 1::2], by.empty(4, 3))]


def all_reduce_of_nothing(by: Caller) -> Pairs:
    tensor = by.empty(0)
    by(dist.all_reduce, tensor)
    return [(tensor, by.empty(0))]


def reduce(by: Caller) -> Pairs:
    """Other ranks' tensors stay as they are."""
    tensor = by.given(RANK, 7)
    by(dist.reduce, tensor, LAST)
    return [(tensor, by.total(7) if RANK == LAST else by.given(RANK, 7))]


def broadcast(by: Caller) -> Pairs:
    tensor = by.given(RANK, 2, 3).t()
    by(dist.broadcast, tensor, LAST)
    return [(tensor, by.given(LAST, 2, 3).t())]


def all_gather(by: Caller) -> Pairs:
    outputs = [by.empty(4) for _ in RANKS]
    by(dist.all_gather, outputs, by.given(RANK, 4))
    return list(zip(outputs, by.every(4)))


def all_gather_into_parts(by: Caller) -> Pairs:
    """Of one tensor, which need no copy."""
    whole = by.empty(NRANKS, 4)
    by(dist.all_gather, list(whole.unbind()), by.given(RANK, 4))
    return [(whole, torch.stack(by.every(4)))]


def all_gather_uneven(by: Caller) -> Pairs:
    outputs = [by.empty(rank + 1) for rank in RANKS]
    by(dist.all_gather, outputs, by.given(RANK, RANK + 1))
    return [(outputs[rank], by.given(rank, rank + 1)) for rank in RANKS]


def all_gather_into_tensor(by: Caller) -> Pairs:
    behind, stacked = by.empty(2 * NRANKS, 3), by.empty(NRANKS, 2, 3)
    for output in (behind, stacked):
        by(dist.all_gather_into_tensor, output, by.given(RANK, 2, 3))
    return [(behind, torch.cat(by.every(2, 3))), (stacked, torch.stack(by.every(2, 3)))]


def reduce_scatter(by: Caller) -> Pairs:
    output = by.empty(5)
    by(dist.reduce_scatter, output, list(by.given(RANK, NRANKS, 5)))
    return [(output, by.total(NRANKS, 5)[RANK])]


def reduce_scatter_uneven(by: Caller) -> Pairs:
    output = by.empty(RANK + 1)
    by(dist.reduce_scatter, output, [by.given(RANK, rank + 1) for rank in RANKS])
    return [(output, by.total(RANK + 1))]


def reduce_scatter_tensor(by: Caller) -> Pairs:
    output = by.empty(2, 3)
    by(dist.reduce_scatter_tensor, output, by.given(RANK, 2 * NRANKS, 3))
    return [(output, by.total(2 * NRANKS, 3)[2 * RANK : 2 * RANK + 2])]


def reduce_scatter_in_place(by: Caller) -> Pairs:
    """The output is the rank's own part of the input, as with NCCL; other parts stay as they are."""
    single, whole = by.given(RANK, 2 * NRANKS), by.given(RANK, 2 * NRANKS)
    parts = list(whole.split(2))
    by(dist.reduce_scatter_tensor, single[2 * RANK : 2 * RANK + 2], single)
    by(dist.reduce_scatter, parts[RANK], parts)
    expected = by.given(RANK, 2 * NRANKS)
    expected[2 * RANK : 2 * RANK + 2] = by.total(2 * NRANKS)[2 * RANK : 2 * RANK + 2]
    return [(single, expected), (whole, expected)]


def moved_in_place(by: Caller) -> Pairs:
    """What a rank sends to itself lies where it is received."""
    single, whole, spread = by.empty(NRANKS, 3), by.empty(NRANKS, 3), by.given(LAST, NRANKS, 3)
    for one in (single, whole):
        one[RANK] = by.given(RANK, 3)
    by(dist.all_gather_into_tensor, single, single[RANK])
    by(dist.all_gather, list(whole.unbind()), whole[RANK])
    by(dist.scatter, spread[0], list(spread.unbind()) if RANK == LAST else None, LAST)
    gathered = torch.stack(by.every(3))
    return [(single, gathered), (whole, gathered), (spread[0], by.given(LAST, NRANKS, 3)[RANK])]


def all_to_all_single(by: Caller) -> Pairs:
    output = by.empty(2 * NRANKS, 3)
    by(dist.all_to_all_single, output, by.given(RANK, 2 * NRANKS, 3))
    return [(output, torch.cat([one[2 * RANK : 2 * RANK + 2] for one in by.every(2 * NRANKS, 3)]))]


def all_to_all_single_uneven(by: Caller) -> Pairs:
    """Rank r sends q + 1 rows to rank q, and nothing to itself."""
    sizes = [[rank + 1 if rank != me else 0 for rank in RANKS] for me in RANKS]
    received = [sizes[rank][RANK] for rank in RANKS]
    output = by.empty(sum(received), 2)
    by(dist.all_to_all_single, output, by.given(RANK, sum(sizes[RANK]), 2), received, sizes[RANK])
    rows = [by.given(rank, sum(sizes[rank]), 2).split(sizes[rank])[RANK] for rank in RANKS]
    return [(output, torch.cat(rows))]


def all_to_all(by: Caller) -> Pairs:
    outputs = [by.empty(RANK + rank + 1) for rank in RANKS]
    by(dist.all_to_all, outputs, [by.given(RANK, RANK + rank + 1) for rank in RANKS])
    return [(outputs[rank], by.given(rank, RANK + rank + 1)) for rank in RANKS]


def gather(by: Caller) -> Pairs:
    outputs = [by.empty(3) for _ in RANKS] if RANK == LAST else None
    by(dist.gather, by.given(RANK, 3), outputs, LAST)
    return list(zip(outputs or [], by.every(3)))


def scatter(by: Caller) -> Pairs:
    output = by.empty(3)
    by(dist.scatter, output, list(by.given(LAST, NRANKS, 3)) if RANK == LAST else None, LAST)
    return [(output, by.given(LAST, NRANKS, 3)[RANK])]


def barrier(by: Caller) -> Pairs:
    by(dist.barrier)
    return []


def coalesced(by: Caller) -> Pairs:
    """Several in one: of one kind, which torch calls by another name, and of two kinds."""
    sums, whole = [by.given(RANK, 4 + i) for i in range(3)], [by.empty(NRANKS, 3) for _ in range(2)]
    parts = [by.empty(2) for _ in range(2)]
    with dist.distributed_c10d._coalescing_manager(async_ops=by.in_flight) as first:
        for one in sums:
            dist.all_reduce(one)
    with dist.distributed_c10d._coalescing_manager(async_ops=by.in_flight) as second:
        for one in whole:
            dist.all_gather_into_tensor(one, by.given(RANK, 3))
    with dist.distributed_c10d._coalescing_manager(async_ops=by.in_flight) as third:
        for one in parts:
            dist.reduce_scatter_tensor(one, by.given(RANK, 2 * NRANKS))
    if by.in_flight:
        for works in (first, second, third):
            works.wait()
    scattered = by.total(2 * NRANKS)[2 * RANK : 2 * RANK + 2]
    pairs = [(one, by.total(4 + i)) for i, one in enumerate(sums)] + [
        (one, torch.stack(by.every(3))) for one in whole
    ]
    return pairs + [(one, scattered) for one in parts]


MOVES = (
    broadcast,
    all_gather,
    all_gather_into_parts,
    all_gather_uneven,
    all_gather_into_tensor,
    moved_in_place,
    all_to_all_single,
    all_to_all_single_uneven,
    all_to_all,
    gather,
    scatter,
)
OPERATIONS = (
    *MOVES,
    all_reduce,
    all_reduce_with_gaps,
    all_reduce_of_nothing,
    reduce,
    reduce_scatter,
    reduce_scatter_uneven,
    reduce_scatter_tensor,
    reduce_scatter_in_place,
    barrier,
    coalesced,
)
