"""Fully sharded data parallelism: parameters, gradients and optimiser state are shared out over the ranks.

Start it with ``mpirun -n 4 python -m mpi4py examples/fully_sharded.py``. ZeRO's third stage (arXiv 1910.02054), PyTorch's FSDP (arXiv
2304.11277). Each rank works on its share of a batch of scikit-learn's digits, and keeps a share of each layer's parameters and of their
momenta. An allgather brings a layer together when it is wanted, forward and again backward, and it is dropped after use; a reduce_scatter
adds up gradients and leaves each rank those of its share. Three messages of all parameters' size per step; an allreduce of the gradients,
itself a reduce_scatter and an allgather, moves two thirds of that, but keeps everything everywhere.
Ends with status 1 when the parameters are not those of one rank.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from common import (
    Array,
    Parser,
    batches,
    cross_entropy_gradient,
    dense,
    dense_gradients,
    layers,
    share,
    shares,
)
from mpi4py import MPI
from timeline import Trace

import hpcoll

RATE, MOMENTUM = 0.1, 0.9
WIDTHS = (64, 129, 129, 10)


class Sharded:
    """This rank's share of each layer of a network, and of the momenta.

    Attributes:
        shapes: Of the layers.
        counts: Elements of each layer that each rank holds.
        shards: Those that this rank holds, one array per layer.
        most: Most elements of parameters that this rank had at once: its shards, and a layer that was brought together.
    """

    def __init__(self, comm: hpcoll.Communicator, seed: int) -> None:
        self.comm, self.trace = comm, Trace(comm)
        whole = layers(WIDTHS, seed)
        self.shapes = [layer.shape for layer in whole]
        self.counts = [shares(layer.size, comm.size) for layer in whole]
        self.shards = [layer.ravel()[share(layer.size, comm.rank, comm.size)].copy() for layer in whole]
        self.momenta = [np.zeros_like(shard) for shard in self.shards]
        self.most = 0

    def whole(self, i: int) -> Array:
        """Return a layer, brought together from all ranks."""
        layer = np.empty(self.shapes[i])
        with self.trace("collective", f"Allgatherv {i}"):
            self.comm.Allgatherv(self.shards[i], [layer, self.counts[i]])
        self.most = max(self.most, layer.size + sum(shard.size for shard in self.shards))
        return layer

    def descend(self, i: int, gradient: Array) -> None:
        """Update this rank's share of a layer, with momentum, by the sum of all ranks' gradients."""
        mine = np.empty_like(self.shards[i])
        with self.trace("collective", f"Reduce_scatter {i}"):
            self.comm.Reduce_scatter(gradient, mine, self.counts[i], op=MPI.SUM)
        self.momenta[i] *= MOMENTUM
        self.momenta[i] -= RATE * mine
        self.shards[i] += self.momenta[i]

    def step(self, images: Array, digits: Array) -> None:
        """Train on a batch, of which this rank sees its share."""
        self.trace.restart()
        part = share(len(digits), self.comm.rank, self.comm.size)
        values, last = [images[part]], len(self.shards) - 1
        for i in range(last + 1):
            layer = self.whole(i)
            with self.trace("forward", f"F{i}"):
                values.append(dense(values[-1], layer, last=i == last))
        delta = cross_entropy_gradient(values[-1], digits[part], len(digits))
        for i in reversed(range(last + 1)):
            layer = self.whole(i)
            with self.trace("backward", f"B{i}"):
                gradient, delta = dense_gradients(values[i], values[i + 1], layer, delta, last=i == last)
            del layer
            self.descend(i, gradient)


def trained(comm: hpcoll.Communicator, options: argparse.Namespace) -> Sharded:
    """Train on all batches."""
    network = Sharded(comm, options.seed)
    for images, digits in batches(options):
        network.step(images, digits)
    return network


def main(arguments: list[str] | None = None) -> int:
    """Train, compare with the serial run, and return the exit status."""
    parser = Parser("Fully sharded data-parallel training.")
    parser.add_argument("--batch", type=int, default=250, help="images per step, over all ranks")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args(arguments)
    comm = hpcoll.Communicator(MPI.COMM_WORLD)
    mine, serial = trained(comm, options), trained(hpcoll.Communicator(MPI.COMM_SELF), options)
    pairs = [
        (shard, other[share(len(other), comm.rank, comm.size)])
        for shard, other in zip(mine.shards, serial.shards)
    ]
    total = sum(map(len, serial.shards))
    title = f"{total} parameters fully sharded, {mine.most} at most on a rank at once"
    return mine.trace.finish(
        title, pairs, options.steps * (options.batch + sum(WIDTHS)), 3 * 8 * comm.size * total, options.plot
    )


if __name__ == "__main__":
    sys.exit(main())
