"""Trains a small neural network on several ranks and proves that the result is the one of a single process.

Start it with ``mpirun -n 4 python -m mpi4py jobs/train_digits.py``. Data-parallel: the parameters are broadcast once, every rank
computes the gradient of its share of each batch, and one allreduce per batch adds the gradients up. Ends with status 1 when the
ranks do not hold the same bits, or when the parameters are not those of the serial run.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray
from sklearn.datasets import load_digits

import hpcoll
from hpcoll.base.errors import HpcollError

Array = NDArray[Any]
TEST_SAMPLES = 360
LEARNING_RATE = 0.05  # at FULL_BATCH samples and more; a smaller batch is noisier and takes smaller steps
FULL_BATCH = 64
MOMENTUM = 0.9
STABLE = 1e-3  # a training whose parameters rounding moves further than this proves nothing


class Samples(NamedTuple):
    """Images as rows of 64 grey values in 0..1, and the digit that each one shows."""

    images: Array
    digits: Array

    def take(self, which: Array | slice) -> Samples:
        return Samples(self.images[which], self.digits[which])


class Network:
    """A tanh network; all its parameters lie in one flat buffer, so that one collective moves them."""

    def __init__(self, widths: list[int], dtype: type) -> None:
        nparameters = sum((m + 1) * n for m, n in pairwise(widths))
        self.widths = widths
        self.parameters: Array = np.zeros(nparameters, dtype)
        self.gradient: Array = np.zeros(nparameters, dtype)
        self.layers = list(self.views(self.parameters))
        self.layer_gradients = list(self.views(self.gradient))

    def views(self, flat: Array) -> Iterator[tuple[Array, Array]]:
        """Weights ``(m, n)`` and biases ``(n,)`` of each layer, as views into ``flat``."""
        start = 0
        for m, n in pairwise(self.widths):
            middle, end = start + m * n, start + (m + 1) * n
            yield flat[start:middle].reshape(m, n), flat[middle:end]
            start = end

    def initialise(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        for weights, _ in self.layers:
            weights[:] = random.normal(0.0, weights.shape[0] ** -0.5, weights.shape)

    def forward(self, images: Array) -> list[Array]:
        """Input of each layer, and as last item the logits, ``(nsamples, 10)``."""
        values = [images.astype(self.parameters.dtype)]
        for weights, biases in self.layers[:-1]:
            values.append(np.tanh(values[-1] @ weights + biases))
        weights, biases = self.layers[-1]
        return [*values, values[-1] @ weights + biases]

    def backward(self, samples: Samples) -> float:
        """Sum of the losses of some samples, perhaps none; ``gradient`` becomes the sum of their gradients."""
        *values, logits = self.forward(samples.images)
        rows = np.arange(len(samples.digits))
        logits -= logits.max(axis=1, keepdims=True)
        total = np.exp(logits).sum(axis=1, keepdims=True)
        loss = np.log(total).sum() - logits[rows, samples.digits].sum()
        delta = np.exp(logits) / total
        delta[rows, samples.digits] -= 1
        for layer in reversed(range(len(self.layers))):
            weights, biases = self.layer_gradients[layer]
            np.matmul(values[layer].T, delta, out=weights)
            np.sum(delta, axis=0, out=biases)
            delta = (delta @ self.layers[layer][0].T) * (1 - values[layer] ** 2)
        return float(loss)


def load(seed: int) -> tuple[Samples, Samples]:
    """Training and test samples, the same on every rank."""
    bunch = load_digits()
    order = np.random.default_rng(seed).permutation(len(bunch.target))
    samples = Samples(bunch.data / 16, bunch.target).take(order)
    return samples.take(slice(TEST_SAMPLES, None)), samples.take(slice(TEST_SAMPLES))


def share(count: int, rank: int, nranks: int) -> slice:
    """The part of ``count`` items that one rank works on; shares differ by at most one item."""
    return slice(count * rank // nranks, count * (rank + 1) // nranks)


def no_other_ranks(_: Array) -> None:
    """The sum over the ranks of a serial run."""


def train(
    network: Network,
    samples: Samples,
    options: argparse.Namespace,
    *,
    rank: int = 0,
    nranks: int = 1,
    sum_over_ranks: Callable[[Array], None] = no_other_ranks,
) -> Iterator[float]:
    """Trains and yields, after each epoch, the sum of the losses of this rank's samples."""
    random = np.random.default_rng(options.seed)
    rate = LEARNING_RATE * min(1.0, options.batch / FULL_BATCH)
    velocity = np.zeros_like(network.parameters)
    for _ in range(options.epochs):
        loss = 0.0
        order = random.permutation(len(samples.digits))
        for start in range(0, len(order), options.batch):
            batch = order[start : start + options.batch]
            loss += network.backward(samples.take(batch[share(len(batch), rank, nranks)]))
            sum_over_ranks(network.gradient)
            velocity *= MOMENTUM
            velocity -= rate / len(batch) * network.gradient
            network.parameters += velocity
        yield loss


