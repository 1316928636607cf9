"""Trains the network of train_digits.py in four ways and compares them.

The ways are allreduce, and a parameter server that is synchronous, asynchronous, and asynchronous with bounded staleness. Start it with
``mpirun -n 4 python -m mpi4py jobs/parameter_server.py``. It prints accuracy by epoch, seconds, bytes that a worker moves per step beside
the formula, and the staleness that servers saw. ``--plot FILE`` draws accuracy against epochs and seconds; it needs matplotlib. Ends with
status 1 when the synchronous server and the allreduce do not agree, bytes are not those of the formula, or a gradient was too stale.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

# before MPI starts: Open MPI's wheel else prints that UCX has no windows here
os.environ.setdefault("OMPI_MCA_osc_ucx_verbose", "-1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the ranks are the threads

import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402
from train_digits import (
    FULL_BATCH,
    LEARNING_RATE,
    MOMENTUM,
    Alone,
    Array,
    Network,
    Parser,
    Samples,
    load,
    share,
)  # noqa: E402

import hpcoll  # noqa: E402
from hpcoll.base.errors import HpcollError  # noqa: E402
from hpcoll.cli import plot  # noqa: E402
from hpcoll.schedules.catalogue import CATALOGUE  # noqa: E402
from hpcoll.schedules.ir import Op, chunk_bounds  # noqa: E402
from hpcoll.schedules.row import schedule  # noqa: E402
from hpcoll.training.optimizers import SGD  # noqa: E402

ALLREDUCE, SYNCHRONOUS, ASYNCHRONOUS, STALE = "allreduce", "synchronous", "asynchronous", "stale"
ROUNDING = 1e-3  # largest difference of parameters, float32, after a training in another order of sums


class Result(NamedTuple):
    """The result of a way of training on one rank.

    Attributes:
        seconds: Time since the start after each epoch; empty on ranks that only serve.
        seen: The parameters after each epoch, flat, and as last item at the end.
        nbytes: Bytes that this rank moved per step, counted.
        staleness: Number of gradients by staleness, in this rank's shard.
    """

    seconds: list[float]
    seen: list[Array]
    nbytes: float
    staleness: Counter[int]


class Batches:
    """Every worker's part of the same batches.

    Args:
        options: Options of the command line.
        worker: Index of this worker.
        nworkers: Number of workers.
    """

    def __init__(self, options: argparse.Namespace, worker: int, nworkers: int) -> None:
        self.options, self.worker, self.nworkers = options, worker, nworkers
        self.samples, self.test = load(options.seed)

    def epochs(self) -> Any:
        """Yield the batches of each epoch."""
        random = np.random.default_rng(self.options.seed)
        for _ in range(self.options.epochs):
            yield self.batches(random.permutation(len(self.samples.digits)))

    def batches(self, order: Array) -> Any:
        """Yield samples, and the factor of their summed gradient."""
        for start in range(0, len(order), self.options.batch):
            batch = order[start : start + self.options.batch]
            if self.options.slow and self.worker == self.nworkers - 1:
                time.sleep(self.options.slow * 1e-3)
            yield (
                self.samples.take(batch[share(len(batch), self.worker, self.nworkers)]),
                self.nworkers / len(batch),
            )

    def start(self) -> Network:
        """Return the network before it is trained; the same everywhere."""
        network = Network(self.options.widths, np.float32)
        network.initialise(self.options.seed)
        return network

    def optimizer(self, part: int = 1) -> SGD:
        """Return the optimiser for gradients of a batch or a part of one."""
        return SGD(LEARNING_RATE * min(1.0, self.options.batch / FULL_BATCH) / part, MOMENTUM)

    def accuracy(self, parameters: Array) -> float:
        """Return the share of test samples that parameters get right."""
        network = self.start()
        network.flat[:] = parameters
        return float(np.mean(network.forward(self.test.images)[-1].argmax(axis=1) == self.test.digits))


def gradient(network: Network, samples: Samples, scale: float) -> Array:
    """Return a gradient whose mean over the workers is the one of the batch."""
    sums = Alone(network.parameters)
    network.backward(samples, sums)
    return np.concatenate([one.ravel() for one in sums.gradients.values()]) * np.float32(scale)


def with_allreduce(comm: hpcoll.Communicator, options: argparse.Namespace) -> Result:
    """Train by allreduce: every rank updates all parameters; bytes are those of the schedule's sends."""
    data, state, step = Batches(options, comm.rank, comm.size), dict[str, Any](), 0
    network, optimizer = data.start(), data.optimizer()
    result, begun = Result([], [], sent(comm, network.flat), Counter()), time.perf_counter()
    for batches in data.epochs():
        for samples, scale in batches:
            step += 1
            mean = gradient(network, samples, scale)
            comm.Allreduce(MPI.IN_PLACE, mean, op=MPI.SUM, algorithm="ring")
            mean /= comm.size
            optimizer(network.flat, mean, state, step)
        result.seconds.append(time.perf_counter() - begun)
        result.seen.append(network.flat.copy())
    return result


def sent(comm: hpcoll.Communicator, array: Array) -> float:
    """Return the bytes that this rank sends in a ring allreduce of an array, by its schedule."""
    steps = schedule(CATALOGUE["allreduce/ring"], comm.size, comm.rank)
    chunks = [
        chunk for channel in steps.channels for step in channel if step.op == Op.SEND for chunk in step.srcs
    ]
    bounds = [
        chunk_bounds(array.size, steps.nchunks, i)
        for chunk in chunks
        for i in range(chunk.index, chunk.index + chunk.n)
    ]
    return float(sum(end - first for first, end in bounds)) * array.itemsize


