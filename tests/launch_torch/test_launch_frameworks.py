"""Frameworks that start processes themselves, each where it is installed."""

import importlib.util
from pathlib import Path

import pytest
from starting import LIMIT_S, Job, free_port, script, tokens

ROOT = Path(__file__).resolve().parents[2]
ACCELERATE = """
import torch
import torch.distributed as dist
import hpcoll.torch
from accelerate import Accelerator

dist.init_process_group("hpcoll")
one = Accelerator(cpu=True)
model = one.prepare(torch.nn.Linear(4, 1))
model(torch.full((2, 4), one.process_index + 1.0)).sum().backward()
assert next(model.parameters()).grad[0, 0] == (2 + 4) / 2
assert dist.get_backend() == "hpcoll"
total = one.reduce(torch.tensor(one.process_index + 1.0))
print(f"sum {one.process_index} of {one.num_processes}: {total:.0f}\\n", end="", flush=True)
dist.destroy_process_group()
"""
LIGHTNING = """
import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy
import hpcoll.torch

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, number):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

if __name__ == "__main__":
    lightning.seed_everything(1)
    samples = torch.utils.data.TensorDataset(torch.randn(32, 4))
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        strategy=DDPStrategy(process_group_backend="hpcoll"), plugins=[LightningEnvironment()],
    )
    model = Model()
    trainer.fit(model, torch.utils.data.DataLoader(samples, batch_size=4))
    assert dist.get_backend() == "hpcoll"
    mine = model.layer.weight.detach().flatten()
    every = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(every, mine)
    assert torch.equal(*every)
    x = torch.tensor(trainer.global_rank + 1.0)
    dist.all_reduce(x)
    print(f"sum {trainer.global_rank} of {trainer.world_size}: {x:.0f}\\n", end="", flush=True)
"""
DEEPSPEED = """
import deepspeed
import torch
import torch.distributed as dist
import hpcoll.torch

dist.init_process_group("hpcoll")
torch.manual_seed(1)
net = torch.nn.Linear(4, 1)
steps = {"train_batch_size": 4, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=steps)
for _ in range(3):
    engine.backward(engine(torch.randn(2, 4)).square().mean())
    engine.step()
mine = net.weight.detach().flatten()
every = [torch.empty_like(mine) for _ in range(2)]
dist.all_gather(every, mine)
assert torch.equal(*every)
assert dist.get_backend() == "hpcoll"
x = torch.tensor(dist.get_rank() + 1.0)
dist.all_reduce(x)
print(f"sum {dist.get_rank()} of {dist.get_world_size()}: {x:.0f}\\n", end="", flush=True)
dist.destroy_process_group()
"""


def need(package: str) -> None:
    """Skip a test by name where a package is not installed."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")


def test_accelerate(job: Job, tmp_path: Path) -> None:
    need("accelerate")
    port = f"--main_process_port={free_port()}"
    where = (
        "--multi_gpu",
        "--num_processes=2",
        "--num_machines=1",
        port,
    )  # its only launcher of several processes
    how = ("--mixed_precision=no", "--dynamo_backend=no")
    program = script(tmp_path, ACCELERATE)
    tokens(job.run("-m", "accelerate.commands.launch", *where, *how, program), 2)


def test_lightning(job: Job, tmp_path: Path) -> None:
    need("lightning")
    tokens(job.run(script(tmp_path, LIGHTNING)), 2)


@pytest.mark.timeout(3 * LIMIT_S)
def test_deepspeed(job: Job, tmp_path: Path) -> None:
    need("deepspeed")
    where = ("--num_gpus=2", "--no_ssh_check", f"--master_port={free_port()}")
    program = script(tmp_path, DEEPSPEED)
    tokens(job.run("-m", "deepspeed.launcher.runner", *where, program), 2)


@pytest.mark.parametrize(("package", "example"), [("ray", "ray_workers"), ("distributed", "dask_workers")])
def test_example(job: Job, package: str, example: str) -> None:
    need(package)
    said = job.run(ROOT / "examples" / f"{example}.py", "--nranks=3", "--count=1000")
    tokens(said, 3)
