"""Data-parallel training on the backend gives what one process gives on all samples: DistributedDataParallel and what hangs on it."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from operations import NRANKS, RANK
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

SMALL_MB = 0.002  # several buckets
RATE, STEPS, BATCH = 0.05, 4, 4


class Network(nn.Module):
    """Layers, one of which takes part in even steps only."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 12, sparse=sparse)
        self.layers = nn.Sequential(*[nn.Sequential(nn.Linear(12, 12), nn.Tanh()) for _ in range(5)])
        self.sometimes = nn.Linear(12, 12)

    def forward(self, words: torch.Tensor, even: bool = True) -> torch.Tensor:
        out = self.layers(self.words(words))
        return self.sometimes(out) if even else out


@pytest.fixture
def network() -> Network:
    torch.manual_seed(3)
    return Network()


def samples(step: int) -> torch.Tensor:
    """Of all ranks."""
    return torch.randint(10, (NRANKS * BATCH,), generator=torch.Generator().manual_seed(step))


def mine(step: int) -> torch.Tensor:
    return samples(step)[RANK * BATCH : (RANK + 1) * BATCH]


def trained(
    model: nn.Module,
    batches: Iterator[torch.Tensor],
    optimizer: Any = None,
    even: Callable[[int], bool] = lambda step: True,
) -> None:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), RATE)
    for step, batch in enumerate(batches):
        optimizer.zero_grad()
        model(batch, even(step)).square().mean().backward()
        optimizer.step()


def check_equal(model: nn.Module, serial: nn.Module, **tolerance: float) -> None:
    """Parameters, whatever wraps them."""
    for one, other in zip(model.parameters(), serial.parameters()):
        torch.testing.assert_close(one, other, **tolerance)


def serially(network: nn.Module, **more: Any) -> nn.Module:
    trained(network, (samples(step) for step in range(STEPS)), **more)
    return network


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}, {"static_graph": True}], ids=str)
def test_gradients_are_means_over_ranks(network: Network, options: dict[str, bool]) -> None:
    """Rank 0's parameters are everybody's from the start."""
    different = copy.deepcopy(network)
    if RANK:
        with torch.no_grad():
            for one in different.parameters():
                one += 1
    model = DistributedDataParallel(different, bucket_cap_mb=SMALL_MB, **options)
    trained(model, (mine(step) for step in range(STEPS)))
    check_equal(model, serially(network))


def test_unused_parameters(network: Network) -> None:
    def even(step: int) -> bool:
        return step % 2 == 0

    model = DistributedDataParallel(
        copy.deepcopy(network), bucket_cap_mb=SMALL_MB, find_unused_parameters=True
    )
    trained(model, (mine(step) for step in range(STEPS)), even=even)
    check_equal(model, serially(network, even=even))


def test_debugging_in_detail(network: Network) -> None:
    """As ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` sets it: models compare their parameters first, and torch may wrap groups."""
    before = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        group = dist.new_group()
        model = DistributedDataParallel(copy.deepcopy(network), process_group=group, bucket_cap_mb=SMALL_MB)
        trained(model, (mine(step) for step in range(STEPS)))
    finally:
        dist.set_debug_level(before)
    check_equal(model, serially(network))
    dist.destroy_process_group(group)


def test_sparse_gradients() -> None:
    torch.manual_seed(3)
    network = Network(sparse=True)
    model = DistributedDataParallel(copy.deepcopy(network))
    trained(model, (mine(step) for step in range(STEPS)))
    check_equal(model, serially(network))


HOOKS: dict[str, tuple[Callable[[], Any], Any, float]] = {
    "float16": (lambda: None, default_hooks.fp16_compress_hook, 2e-3),
    "PowerSGD": (
        lambda: powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=12, start_powerSGD_iter=2, min_compression_rate=0.1
        ),
        powerSGD_hook.powerSGD_hook,
        1e-4,
    ),
}


@pytest.mark.parametrize(("state", "hook", "tolerance"), HOOKS.values(), ids=HOOKS)
def test_communication_hook(network: Network, state: Callable[[], Any], hook: Any, tolerance: float) -> None:
    """Over several buckets; PowerSGD's rank is that of the layers, so that it loses nothing."""
    model = DistributedDataParallel(copy.deepcopy(network), bucket_cap_mb=SMALL_MB)
    model.register_comm_hook(state(), hook)
    trained(model, (mine(step) for step in range(STEPS)))
    check_equal(model, serially(network), rtol=tolerance, atol=tolerance)
    flat = torch.cat([one.detach().reshape(-1) for one in model.parameters()])
    every = [torch.empty_like(flat) for _ in range(NRANKS)]
    dist.all_gather(every, flat)
    assert all(torch.equal(one, flat) for one in every), "ranks train apart"


@pytest.mark.parametrize("overlap", [False, True])
def test_zero_redundancy_optimizer(network: Network, overlap: bool) -> None:
    model = DistributedDataParallel(copy.deepcopy(network), gradient_as_bucket_view=overlap)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.Adam, lr=RATE, parameters_as_bucket_view=overlap
    )
    trained(model, (mine(step) for step in range(STEPS)), optimizer)
    check_equal(
        model, serially(network, optimizer=torch.optim.Adam(network.parameters(), RATE)), rtol=1e-4, atol=1e-5
    )
    optimizer.consolidate_state_dict(to=0)
    if RANK == 0:
        assert len(optimizer.state_dict()["state"]) == len(list(network.parameters()))
