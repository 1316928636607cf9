"""A computation that goes on with another number of ranks: some save its array, fewer or more load it.

Start it with ``mpirun -n 3 python -m mpi4py examples/restart.py plate.npy``, and again with ``mpirun -n 2``: the second job goes on where
the first one ended. It relaxes a plate with a hot edge, 20 steps in a job. A step needs whole columns, then whole rows, so redistributions
turn the plate. The last row of the file is the number of steps, so that one file has all. Ends with status 1 when the plate is not that of
one rank after as many steps.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from mpi4py import MPI

import hpcoll

PLATE = np.zeros((61, 47))
PLATE[0] = 1.0  # hot
SHAPE = 62, 47  # with the row that counts steps


def relaxed(x: np.ndarray, axis: int) -> np.ndarray:
    """Return the means of elements and their neighbours along an axis, whose ends stay as they are."""
    x = np.moveaxis(x, axis, 0)
    means = (x[:-2] + x[1:-1] + x[2:]) / 3
    return np.moveaxis(np.concatenate([x[:1], means, x[-1:]]), 0, axis)


def main(arguments: list[str] | None = None, world: MPI.Intracomm = MPI.COMM_WORLD) -> int:
    """Load, go on, save, compare, and return the exit status."""
    parser = argparse.ArgumentParser(description="A computation that goes on with another number of ranks.")
    parser.add_argument("file", help="the checkpoint; where it is missing, the computation begins")
    parser.add_argument("--steps", type=int, default=20, help="of this job; default 20")
    options = parser.parse_args(arguments)
    comm = hpcoll.Communicator(world)
    rows, columns = (hpcoll.Distribution(SHAPE, comm.size, split=axis) for axis in (0, 1))
    on_root = hpcoll.Distribution(
        SHAPE, comm.size, boxes=[[(0, n) for n in SHAPE]] + [None] * (comm.size - 1)
    )
    try:
        x = hpcoll.load(options.file, columns, comm)
    except FileNotFoundError:  # on all ranks
        first = np.concatenate([PLATE, np.zeros((1, SHAPE[1]))]) if comm.rank == 0 else None
        x = hpcoll.redistribute(first, on_root, columns, comm)

    with (
        hpcoll.Redistribution(comm, columns, rows, float) as turn,
        hpcoll.Redistribution(comm, rows, columns, float) as back,
    ):
        for _ in range(options.steps):
            x[:-1] = relaxed(x[:-1], 0)
            x = back(relaxed(turn(x), 1))
            x[-1] += 1
    hpcoll.save(options.file, x, columns, comm)

    good = True
    if comm.rank == 0:  # the file is NumPy's
        found = np.load(options.file)
        done, right = int(found[-1, 0]), PLATE
        for _ in range(done):
            right = relaxed(relaxed(right, 0), 1)
        good = bool((found[:-1] == right).all())
        print(f"{done} steps, the last {options.steps} on {comm.size} ranks")
        print(f"parallel equals serial: {'yes' if good else 'NO'}", flush=True)
    return 0 if comm.bcast(good) else 1


if __name__ == "__main__":
    sys.exit(main())
