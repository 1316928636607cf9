"""Pipeline parallelism with micro-batches, one forward, one backward (1F1B), by send and receive.

Start it with ``mpirun -n 4 python -m mpi4py examples/pipeline_parallel.py --plot pipeline.svg``. Each rank is a stage: it holds some
consecutive layers of a network, receives activations from the stage before, sends its own to the stage after, and gradients go back. A
batch of scikit-learn's digits is cut into micro-batches, so that all stages have work. In the order of PipeDream-Flush (arXiv 2006.09503),
a stage begins with as many forward passes as there are stages after it, then does one forward and one backward in turns, then the backward
passes that are left: it never holds the activations of more micro-batches than there are stages from it to the last. Weights change when
all gradients of the batch are there. Ends with status 1 when the parameters are not those of one rank that takes each batch whole.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from common import Array, Parser, batches, cross_entropy_gradient, dense, dense_gradients, layers, share
from mpi4py import MPI
from timeline import Trace

import hpcoll

RATE = 0.1
IMAGE, HIDDEN, DIGITS = 64, 128, 10  # widths


def one_forward_one_backward(rank: int, nranks: int, nmicro: int) -> list[tuple[str, int]]:
    """Return the order in which a stage works on micro-batches.

    >>> "".join(f"{what}{i} " for what, i in one_forward_one_backward(0, 3, 4))
    'F0 F1 F2 B0 F3 B1 B2 B3 '
    """
    warmup = min(nranks - rank - 1, nmicro)
    order = [("F", i) for i in range(warmup)]
    for i in range(nmicro - warmup):
        order += [("F", warmup + i), ("B", i)]
    return order + [("B", i) for i in range(nmicro - warmup, nmicro)]


class Stage:
    """Consecutive layers, and the activations of micro-batches whose gradients have not come back yet."""

    def __init__(self, comm: hpcoll.Communicator, options: argparse.Namespace) -> None:
        self.comm, self.trace = comm, Trace(comm)
        every = layers([IMAGE, *[HIDDEN] * (options.layers - 1), DIGITS], options.seed)
        part = share(len(every), comm.rank, comm.size)
        self.layers = [(layer, layer is every[-1]) for layer in every[part]]
        self.first, self.last = comm.rank == 0, comm.rank == comm.size - 1
        self.held: dict[int, list[Array]] = {}
        self.most_held = 0
        self.sending: list[tuple[MPI.Request, Array]] = []

    def receive(self, name: str, shape: tuple[int, int], peer: int) -> Array:
        """Receive an array."""
        array = np.empty(shape)
        with self.trace("receive", name, array.nbytes, peer):
            self.comm.Recv(array, peer)
        return array

    def send(self, name: str, array: Array, peer: int) -> None:
        """Begin to send, so that neighbours that send to each other at the same time do not wait for each other."""
        with self.trace("send", name, array.nbytes, peer):
            self.sending.append((self.comm.Isend(array, peer), array))

    def forward(self, i: int, images: Array) -> None:
        """Compute a micro-batch, and hold its activations."""
        x = images if self.first else self.receive(f"get F{i}", (len(images), HIDDEN), self.comm.rank - 1)
        with self.trace("forward", f"F{i}"):
            values = [x]
            for layer, last in self.layers:
                values.append(dense(values[-1], layer, last=last))
        self.held[i] = values
        self.most_held = max(self.most_held, len(self.held))
        if not self.last:
            self.send(f"send F{i}", values[-1], self.comm.rank + 1)

    def backward(self, i: int, digits: Array, count: int) -> list[Array]:
        """Return gradients by this stage's parameters, of one micro-batch of a batch of ``count``."""
        *values, y = self.held.pop(i)
        delta = (
            np.empty(0) if self.last else self.receive(f"get B{i}", (len(digits), HIDDEN), self.comm.rank + 1)
        )
        with self.trace("backward", f"B{i}"):
            delta = cross_entropy_gradient(y, digits, count) if self.last else delta
            gradients: list[Array] = []
            for (layer, last), x in zip(reversed(self.layers), reversed(values)):
                gradient, before = dense_gradients(x, y, layer, delta, last=last)
                gradients.insert(0, gradient)
                delta, y = before, x
        if not self.first:
            self.send(f"send B{i}", delta, self.comm.rank - 1)
        return gradients

    def step(self, images: Array, digits: Array, nmicro: int) -> None:
        """Take a step of gradient descent; the first stage reads images, the last one digits."""
        self.trace.restart()
        sums = [np.zeros_like(layer) for layer, _ in self.layers]
        for what, i in one_forward_one_backward(self.comm.rank, self.comm.size, nmicro):
            part = share(len(digits), i, nmicro)
            if what == "F":
                self.forward(i, images[part])
            else:
                for total, gradient in zip(sums, self.backward(i, digits[part], len(digits))):
                    total += gradient
        MPI.Request.Waitall([request for request, _ in self.sending])
        self.sending.clear()
        for (layer, _), total in zip(self.layers, sums):
            layer -= RATE * total


def trained(comm: hpcoll.Communicator, options: argparse.Namespace, nmicro: int) -> Stage:
    """Train on all batches."""
    stage = Stage(comm, options)
    for images, digits in batches(options):
        stage.step(images, digits, nmicro)
    return stage


def main(arguments: list[str] | None = None) -> int:
    """Train, compare with the serial run, and return the exit status."""
    parser = Parser("Pipeline-parallel training, one forward, one backward (1F1B).")
    parser.add_argument("--layers", type=int, default=10, help="of the network, which the stages share")
    parser.add_argument("--micro", type=int, default=8, help="micro-batches per batch")
    parser.add_argument("--batch", type=int, default=500, help="images per step")
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args(arguments)
    comm = hpcoll.Communicator(MPI.COMM_WORLD)
    if options.layers < comm.size or options.micro < 1:
        parser.error(f"{comm.size} ranks need as many --layers, and a --micro of at least 1")
    mine = trained(comm, options, options.micro)
    serial = trained(hpcoll.Communicator(MPI.COMM_SELF), options, 1)
    wanted = serial.layers[share(options.layers, comm.rank, comm.size)]
    most = comm.gather(mine.most_held)
    title = f"pipeline of {options.layers} layers, {options.micro} micro-batches, of which stages hold {most or ''} at most"
    formula = 2 * 8 * options.batch * HIDDEN * (comm.size - 1)
    pairs = [(layer, other) for (layer, _), (other, _) in zip(mine.layers, wanted)]
    return mine.trace.finish(
        title, pairs, options.steps * options.layers * options.batch, formula, options.plot
    )


if __name__ == "__main__":
    sys.exit(main())
