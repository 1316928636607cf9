"""Models in pieces on the backend give what one process gives: sharded, tensor parallel, in stages; and their checkpoints come back."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from operations import NRANKS, RANK
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH, STEPS, BATCH, RATE = 12, 3, 4, 0.05


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.narrow(torch.tanh(self.wide(x)))


@pytest.fixture
def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(*[Block() for _ in range(max(2, NRANKS))])


@pytest.fixture
def mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (NRANKS,))


def samples(step: int) -> torch.Tensor:
    """Of all ranks."""
    return torch.randn(NRANKS * BATCH, WIDTH, generator=torch.Generator().manual_seed(step))


def trained(model: nn.Module, alone: bool, optimizer: torch.optim.Optimizer | None = None) -> nn.Module:
    """On all samples, or on this rank's."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), RATE)
    for step in range(STEPS):
        batch = samples(step) if alone else samples(step)[RANK * BATCH : (RANK + 1) * BATCH]
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    return model


def whole(tensor: Any) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def check_equal(model: nn.Module, serial: nn.Module, tolerance: float = 1e-5) -> None:
    for (name, one), other in zip(model.named_parameters(), serial.parameters()):
        torch.testing.assert_close(
            whole(one).float(), other.detach(), rtol=tolerance, atol=tolerance, msg=name
        )


@pytest.mark.parametrize(
    "policy",
    [MixedPrecisionPolicy(), MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)],
    ids=["float32", "bfloat16"],
)
def test_fully_sharded(network: nn.Sequential, mesh: DeviceMesh, policy: MixedPrecisionPolicy) -> None:
    """Each block gathers its parameters, and scatters the sums of its gradients."""
    model = copy.deepcopy(network)
    for block in model:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    assert isinstance(next(model.parameters()), DTensor)
    trained(model, alone=False, optimizer=torch.optim.Adam(model.parameters(), RATE / 10))
    serial = trained(network, alone=True, optimizer=torch.optim.Adam(network.parameters(), RATE / 10))
    check_equal(model, serial, 1e-4 if policy.reduce_dtype is None else 3e-2)


def test_fully_sharded_by_wrapping(network: nn.Sequential) -> None:
    """FSDP1 empties and refills the storages that it sends and receives."""
    model = FullyShardedDataParallel(
        copy.deepcopy(network), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.device("cpu")
    )
    trained(model, alone=False)
    serial = trained(network, alone=True)
    with FullyShardedDataParallel.summon_full_params(model):
        check_equal(model, serial)


def test_tensor_parallel(network: nn.Sequential, mesh: DeviceMesh) -> None:
    """Columns of the first layer, rows of the second; one sum behind both."""
    model = copy.deepcopy(network)
    styles = {"wide": ColwiseParallel(), "narrow": RowwiseParallel()}
    plan = {f"{i}.{name}": style for i in range(len(model)) for name, style in styles.items()}
    parallelize_module(model, mesh, plan)
    check_equal(trained(model, alone=True), trained(network, alone=True))


def test_redistributed_tensor(mesh: DeviceMesh) -> None:
    """From one layout to each other; uneven pieces."""
    torch.manual_seed(3)
    full = torch.randn(2 * NRANKS + 1, NRANKS + 2)
    for before in (Shard(0), Shard(1), Replicate()):
        for after in (Shard(1), Shard(0), Replicate()):
            moved = distribute_tensor(full, mesh, [before]).redistribute(mesh, [after])
            assert torch.equal(moved.full_tensor(), full), f"{before} to {after}"
    parts = DTensor.from_local(full, mesh, [Partial()])
    assert torch.allclose(parts.redistribute(mesh, [Shard(0)]).full_tensor(), full * NRANKS)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("schedule", [ScheduleGPipe, Schedule1F1B])
def test_pipeline(network: nn.Sequential, schedule: Any) -> None:
    """A block per rank, micro-batches behind each other: gradients of each stage as in one process."""

    def loss(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (out - target).square().mean()

    block = copy.deepcopy(network[RANK])
    stage = PipelineStage(block, RANK, NRANKS, torch.device("cpu"))
    run = schedule(stage, n_microbatches=NRANKS, loss_fn=loss)
    batch = samples(0)
    out = run.step(*([batch] if RANK == 0 else []), **({"target": batch} if RANK == NRANKS - 1 else {}))
    loss(expected := network(batch), batch).backward()
    if RANK == NRANKS - 1:
        torch.testing.assert_close(out, expected)
    for one, other in zip(block.parameters(), network[RANK].parameters()):
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("in_flight", [False, True], ids=["blocking", "in flight"])
def test_checkpoint(network: nn.Sequential, mesh: DeviceMesh, tmp_path: Path, in_flight: bool) -> None:
    """What sharded ranks wrote, they read."""
    folder = [str(tmp_path)]
    dist.broadcast_object_list(folder, 0)
    model = copy.deepcopy(network)
    fully_shard(model, mesh=mesh)
    if in_flight:
        checkpoint.async_save(get_model_state_dict(model), checkpoint_id=folder[0]).result()
    else:
        checkpoint.save(get_model_state_dict(model), checkpoint_id=folder[0])
    with torch.no_grad():
        for one in model.parameters():
            one.zero_()
    state = get_model_state_dict(model)
    checkpoint.load(state, checkpoint_id=folder[0])
    set_model_state_dict(model, state)
    check_equal(model, network, 0)
