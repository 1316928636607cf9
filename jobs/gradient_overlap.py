"""Measures how much of the gradients' communication a training hides behind its own computing.

Start it with ``mpirun -n 2 python -m mpi4py jobs/gradient_overlap.py``. A step of a tanh network with random images, forward and backward,
in four ways that take turns: without communication; with a blocking allreduce per tensor; with one of all tensors at the end of the step;
with `hpcoll.GradientBuckets` of several sizes. Hidden is the share of what the first of these costs beyond the computing. Ends with status
1 when a way gives other sums.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np
from mpi4py import MPI
from train_digits import Alone, Array, Network, Samples

import hpcoll
from hpcoll.base.text import format_nbytes

Sums = Alone | hpcoll.GradientBuckets


class PerTensor(Alone):
    """A blocking allreduce of each gradient when it is ready."""

    def __init__(self, comm: hpcoll.Communicator, parameters: dict[str, Array]) -> None:
        self.comm, self.gradients = comm, {name: comm.like(one) for name, one in parameters.items()}

    def ready(self, name: str) -> None:
        """Add up a gradient."""
        self.comm.Allreduce(MPI.IN_PLACE, self.gradients[name])


class PerStep(Alone):
    """A blocking allreduce of all gradients, which lie in one array, at the end of the step."""

    def __init__(self, comm: hpcoll.Communicator, parameters: dict[str, Array]) -> None:
        self.comm, sizes = comm, [one.size for one in parameters.values()]
        self.flat = comm.empty(sum(sizes), np.float32)
        parts = np.split(self.flat, np.cumsum(sizes)[:-1])
        self.gradients = {
            name: part.reshape(one.shape) for (name, one), part in zip(parameters.items(), parts, strict=True)
        }

    def wait(self) -> None:
        """Add up all gradients."""
        self.comm.Allreduce(MPI.IN_PLACE, self.flat)


def steps(
    comm: hpcoll.Communicator, network: Network, options: argparse.Namespace
) -> dict[str, Callable[[], Sums]]:
    """Return a step in each way, which returns the gradients."""
    random = np.random.default_rng(comm.rank)
    samples = Samples(
        random.random((options.batch, options.width), np.float32), random.integers(0, 10, options.batch)
    )
    ways: dict[str, Sums] = {
        "no communication": Alone(network.parameters),
        "allreduce per tensor": PerTensor(comm, network.parameters),
        "allreduce per step": PerStep(comm, network.parameters),
    }
    for size in options.buckets:
        for how, overlap in (("", None), (", in flight", True)):
            ways[f"buckets of {size}{how}"] = hpcoll.GradientBuckets(
                comm, network.parameters, bucket=size, mean=False, overlap=overlap
            )

    def step(sums: Sums) -> Sums:
        network.backward(samples, sums)
        sums.wait()
        return sums

    return {name: lambda sums=sums: step(sums) for name, sums in ways.items()}  # type: ignore[misc]


def main() -> int:
    """Measure all ways, and return the exit status."""
    parser = argparse.ArgumentParser(description="How much of the gradients' communication is hidden.")
    parser.add_argument("--width", type=int, default=512, help="of the layers")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--batch", type=int, default=64, help="samples of a rank's step")
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--buckets", nargs="+", default=["64K", "1M", "25M"], metavar="SIZE")
    options = parser.parse_args()
    comm = hpcoll.Communicator(MPI.COMM_WORLD)
    network = Network([options.width] * options.layers + [10], np.float32)
    network.initialise(0)
    every = steps(comm, network, options)
    times: dict[str, list[float]] = {name: [] for name in every}
    for turn in range(-24, options.turns):
        for name in every:
            comm.Barrier()
            start = time.perf_counter()
            every[name]()
            if turn >= 0:
                times[name].append(time.perf_counter() - start)
    right = every["allreduce per tensor"]().gradients
    found = {name: every[name]().gradients for name in list(every)[2:]}
    close = {
        name: all(np.allclose(sums[key], one, rtol=1e-4, atol=1e-4) for key, one in right.items())
        for name, sums in found.items()
    }
    wrong = [name for name, same in close.items() if not same]
    slowest = {name: comm.allreduce(median(found), MPI.MAX) for name, found in times.items()}
    if comm.rank == 0:
        alone, per_tensor = slowest["no communication"], slowest["allreduce per tensor"]
        print(
            f"{comm.size} ranks, {options.layers} layers, {format_nbytes(network.flat.nbytes)} of gradients; medians, ms"
        )
        for name, seconds in slowest.items():
            hidden = (
                f"  hidden {1 - (seconds - alone) / (per_tensor - alone):7.1%}"
                if name != "no communication"
                else ""
            )
            print(
                f"{name:26} {seconds * 1e3:8.2f}  communication {max(0.0, seconds - alone) * 1e3:7.2f}{hidden}"
            )
        print(f"sums: {'WRONG: ' + ', '.join(wrong) if wrong else 'the same'}")
    return 1 if comm.allreduce(len(wrong)) else 0


if __name__ == "__main__":
    sys.exit(main())
