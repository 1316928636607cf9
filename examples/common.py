"""Options, data, the shares of ranks, and the layers of a small network, for all examples."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_limits

Array = NDArray[Any]
threadpool_limits(1)  # ranks share the cores already: threads of NumPy's BLAS would wait for each other


class Parser(argparse.ArgumentParser):
    """A parser whose help and errors are printed by rank 0 alone, before any rank ends; it has the options of all examples."""

    def __init__(self, description: str) -> None:
        super().__init__(description=description)
        self.add_argument("--seed", type=int, default=0)
        self.add_argument("--plot", metavar="FILE.svg", help="draw who does what when, in the last step")

    def _print_message(self, message: str, file: Any = None) -> None:
        if MPI.COMM_WORLD.rank == 0:
            super()._print_message(message, file)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End once all ranks have come here."""
        try:
            super().exit(status, message)
        finally:
            MPI.COMM_WORLD.Barrier()


def load() -> tuple[Array, Array]:
    """Return images of digits as rows of 64 grey values in 0..1, and the digit that each shows; the same on every rank."""
    bunch = load_digits()
    return bunch.data / 16, bunch.target


def batches(options: argparse.Namespace) -> Iterator[tuple[Array, Array]]:
    """Yield ``options.steps`` batches of ``options.batch`` images and digits, the same on every rank."""
    images, digits = load()
    random = np.random.default_rng(options.seed)
    for _ in range(options.steps):
        which = random.choice(len(digits), options.batch, replace=False)
        yield images[which], digits[which]


def share(count: int, rank: int, nranks: int) -> slice:
    """Return the part of ``count`` items that one rank holds; shares differ by at most one item."""
    return slice(count * rank // nranks, count * (rank + 1) // nranks)


def shares(count: int, nranks: int) -> list[int]:
    """Return the number of ``count`` items that each rank holds."""
    return [count * (rank + 1) // nranks - count * rank // nranks for rank in range(nranks)]


def layers(widths: Sequence[int], seed: int) -> list[Array]:
    """Return initial parameters of dense layers, each ``(m + 1, n)``: weights, and biases as last row; the same on every rank."""
    random = np.random.default_rng(seed)
    return [np.vstack([random.normal(0.0, m**-0.5, (m, n)), np.zeros(n)]) for m, n in pairwise(widths)]


def dense(x: Array, layer: Array, *, last: bool = False) -> Array:
    """Return the output of a tanh layer, or of the last one, which is linear."""
    y = x @ layer[:-1] + layer[-1]
    return y if last else np.tanh(y)


def dense_gradients(
    x: Array, y: Array, layer: Array, delta: Array, *, last: bool = False
) -> tuple[Array, Array]:
    """Return gradients by the layer's parameters and by its input, from that by its output."""
    delta = delta if last else delta * (1 - y**2)
    return np.vstack([x.T @ delta, delta.sum(axis=0)]), delta @ layer[:-1].T


def cross_entropy_gradient(logits: Array, digits: Array, count: int) -> Array:
    """Return the gradient of the mean cross-entropy loss of ``count`` samples, of which these are some, by their logits."""
    delta = np.exp(logits - logits.max(axis=1, keepdims=True))
    delta /= delta.sum(axis=1, keepdims=True)
    delta[np.arange(len(digits)), digits] -= 1
    return delta / count
