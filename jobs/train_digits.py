"""Trains a small neural network on several ranks and proves that the result is the one of a single process.

Start it with ``mpirun -n 4 python -m mpi4py jobs/train_digits.py``. Data-parallel: the parameters are broadcast once, every rank
computes the gradient of its share of each batch, and buckets of gradients are added up over the ranks while those of earlier layers
are still being computed. Ends with status 1 when ranks hold different bits, or when the parameters are not those of the serial run.

With ``--exact`` the parameters have the same bits on any number of ranks, and those of the serial run. Two things would change with the
number of ranks: sums over ranks, and what BLAS computes, whose additions are ordered by the shapes of its matrices. So a batch is cut
into micro-batches of `MICRO` samples whatever the ranks. Each has its gradients computed by one rank, in one thread. The gradients are
added up over all micro-batches with `hpcoll.exact_sum`, which rounds correctly, hence once.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_limits

import hpcoll
from hpcoll.base.errors import HpcollError

Array = NDArray[Any]
TEST_SAMPLES = 360
LEARNING_RATE = 0.05  # at FULL_BATCH samples and more; a smaller batch is noisier and takes smaller steps
FULL_BATCH = 64
MOMENTUM = 0.9
MICRO = 8  # samples of a micro-batch; the last of a batch may have fewer
STABLE = 1e-3  # a training whose parameters rounding moves further than this proves nothing


class Samples(NamedTuple):
    """Images as rows of 64 grey values in 0..1, and the digit that each one shows."""

    images: Array
    digits: Array

    def take(self, which: Array | slice) -> Samples:
        """Return some of the samples."""
        return Samples(self.images[which], self.digits[which])


class Alone:
    """Gradients of a serial run; `hpcoll.GradientBuckets` does the same for several ranks.

    Attributes:
        gradients: Gradient of each parameter, to be written.
    """

    def __init__(self, parameters: dict[str, Array]) -> None:
        self.gradients = {name: np.zeros_like(one) for name, one in parameters.items()}

    def ready(self, name: str) -> None:
        """Take note that a gradient has been written."""

    def wait(self) -> None:
        """Return when the gradients are the sums over all ranks."""


class ExactGradients:
    """Correctly rounded sums of the gradients of all ranks' micro-batches; until `wait`, ``gradients`` are those of one micro-batch."""

    def __init__(self, network: Network, comm: hpcoll.Communicator | None) -> None:
        like = Network(network.widths, network.flat.dtype.type)
        self.gradients, self._flat, self._comm, self._rows = like.parameters, like.flat, comm, list[Array]()

    def ready(self, name: str) -> None:
        """Keep the gradients of a micro-batch once the last is written, the first layer's."""
        if name == "weights 0":
            self._rows.append(self._flat.copy())

    def wait(self) -> None:
        """Add up; this rank may have had no micro-batch."""
        rows = np.array(self._rows, self._flat.dtype).reshape(-1, self._flat.size)
        self._flat[:] = hpcoll.exact_sum(self._comm, rows, axis=0)
        self._rows.clear()


Sums = Alone | ExactGradients | hpcoll.GradientBuckets


class Network:
    """A tanh network: weights ``(m, n)`` and biases ``(n,)`` of each layer, by name, as views into one array."""

    def __init__(self, widths: list[int], dtype: type) -> None:
        self.widths = widths
        self.flat: Array = np.zeros(sum((m + 1) * n for m, n in pairwise(widths)), dtype)
        self.parameters: dict[str, Array] = {}
        start = 0
        for layer, (m, n) in enumerate(pairwise(widths)):
            middle, end = start + m * n, start + (m + 1) * n
            self.parameters[f"weights {layer}"] = self.flat[start:middle].reshape(m, n)
            self.parameters[f"biases {layer}"] = self.flat[middle:end]
            start = end
        self.layers = [
            (self.parameters[f"weights {i}"], self.parameters[f"biases {i}"]) for i in range(len(widths) - 1)
        ]

    def initialise(self, seed: int) -> None:
        """Draw the weights."""
        random = np.random.default_rng(seed)
        for weights, _ in self.layers:
            weights[:] = random.normal(0.0, weights.shape[0] ** -0.5, weights.shape)

    def forward(self, images: Array) -> list[Array]:
        """Return the input of each layer, and as last item the logits, ``(nsamples, 10)``."""
        values = [images.astype(self.flat.dtype)]
        for weights, biases in self.layers[:-1]:
            values.append(np.tanh(values[-1] @ weights + biases))
        weights, biases = self.layers[-1]
        return [*values, values[-1] @ weights + biases]

    def backward(self, samples: Samples, into: Sums) -> float:
        """Return the sum of the losses of some samples, perhaps none, and write the sums of their gradients, the last layer's first."""
        *values, logits = self.forward(samples.images)
        rows = np.arange(len(samples.digits))
        logits -= logits.max(axis=1, keepdims=True)
        total = np.exp(logits).sum(axis=1, keepdims=True)
        loss = np.log(total).sum() - logits[rows, samples.digits].sum()
        delta = np.exp(logits) / total
        delta[rows, samples.digits] -= 1
        for layer in reversed(range(len(self.layers))):
            np.sum(delta, axis=0, out=into.gradients[f"biases {layer}"])
            into.ready(f"biases {layer}")
            np.matmul(values[layer].T, delta, out=into.gradients[f"weights {layer}"])
            into.ready(f"weights {layer}")
            delta = (delta @ self.layers[layer][0].T) * (1 - values[layer] ** 2)
        return float(loss)


