"""Groups of some ranks: each gives its own results, also several at once, and what a group is not told it does not need."""

import inspect

import pytest
import torch
import torch.distributed as dist
from operations import NRANKS, RANK, RANKS, Caller

import hpcoll
import hpcoll.torch
from hpcoll.base.canonical import fold


def total(by: Caller, ranks: list[int], count: int = 5) -> torch.Tensor:
    return torch.stack([by.given(rank, count) for rank in ranks]).sum(0)


def test_world_is_mpi(device: torch.device) -> None:
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (RANK, NRANKS, "hpcoll")
    assert dist.is_backend_available("hpcoll")


@pytest.mark.mpi(min_size=2)
def test_new_group_in_another_order(device: torch.device) -> None:
    """Ranks within it are those of the list, and roots are told as ranks of the world."""
    by, ranks = Caller(False, device), list(RANKS[::-1][: NRANKS - 1])
    if NRANKS > 2 and "sort_ranks" not in inspect.signature(dist.new_group).parameters:
        pytest.skip(f"torch {torch.__version__} sorts the ranks of a group")
    group = dist.new_group(ranks, sort_ranks=False) if NRANKS > 2 else dist.new_group(ranks)
    if RANK not in ranks:
        assert dist.get_rank(group) == -1
    else:
        assert dist.get_rank(group) == ranks.index(RANK)
        tensor, told = by.given(RANK, 5), by.given(RANK, 3)
        dist.all_reduce(tensor, group=group)
        dist.broadcast(told, src=ranks[-1], group=group)
        assert torch.equal(tensor, total(by, ranks))
        assert torch.equal(told, by.given(ranks[-1], 3))
        outputs = [by.empty(2) for _ in ranks]
        dist.all_gather(outputs, by.given(RANK, 2), group=group)
        assert torch.equal(torch.stack(outputs), torch.stack([by.given(rank, 2) for rank in ranks]))
        dist.destroy_process_group(group)


@pytest.mark.mpi(min_size=2)
def test_several_groups_in_flight() -> None:
    """Calls of different groups end in any order; one group has all ranks, some have two."""
    by = Caller(False, torch.device("cpu"))
    pairs = [[rank, (rank + 1) % NRANKS] for rank in RANKS[: NRANKS - 1]]
    groups = [(list(RANKS), dist.new_group())] + [(pair, dist.new_group(pair)) for pair in pairs]
    works = []
    for ranks, group in groups:
        if RANK in ranks:
            tensors = [by.given(RANK, 5) for _ in range(3)]
            works += [(dist.all_reduce(one, group=group, async_op=True), one, ranks) for one in tensors]
    for work, tensor, ranks in reversed(works):
        work.wait()
        assert torch.equal(tensor, total(by, ranks))
    for ranks, group in reversed(groups):
        if RANK in ranks:
            dist.destroy_process_group(group)


def test_order(device: torch.device) -> None:
    """Of a group with an order: sums are those of one expression over the ranks, whatever the size."""
    group = dist.new_group(pg_options=hpcoll.torch.GroupOptions(order="rank"))
    for count in (7, 40_000 * NRANKS):
        generator = torch.Generator().manual_seed(count)
        every = [
            torch.randn(count, generator=generator)
            * 2.0 ** torch.randint(-20, 20, (count,), generator=generator)
            for _ in RANKS
        ]
        whole, part = every[RANK].to(device), torch.empty(count // NRANKS, device=device)
        wanted = fold(torch.add, every)
        dist.reduce_scatter_tensor(part, whole[: part.numel() * NRANKS].clone(), group=group)
        dist.all_reduce(whole, group=group)
        assert torch.equal(whole.cpu(), wanted)
        assert torch.equal(part.cpu(), wanted[RANK * part.numel() : (RANK + 1) * part.numel()])
    dist.destroy_process_group(group)
    with pytest.raises(hpcoll.ArgumentError, match="order must be 'rank' or None, got 'ring'"):
        hpcoll.torch.GroupOptions(order="ring")
