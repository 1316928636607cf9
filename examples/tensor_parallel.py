"""Tensor parallelism: two layers split over the ranks, the first by columns, the second by rows, with one allreduce.

Start it with ``mpirun -n 4 python -m mpi4py examples/tensor_parallel.py``. The scheme of Megatron-LM (arXiv 1909.08053) on a small network
and scikit-learn's digits. Each rank holds some hidden units: their columns of the first matrix, their rows of the second. Forward it needs
no message before the end, where an allreduce adds up the ranks' parts of the output; backward none before the gradient by the input, where
another adds up parts of that (the conjugate operators g and f of the paper). The layer below is held by every rank and stays equal on all.
Ends with status 1 when the parameters after some steps of gradient descent are not those of one rank.
"""

from __future__ import annotations

import argparse
import sys

from common import Array, Parser, batches, cross_entropy_gradient, dense, dense_gradients, layers, share
from mpi4py import MPI
from timeline import Trace

import hpcoll

RATE = 0.5


class Network:
    """A layer that all ranks hold, and two of which each holds the part that belongs to its hidden units.

    Attributes:
        below: ``(65, width)``: 64 weights and the bias of each output.
        columns: ``(width + 1, nmine)``: weights and biases of this rank's hidden units.
        rows: ``(nmine, 10)``: weights by which they count in the output.
        biases: ``(10,)``, of the output: added once, after the allreduce, on every rank.
    """

    def __init__(self, comm: hpcoll.Communicator, widths: list[int], seed: int) -> None:
        self.comm, self.trace = comm, Trace(comm)
        self.below, first, second = layers(widths, seed)
        mine = share(widths[2], comm.rank, comm.size)
        self.columns, self.rows, self.biases = (
            first[:, mine].copy(),
            second[:-1][mine].copy(),
            second[-1].copy(),
        )

    def parameters(self) -> list[Array]:
        """Return the parameters that this rank holds."""
        return [self.below, self.columns, self.rows, self.biases]

    def summed(self, part: Array) -> Array:
        """Add up all ranks' parts, in place."""
        with self.trace("collective", "Allreduce SUM"):
            self.comm.Allreduce(MPI.IN_PLACE, part, op=MPI.SUM)
        return part

    def step(self, images: Array, digits: Array) -> None:
        """Take a step of gradient descent; each rank sees the whole batch."""
        self.trace.restart()
        with self.trace("forward", "forward"):
            x = dense(images, self.below)
            hidden = dense(x, self.columns)
            logits = hidden @ self.rows
        logits = self.summed(logits) + self.biases
        with self.trace("backward", "backward"):
            delta = cross_entropy_gradient(logits, digits, len(digits))
            by_columns, by_x = dense_gradients(x, hidden, self.columns, delta @ self.rows.T)
            gradients = [by_columns, hidden.T @ delta, delta.sum(axis=0)]
        self.summed(by_x)
        with self.trace("backward", "below"):
            gradients.insert(0, dense_gradients(images, x, self.below, by_x)[0])
            for parameter, gradient in zip(self.parameters(), gradients):
                parameter -= RATE * gradient


def trained(comm: hpcoll.Communicator, widths: list[int], options: argparse.Namespace) -> Network:
    """Train on all batches."""
    network = Network(comm, widths, options.seed)
    for images, digits in batches(options):
        network.step(images, digits)
    return network


def main(arguments: list[str] | None = None) -> int:
    """Train, compare with the serial run, and return the exit status."""
    parser = Parser("Tensor-parallel layers: columns, then rows, one allreduce.")
    parser.add_argument("--hidden", type=int, default=258, help="hidden units, which the ranks share")
    parser.add_argument("--batch", type=int, default=256, help="images per step")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args(arguments)
    comm = hpcoll.Communicator(MPI.COMM_WORLD)
    if options.hidden < comm.size:
        parser.error(f"{comm.size} ranks need as many --hidden units")
    widths = [64, 48, options.hidden, 10]
    mine = trained(comm, widths, options)
    serial = trained(hpcoll.Communicator(MPI.COMM_SELF), widths, options)
    part = share(options.hidden, comm.rank, comm.size)
    wanted = [serial.below, serial.columns[:, part], serial.rows[part], serial.biases]
    formula = 8 * comm.size * options.batch * (widths[3] + widths[1])
    title = f"tensor parallel {'-'.join(map(str, widths))} network, {options.steps} steps of {options.batch} images"
    pairs = list(zip(mine.parameters(), wanted))
    return mine.trace.finish(
        title, pairs, options.steps * (options.batch + options.hidden), formula, options.plot
    )


if __name__ == "__main__":
    sys.exit(main())