def load(seed: int) -> tuple[Samples, Samples]:
    """Return training and test samples, the same on every rank."""
    bunch = load_digits()
    order = np.random.default_rng(seed).permutation(len(bunch.target))
    samples = Samples(bunch.data / 16, bunch.target).take(order)
    return samples.take(slice(TEST_SAMPLES, None)), samples.take(slice(TEST_SAMPLES))


def share(count: int, rank: int, nranks: int) -> slice:
    """Return the part of ``count`` items that one rank works on; shares differ by at most one item."""
    return slice(count * rank // nranks, count * (rank + 1) // nranks)


def parts(batch: Array, sums: Sums, rank: int, nranks: int) -> list[Array]:
    """Return what one rank takes of a batch: its share, or for exact sums whole micro-batches, whose cut does not depend on the ranks."""
    if not isinstance(sums, ExactGradients):
        return [batch[share(len(batch), rank, nranks)]]
    starts = range(0, len(batch), MICRO)
    return [batch[start : start + MICRO] for start in starts[share(len(starts), rank, nranks)]]


def train(
    network: Network,
    samples: Samples,
    options: argparse.Namespace,
    sums: Sums,
    rank: int = 0,
    nranks: int = 1,
) -> Iterator[Array]:
    """Train, and yield after each epoch the losses of this rank, a number for each call of `Network.backward`."""
    random = np.random.default_rng(options.seed)
    rate = LEARNING_RATE * min(1.0, options.batch / FULL_BATCH)
    velocities = {name: np.zeros_like(one) for name, one in network.parameters.items()}
    for _ in range(options.epochs):
        losses = list[float]()
        order = random.permutation(len(samples.digits))
        for start in range(0, len(order), options.batch):
            batch = order[start : start + options.batch]
            losses += [
                network.backward(samples.take(part), sums) for part in parts(batch, sums, rank, nranks)
            ]
            sums.wait()
            for name, velocity in velocities.items():
                velocity *= MOMENTUM
                velocity -= rate / len(batch) * sums.gradients[name]
                network.parameters[name] += velocity
        yield np.array(losses, np.float64)


def accuracy(network: Network, test: Samples, sums: Sums, comm: hpcoll.Communicator) -> float:
    """Return the share of the test samples that all ranks together get right."""
    mine = [test.take(part) for part in parts(np.arange(len(test.digits)), sums, comm.rank, comm.size)]
    right = np.array(
        [sum(np.count_nonzero(network.forward(one.images)[-1].argmax(axis=1) == one.digits) for one in mine)],
        np.int64,
    )
    comm.Allreduce(MPI.IN_PLACE, right, op=MPI.SUM)
    return float(right[0]) / len(test.digits)


def train_parallel(options: argparse.Namespace, comm: hpcoll.Communicator, widths: list[int]) -> Network:
    """Train on all ranks, and print a line per epoch."""
    training, test = load(options.seed)
    network = Network(widths, np.float32)
    if comm.rank == 0:
        network.initialise(options.seed)
    comm.Bcast(network.flat)
    settings = {"mean": False, "bucket": options.bucket, "algorithm": options.algorithm}
    sums: Sums = (
        ExactGradients(network, comm)
        if options.exact
        else hpcoll.GradientBuckets(comm, network.parameters, **settings)
    )
    start, count = time.perf_counter(), len(training.digits)
    for epoch, losses in enumerate(train(network, training, options, sums, comm.rank, comm.size), start=1):
        total = np.array(hpcoll.exact_sum(comm, losses) if options.exact else losses.sum())
        if not options.exact:
            comm.Allreduce(MPI.IN_PLACE, total, op=MPI.SUM)
        right, seconds = accuracy(network, test, sums, comm), time.perf_counter() - start
        if comm.rank == 0:
            print(
                f"epoch {epoch:3d}  loss {total.item() / count:7.4f}  test accuracy {right:7.2%}  {seconds:6.2f} s",
                flush=True,
            )
    return network


def same_bits(parameters: Array, comm: hpcoll.Communicator) -> bool:
    """Say whether all ranks hold the same bits, and print their fingerprint."""
    mine = np.frombuffer(hashlib.blake2b(parameters.tobytes(), digest_size=8).digest(), np.uint64)
    prints = np.zeros(comm.size, np.uint64)
    comm.Allgather(mine, prints)
    same = bool((prints == prints[0]).all())
    if comm.rank == 0:
        print(f"fingerprint of the parameters: {' '.join(f'{p:016x}' for p in np.unique(prints))}: ", end="")
        print("the same bits on every rank" if same else "THE RANKS DIFFER")
    return same


def equals_serial(parameters: Array, options: argparse.Namespace, widths: list[int]) -> bool:
    """Say whether the parameters are those of a serial run on the same batches, up to rounding.

    The runs add gradients in another order, so float32 rounding takes both about equally far from the exact result, perhaps to opposite
    sides. That distance is measured by a serial run in float64; the two may differ by twice as much. With exact sums the bits are equal.
    """

    def serial(dtype: type, exact: bool = False) -> Array:
        network = Network(widths, np.float32)
        network.initialise(options.seed)
        start, network = network.flat, Network(widths, dtype)
        network.flat[:] = start
        sums = ExactGradients(network, None) if exact else Alone(network.parameters)
        for _ in train(network, load(options.seed)[0], options, sums):
            pass
        return network.flat

    single, double = serial(np.float32), serial(np.float64)
    difference = float(np.abs(parameters - single).max())
    allowed = min(2 * float(np.abs(single - double).max()), STABLE)
    equal = difference <= allowed
    verdict = "equal" if equal else "NOT EQUAL"
    print(
        f"largest difference from the serial run: {difference:.2e}; rounding allows {allowed:.2e}: {verdict}"
    )
    if options.exact:
        same = parameters.tobytes() == serial(np.float32, exact=True).tobytes()
        print(f"the bits of a serial run with exact sums: {'yes' if same else 'NO'}")
        equal = equal and same
    return equal


class Parser(argparse.ArgumentParser):
    """A parser whose help and errors are printed by rank 0 alone, before any rank ends."""

    def _print_message(self, message: str, file: Any = None) -> None:
        if MPI.COMM_WORLD.rank == 0:
            super()._print_message(message, file)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End once all ranks have come here."""
        try:
            super().exit(status, message)
        finally:
            MPI.COMM_WORLD.Barrier()


def parse_options(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    names = (*hpcoll.algorithms("allreduce"), "native")
    parser = Parser(description="Data-parallel training on the digits data set of scikit-learn.")
    sums = parser.add_mutually_exclusive_group()
    sums.add_argument(
        "--algorithm", choices=names, metavar="NAME", help="of the gradients' allreduce; default automatic"
    )
    sums.add_argument(
        "--exact", action="store_true", help="correctly rounded sums: the same bits on any number of ranks"
    )
    parser.add_argument(
        "--bucket", default="64K", metavar="SIZE", help="bytes of gradients that travel together"
    )
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64, help="samples per batch, over all ranks")
    parser.add_argument("--hidden", type=int, default=128, help="width of the two hidden layers")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Train, prove the result, and return the exit status."""
    options = parse_options(arguments)
    if options.exact:
        threadpool_limits(1)  # threads of BLAS divide the sums of a matrix product among them
    comm = hpcoll.Communicator(MPI.COMM_WORLD)
    widths = [64, options.hidden, options.hidden, 10]
    if comm.rank == 0:
        how = "exact sums" if options.exact else f"allreduce algorithm: {options.algorithm or 'automatic'}"
        print(f"{comm.size} ranks, {'-'.join(map(str, widths))} network, {how}")
    network = train_parallel(options, comm, widths)
    good = same_bits(network.flat, comm)
    if comm.rank == 0:
        good = equals_serial(network.flat, options, widths) and good
        print(f"\nWhat rank 0 asked of the communicator:\n{comm.ledger}")
    return 0 if comm.bcast(good) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HpcollError as error:
        sys.exit(f"train_digits: {error}")