def with_server(comm: hpcoll.Communicator, options: argparse.Namespace, mode: str) -> Result:
    """Train by a parameter server; an asynchronous gradient is of a part of a batch, and its rate is that part of the rate."""
    nworkers = comm.size - options.dedicated
    data = Batches(options, max(0, comm.rank - options.dedicated), nworkers)
    network, result = data.start(), Result([], [], 0.0, Counter())
    with hpcoll.ParameterServer(
        comm,
        {"all": network.flat},
        optimizer=data.optimizer(1 if mode == SYNCHRONOUS else nworkers),
        servers=list(range(options.dedicated)) or None,
        dedicated=options.dedicated > 0,
        mode=SYNCHRONOUS if mode == SYNCHRONOUS else ASYNCHRONOUS,
        staleness=options.staleness if mode == STALE else None,
    ) as server:
        if comm.rank in server.workers:
            begun = time.perf_counter()
            for batches in data.epochs():
                for samples, scale in batches:
                    server.pull({"all": network.flat})
                    server.push({"all": gradient(network, samples, scale)})
                result.seen.append(server.read()["all"])
                result.seconds.append(time.perf_counter() - begun)
            server.barrier()
            result.seen.append(server.read()["all"])
    did = server.traffic
    return result._replace(
        nbytes=did.pushed / max(1, did.pushes) + did.pulled / max(1, did.pulls),
        staleness=server.staleness.histogram,
    )


def report(options: argparse.Namespace, found: dict[str, list[Result]]) -> bool:
    """Print the table of every rank's results, and say whether it is as it must be."""
    nranks, good, data = len(found[ALLREDUCE]), True, Batches(options, 0, 1)
    epochs = sorted({1, 2, 5, options.epochs} & set(range(1, options.epochs + 1)))
    heads = "".join(f"{f'epoch {epoch}':>10}" for epoch in epochs)
    print(f"{'':14}{heads}   seconds  bytes/step   formula  staleness: mean  max")
    for name, results in found.items():
        dedicated = 0 if name == ALLREDUCE else options.dedicated
        formula = 2 * data.start().flat.nbytes * (1 if dedicated else (nranks - 1) / nranks)
        nbytes = sum(one.nbytes for one in results) / (nranks - dedicated)
        one, counts = results[dedicated], sum((result.staleness for result in results), Counter())
        accuracies = "".join(f"{data.accuracy(one.seen[epoch - 1]):10.2%}" for epoch in epochs)
        mean = sum(value * times for value, times in counts.items()) / max(1, counts.total())
        stale = f"{mean:17.2f}{max(counts):5d}" if counts else f"{'-':>17}{'-':>5}"
        print(f"{name:14}{accuracies}{one.seconds[-1]:10.2f}{nbytes:12.0f}{formula:10.0f}{stale}")
        good = good and abs(nbytes - formula) < 1 and (name != STALE or max(counts) <= options.staleness)
    apart = float(np.abs(found[ALLREDUCE][0].seen[-1] - found[SYNCHRONOUS][options.dedicated].seen[-1]).max())
    print(f"largest difference between the parameters of synchronous and allreduce: {apart:.1e}")
    return good and apart < ROUNDING


def draw(path: Path, options: argparse.Namespace, found: dict[str, list[Result]]) -> None:
    """Draw accuracy against epochs and against seconds."""
    from matplotlib.figure import Figure

    figure, data = Figure(figsize=(11, 4.5), layout="constrained"), Batches(options, 0, 1)
    for axes, what in zip(figure.subplots(1, 2), ("epoch", "seconds")):
        for name, results in found.items():
            one = results[0 if name == ALLREDUCE else options.dedicated]
            accuracies = [100 * data.accuracy(parameters) for parameters in one.seen[: options.epochs]]
            along = range(1, options.epochs + 1) if what == "epoch" else one.seconds
            axes.plot(along, accuracies, marker="o", markersize=3, label=name)
        axes.set_xlabel(what)
        axes.set_ylabel("test accuracy (%)")
        axes.grid(alpha=0.3)
        axes.legend()
    plot.write(path, figure)


def main(arguments: list[str] | None = None) -> int:
    """Train in all ways, and return the exit status."""
    parser = Parser(description="Allreduce and parameter servers on the digits data set of scikit-learn.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64, help="samples per batch, over all workers")
    parser.add_argument("--hidden", type=int, default=128, help="width of the two hidden layers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--dedicated",
        type=int,
        default=0,
        metavar="N",
        help="servers that do not work; default: every rank does both",
    )
    parser.add_argument("--staleness", type=int, default=1, help="bound of the last way, in updates")
    parser.add_argument(
        "--slow", type=float, default=0.0, metavar="MS", help="the last worker sleeps so long in each step"
    )
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw accuracy against epochs and seconds: .svg, .png or .pdf",
    )
    options = parser.parse_args(arguments)
    options.widths = [64, options.hidden, options.hidden, 10]
    comm = hpcoll.Communicator(MPI.COMM_WORLD)
    if comm.rank == 0 and options.plot:
        plot.check(options.plot)
    # compiled before it is timed
    comm.Allreduce(MPI.IN_PLACE, np.zeros(comm.size, np.float32), algorithm="ring")
    found = {ALLREDUCE: comm.gather(with_allreduce(comm, options)) or []}
    for mode in (SYNCHRONOUS, ASYNCHRONOUS, STALE):
        found[mode] = comm.gather(with_server(comm, options, mode)) or []
    good = True
    if comm.rank == 0:
        good = report(options, found)
        if options.plot:
            draw(options.plot, options, found)
    return 0 if comm.bcast(good) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HpcollError as error:
        sys.exit(f"parameter_server: {error}")
