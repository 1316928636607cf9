"""A three-dimensional Fourier transform in pencils: NumPy transforms one axis at a time, and redistributions turn the pencils.

Start it with ``mpirun -n 4 python -m mpi4py examples/pencil_fft.py``. Ranks form a grid of two dimensions. Each has whole lines of the
array along one axis, its pencil, and its share of the other two axes. NumPy transforms along the whole lines; then a `Redistribution`
gives each rank a pencil along the next axis. So there are two exchanges in a transform, each among the ranks of one row or column of the
grid. The array begins and ends on rank 0, which has it moved by the same means. Ends with status 1 when the transform is not
`numpy.fft.fftn`, or its inverse is not the array.
"""

from __future__ import annotations

import argparse
import sys
from itertools import pairwise

import numpy as np
from mpi4py import MPI

import hpcoll

CUT = (0, 1), (0, 2), (1, 2)  # the axes that the grid of ranks cuts: pencils lie along axis 2, then 1, then 0


class Transform:
    """Fourier transforms of complex arrays of one shape, whose pencils ranks have."""

    def __init__(self, comm: hpcoll.Communicator, shape: tuple[int, int, int]) -> None:
        grid = MPI.Compute_dims(comm.size, 2)
        self.pencils = [hpcoll.Distribution(shape, comm.size, grid=grid, split=axes) for axes in CUT]
        self.turns = [hpcoll.Redistribution(comm, a, b, complex) for a, b in pairwise(self.pencils)]
        self.back = [hpcoll.Redistribution(comm, b, a, complex) for a, b in pairwise(self.pencils)][::-1]

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Return the transform, in pencils along axis 0, of an array in pencils along axis 2."""
        x = np.fft.fft(x, axis=2)
        for turn, axis in zip(self.turns, (1, 0)):
            x = np.fft.fft(turn(x), axis=axis)
        return x

    def inverse(self, x: np.ndarray) -> np.ndarray:
        """Return the array, in pencils along axis 2, from its transform."""
        x = np.fft.ifft(x, axis=0)
        for turn, axis in zip(self.back, (1, 2)):
            x = np.fft.ifft(turn(x), axis=axis)
        return x

    def free(self) -> None:
        """Give back the plans; collective."""
        for turn in (*self.turns, *self.back):
            turn.Free()


def is_close(name: str, found: np.ndarray, right: np.ndarray) -> bool:
    """Say whether the error is that of rounding, which grows with the logarithm of the number of elements."""
    error = np.abs(found - right).max() / np.abs(right).max()
    allowed = 4 * np.finfo(float).eps * np.log2(right.size)
    print(f"{name}: relative error {error:.2e}, {allowed:.2e} is allowed")
    return bool(error <= allowed)


def main(arguments: list[str] | None = None) -> int:
    """Transform there and back, compare, and return the exit status."""
    parser = argparse.ArgumentParser(description="Three-dimensional Fourier transform in pencils.")
    parser.add_argument("--shape", type=int, nargs=3, default=[48, 40, 36], metavar="N")
    options = parser.parse_args(arguments)
    comm = hpcoll.Communicator(MPI.COMM_WORLD)
    shape = tuple(options.shape)
    transform = Transform(comm, shape)
    everything = [(0, n) for n in shape]
    on_root = hpcoll.Distribution(shape, comm.size, boxes=[everything] + [None] * (comm.size - 1))
    first, *_, last = transform.pencils

    x = None
    if comm.rank == 0:
        x = np.random.default_rng(0).normal(size=(*shape, 2)).view(complex)[..., 0]
    lines = hpcoll.redistribute(x, on_root, first, comm)
    transformed = transform.forward(lines)
    found = hpcoll.redistribute(transformed, last, on_root, comm)
    again = hpcoll.redistribute(transform.inverse(transformed), first, on_root, comm)
    transform.free()

    good = True
    if x is not None:
        verdicts = [is_close("transform", found, np.fft.fftn(x)), is_close("inverse", again, x)]
        good = all(verdicts)
        print(f"parallel equals serial: {'yes' if good else 'NO'}", flush=True)
    return 0 if comm.bcast(good) else 1


if __name__ == "__main__":
    sys.exit(main())
