"""A model for tests of the parameter server: parameters of several shapes, gradients, and the serial run that it must equal."""

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcoll.training.optimizers import Optimizer

WORLD = MPI.COMM_WORLD
RANK, NRANKS = WORLD.rank, WORLD.size
SHAPES = {"weights": ((23, 7), "f4"), "empty": ((0, 3), "f8"), "bias": ((11,), "f8"), "scale": ((), "f4")}
NEEDS_TWO = pytest.mark.skipif(NRANKS < 2, reason="needs a worker beside the server")
MODES: list[dict[str, Any]] = [
    {"mode": "synchronous"},
    {"mode": "asynchronous"},
    {"mode": "asynchronous", "staleness": 1},
]


def initial() -> dict[str, Any]:
    return {name: np.ones(shape, dtype) for name, (shape, dtype) in SHAPES.items()}


def gradient(parameters: dict[str, Any], worker: int, step: int) -> dict[str, Any]:
    """Some gradient that depends on everything."""
    return {name: (array * (1 + worker) - step).astype(array.dtype) for name, array in parameters.items()}


def serial(
    optimizer: Optimizer, nworkers: int, nsteps: int, leaves: int = -1, after: int = 0
) -> dict[str, Any]:
    """The parameters after steps by the mean gradient; one worker may leave after some steps."""
    parameters, states = initial(), {name: {} for name in SHAPES}
    for step in range(1, nsteps + 1):
        workers = [w for w in range(nworkers) if w != leaves or step <= after]
        found = [gradient(parameters, worker, step) for worker in workers]
        for name, array in parameters.items():
            total = found[0][name].copy()
            for other in found[1:]:
                total += other[name]
            if len(workers) > 1:
                total /= array.dtype.type(len(workers))
            optimizer(array.reshape(-1), total.reshape(-1), states[name], step)
    return parameters


def differences(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    return [name for name in wanted if not np.array_equal(found[name], wanted[name])]
