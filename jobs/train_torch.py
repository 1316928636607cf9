"""Data-parallel training by PyTorch's DistributedDataParallel on the digits data set, with backend hpcoll, gloo, or both in turns.

Run under mpirun or torchrun, e.g. ``mpirun -n 2 python jobs/train_torch.py``. With both, every rank has two models that begin alike and see
the same samples, and their steps alternate. Prints the median time of a step for each number of samples per rank, and a fingerprint of the
parameters; exit code 1 means that the losses of the backends disagree, or that ranks ended with different parameters.
"""

import argparse
import hashlib
import os
import sys
import time
import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hpcoll.torch import GroupOptions  # registers the backend

HPCOLL, GLOO = "hpcoll", "gloo"
TEST_SAMPLES, LEARNING_RATE, MOMENTUM = 360, 0.05, 0.9
WARMUP = 3  # steps that are not timed
AGREE = 0.02  # most that losses differ by on 3 ranks and more, where backends add in different orders; on 2 not at all


class Contender(NamedTuple):
    """A model in training by one backend, with time and loss of every step."""

    model: DistributedDataParallel
    optimizer: torch.optim.Optimizer
    seconds: list[float]
    losses: list[float]


def network(width: int) -> nn.Module:
    """Return two convolutions and two dense layers: images ``(n, 1, 8, 8)`` to logits ``(n, 10)``."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * width, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def load(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images and digits, in an order that is the same on every rank."""
    bunch = load_digits()
    order = np.random.default_rng(seed).permutation(len(bunch.target))
    images = torch.tensor(bunch.images[order, None] / 16, dtype=torch.float32)
    return images, torch.tensor(bunch.target[order])


def contender(group: Any, options: argparse.Namespace) -> Contender:
    """Return a model, the same for each group, and its optimiser."""
    torch.manual_seed(options.seed)
    model = DistributedDataParallel(network(options.width), process_group=group)
    return Contender(model, torch.optim.SGD(model.parameters(), LEARNING_RATE, MOMENTUM), [], [])


def step(one: Contender, images: torch.Tensor, digits: torch.Tensor) -> None:
    """Go forward, backward, and update; the ranks begin together."""
    dist.barrier()
    begun = time.perf_counter()
    one.optimizer.zero_grad()
    loss = nn.functional.cross_entropy(one.model(images), digits)
    loss.backward()
    one.optimizer.step()
    one.seconds.append(time.perf_counter() - begun)
    one.losses.append(loss.item())


def train(contenders: dict[str, Contender], batch: int, options: argparse.Namespace) -> None:
    """Take steps with each contender, in turns, on the same samples; each rank draws its own."""
    rank, (images, digits) = dist.get_rank(), (one[TEST_SAMPLES:] for one in load(options.seed))
    random, order = np.random.default_rng([options.seed, rank]), list(contenders.values())
    for done in range(options.steps):
        which = torch.from_numpy(random.integers(len(digits), size=batch))
        for one in order:
            step(one, images[which], digits[which])
        order.reverse()
        if rank == 0 and sys.stderr.isatty():
            print(
                f"\r{batch} per rank: {'#' * (40 * (done + 1) // options.steps):.<40}",
                end="",
                file=sys.stderr,
                flush=True,
            )


def accuracy(one: Contender, options: argparse.Namespace) -> float:
    """Return the share of the test samples that the model gets right."""
    images, digits = (each[:TEST_SAMPLES] for each in load(options.seed))
    with torch.no_grad():
        return float((one.model.module(images).argmax(1) == digits).float().mean())


def fingerprint(one: Contender) -> str:
    """Return a text that two models share where their parameters are equal bit by bit."""
    flat = torch.cat([parameter.detach().flatten() for parameter in one.model.parameters()])
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()[:16]


def same_everywhere(mine: str) -> bool:
    """Say whether all ranks have the same fingerprint."""
    prints = [""] * dist.get_world_size()
    dist.all_gather_object(prints, mine)
    return set(prints) == {mine}


def report(batch: int, contenders: dict[str, Contender], options: argparse.Namespace) -> bool:
    """Print one line, and say whether the ranks, and the backends, agree."""
    rank, nranks = dist.get_rank(), dist.get_world_size()
    good, ms, losses, texts = True, {}, {}, []
    for name, one in contenders.items():
        good = same_everywhere(fingerprint(one)) and good
        slowest = torch.tensor(one.seconds[WARMUP:], dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        ms[name] = float(slowest.median()) * 1e3
        loss = torch.tensor(one.losses[-10:], dtype=torch.float64).mean()
        dist.all_reduce(loss)
        losses[name] = loss.item() / nranks
        texts.append(
            f"{name} {ms[name]:8.3f} ms, loss {losses[name]:.4f}, accuracy {accuracy(one, options):.2%}, "
            f"parameters {fingerprint(one)}"
        )
    if len(ms) == 2:
        agree = abs(losses[HPCOLL] - losses[GLOO]) <= (AGREE if nranks > 2 else 0)
        good = good and agree
        texts.append(
            f"gloo / hpcoll {ms[GLOO] / ms[HPCOLL]:.2f}; {'losses agree' if agree else 'LOSSES DIFFER'}"
        )
    if rank == 0:
        print(
            f"{batch:4d} per rank: {'; '.join(texts)}{'' if good else '; RANKS OR BACKENDS DIFFER'}",
            flush=True,
        )
    return good


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", choices=(HPCOLL, GLOO, "both"), default="both")
    parser.add_argument(
        "--batches", type=int, nargs="+", default=[16, 64, 256], metavar="N", help="samples per rank and step"
    )
    parser.add_argument("--steps", type=int, default=100, help="for each number of samples")
    parser.add_argument("--width", type=int, default=16, help="channels of the first convolution")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--order", choices=("rank",), help="add up in rank order: the same bits by whatever algorithm"
    )
    return parser.parse_args()


def main() -> int:
    """Train with each number of samples, and return the exit status."""
    options = parse_options()
    warnings.filterwarnings("ignore", "Grad strides")  # of the first weights, which have one channel
    dist.init_process_group(HPCOLL, pg_options=GroupOptions(options.order))
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // dist.get_world_size()))
    names = (HPCOLL, GLOO) if options.backend == "both" else (options.backend,)
    groups = {name: dist.group.WORLD if name == HPCOLL else dist.new_group(backend=name) for name in names}
    good = True
    for batch in options.batches:
        contenders = {name: contender(group, options) for name, group in groups.items()}
        train(contenders, batch, options)
        good = report(batch, contenders, options) and good
    dist.destroy_process_group()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