def accuracy(network: Network, test: Samples, comm: hpcoll.Communicator) -> float:
    """Share of the test samples that all ranks together get right."""
    mine = test.take(share(len(test.digits), comm.rank, comm.size))
    right = np.array([np.count_nonzero(network.forward(mine.images)[-1].argmax(axis=1) == mine.digits)], np.int64)
    comm.Allreduce(MPI.IN_PLACE, right, op=MPI.SUM)
    return float(right[0]) / len(test.digits)


def train_parallel(options: argparse.Namespace, comm: hpcoll.Communicator, widths: list[int]) -> Network:
    """Trains on all ranks, with one line per epoch."""

    def sum_over_ranks(gradient: Array) -> None:
        comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM, algorithm=options.algorithm)

    training, test = load(options.seed)
    network = Network(widths, np.float32)
    if comm.rank == 0:
        network.initialise(options.seed)
    comm.Bcast(network.parameters, root=0)
    start = time.perf_counter()
    losses = train(network, training, options, rank=comm.rank, nranks=comm.size, sum_over_ranks=sum_over_ranks)
    for epoch, loss in enumerate(losses, start=1):
        total = np.array([loss])
        comm.Allreduce(MPI.IN_PLACE, total, op=MPI.SUM)
        right = accuracy(network, test, comm)
        if comm.rank == 0:
            mean = total[0] / len(training.digits)
            print(f"epoch {epoch:3d}  loss {mean:7.4f}  test accuracy {right:7.2%}  {time.perf_counter() - start:6.2f} s", flush=True)
    return network


def same_bits(parameters: Array, comm: hpcoll.Communicator) -> bool:
    """Whether all ranks hold the same bits; prints their fingerprint."""
    mine = np.frombuffer(hashlib.blake2b(parameters.tobytes(), digest_size=8).digest(), np.uint64)
    prints = np.zeros(comm.size, np.uint64)
    comm.Allgather(mine, prints)
    same = bool((prints == prints[0]).all())
    if comm.rank == 0:
        print(f"fingerprint of the parameters: {' '.join(f'{p:016x}' for p in np.unique(prints))}: ", end="")
        print("the same bits on every rank" if same else "THE RANKS DIFFER")
    return same


def equals_serial(parameters: Array, options: argparse.Namespace, widths: list[int]) -> bool:
    """Whether the parameters are those of a serial run on the same batches, up to rounding.

    The runs differ only in the order in which gradients are added: float32 rounding takes both away from the exact result, about
    equally far, perhaps to opposite sides. That distance is measured: it is how far the serial run moves when done in float64.
    So the two may differ by twice that distance.
    """

    def serial(dtype: type) -> Array:
        network = Network(widths, np.float32)
        network.initialise(options.seed)
        start, network = network.parameters, Network(widths, dtype)
        network.parameters[:] = start
        for _ in train(network, load(options.seed)[0], options):
            pass
        return network.parameters

    single, double = serial(np.float32), serial(np.float64)
    difference = float(np.abs(parameters - single).max())
    allowed = min(2 * float(np.abs(single - double).max()), STABLE)
    equal = difference <= allowed
    verdict = "equal" if equal else "NOT EQUAL"
    print(f"largest difference from the serial run: {difference:.2e}; rounding allows {allowed:.2e}: {verdict}")
    return equal


class Parser(argparse.ArgumentParser):
    """A parser whose help and errors are printed by rank 0 alone, before any rank ends."""

    def _print_message(self, message: str, file: Any = None) -> None:
        if MPI.COMM_WORLD.rank == 0:
            super()._print_message(message, file)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        try:
            super().exit(status, message)
        finally:
            MPI.COMM_WORLD.Barrier()


def parse_options() -> argparse.Namespace:
    names = (*hpcoll.algorithms("allreduce"), "native")
    parser = Parser(description="Data-parallel training on the digits data set of scikit-learn.")
    parser.add_argument("--algorithm", choices=names, metavar="NAME", help="of the gradients' allreduce; default automatic")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64, help="samples per batch, over all ranks")
    parser.add_argument("--hidden", type=int, default=128, help="width of the two hidden layers")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> int:
    options = parse_options()
    comm = hpcoll.Communicator(MPI.COMM_WORLD)
    widths = [64, options.hidden, options.hidden, 10]
    if comm.rank == 0:
        print(f"{comm.size} ranks, {'-'.join(map(str, widths))} network, allreduce algorithm: {options.algorithm or 'automatic'}")
    network = train_parallel(options, comm, widths)
    right = accuracy(network, load(options.seed)[1], comm)
    if comm.rank == 0:
        print(f"test accuracy: {right:.2%}")
    good = same_bits(network.parameters, comm)
    if comm.rank == 0:
        good = equals_serial(network.parameters, options, widths) and good
        print(f"\nWhat rank 0 asked of the communicator:\n{comm.ledger}")
    return 0 if comm.bcast(good) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HpcollError as error:
        sys.exit(f"train_digits: {error}")
