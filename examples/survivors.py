"""Training that goes on when ranks die: those that are left shrink the communicator, agree on the last step, and train on.

Start it with ``mpirun --with-ft ulfm -n 4 python examples/survivors.py --kill 1``, which kills rank 1 in the middle. Data-parallel: every
rank has all parameters and computes the gradient of its share of each batch, so that nothing is lost with a rank. Ends with status 1 when
the result is not that of an undisturbed run on one rank.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from common import Array, Parser, batches, dense, dense_gradients, layers, load, share
from mpi4py import MPI

import hpcoll

WIDTHS = (64, 32, 10)
RATE = 0.5
Batches = Sequence[tuple[Array, Array]]


def gradient(parameters: list[Array], images: Array, digits: Array, count: int) -> Array:
    """Return the part that these samples have in the gradient of the mean cross-entropy over ``count`` samples, as one vector."""
    hidden = dense(images, parameters[0])
    scores = dense(hidden, parameters[1], last=True)
    likely = np.exp(scores - scores.max(axis=1, keepdims=True))
    delta = (likely / likely.sum(axis=1, keepdims=True) - np.eye(WIDTHS[-1])[digits]) / count
    second, back = dense_gradients(hidden, scores, parameters[1], delta, last=True)
    first, _ = dense_gradients(images, hidden, parameters[0], back)
    return np.concatenate([first.ravel(), second.ravel()])


def update(parameters: list[Array], step: Array) -> None:
    """Move the parameters down a gradient."""
    first, second = np.split(step, [parameters[0].size])
    parameters[0] -= RATE * first.reshape(parameters[0].shape)
    parameters[1] -= RATE * second.reshape(parameters[1].shape)


def agree(comm: hpcoll.Communicator, parameters: list[Array], done: int) -> int:
    """Give all ranks the parameters of the rank that is furthest, and return how many steps these have had."""
    furthest = comm.allgather(done)
    for one in parameters:
        comm.Bcast(one, root=furthest.index(max(furthest)))
    return max(furthest)


def train(
    comm: hpcoll.Communicator, parameters: list[Array], steps: Batches, options: argparse.Namespace
) -> hpcoll.Communicator:
    """Train on all ranks that live, and return the communicator of those that are left."""
    done, total = 0, np.zeros(sum(one.size for one in parameters))
    while done < len(steps):
        if done == len(steps) // 2 and MPI.COMM_WORLD.rank == options.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        images, digits = steps[done]
        mine = share(len(images), comm.rank, comm.size)
        try:
            comm.Allreduce(gradient(parameters, images[mine], digits[mine], len(images)), total)
        except hpcoll.PeerFailed as error:
            comm = comm.shrink()
            done = agree(comm, parameters, done)
            if comm.rank == 0:
                print(f"{error}\n{comm.size} ranks train on from step {done} of {len(steps)}", flush=True)
        else:
            update(parameters, total)
            done += 1
    return comm


def accuracy(parameters: list[Array]) -> float:
    """Return the share of all digits that are recognised."""
    images, digits = load()
    scores = dense(dense(images, parameters[0]), parameters[1], last=True)
    return float((scores.argmax(axis=1) == digits).mean())


def main() -> int:
    """Train, compare with one rank alone, and return the exit status."""
    parser = Parser(str(__doc__).splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=120)
    parser.add_argument("--kill", type=int, metavar="RANK", help="rank that is killed half-way")
    options = parser.parse_args()
    steps, parameters, alone = (
        list(batches(options)),
        layers(WIDTHS, options.seed),
        layers(WIDTHS, options.seed),
    )
    comm: Any = train(hpcoll.Communicator(MPI.COMM_WORLD), parameters, steps, options)
    for images, digits in steps:
        update(alone, gradient(alone, images, digits, len(images)))
    apart = max(float(np.abs(one - other).max()) for one, other in zip(parameters, alone, strict=True))
    if comm.rank == 0:
        found = f"accuracy {accuracy(parameters):.4f}, alone {accuracy(alone):.4f}, parameters differ by {apart:.1e}"
        print(f"{comm.size} ranks: {found}", flush=True)
    return int(apart > 1e-6)


if __name__ == "__main__":
    sys.exit(main())
