"""A two-dimensional Fourier transform of a matrix whose rows the ranks share, and Poisson's equation solved with it, both proven.

Start it with ``mpirun -n 4 python -m mpi4py jobs/fft2d.py``. Each rank transforms its rows, a `Redistribution` transposes the matrix, and
each rank transforms what were columns. The exchange is the whole cost of such a transform on many ranks. ``--plain`` does it as programs on
mpi4py do: pack a block for each rank, exchange, unpack. Ends with status 1 when transform, inverse or solution are not those of one rank.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from itertools import pairwise
from typing import Any

import numpy as np
from mpi4py import MPI

import hpcoll


class Transform:
    """Fourier transforms of ``shape`` matrices of complex128, of which each rank has rows; they differ by at most one in number."""

    name = "Redistribution"

    def __init__(self, comm: MPI.Intracomm, shape: tuple[int, int]) -> None:
        self.comm, self.shape, self.seconds = comm, shape, 0.0
        self.plan()

    def plan(self) -> None:
        """Plan the transposition of the matrix, and of its transpose."""
        rows, columns = (
            hpcoll.Distribution(shape, self.comm.size, split=0, sizes=np.diff(self.starts(axis)).tolist())
            for axis, shape in enumerate((self.shape, self.shape[::-1]))
        )
        turned: Any = {"dtype": complex, "axes": (1, 0)}
        self.turns = (
            hpcoll.Redistribution(self.comm, rows, columns, **turned),
            hpcoll.Redistribution(self.comm, columns, rows, **turned),
        )

    def starts(self, axis: int) -> list[int]:
        """Return the first row, or column, of every rank; at the end their number."""
        return [self.shape[axis] * rank // self.comm.size for rank in range(self.comm.size + 1)]

    def mine(self, axis: int) -> slice:
        """Return this rank's rows, or columns."""
        return slice(*self.starts(axis)[self.comm.rank : self.comm.rank + 2])

    def forward(self, rows: np.ndarray) -> np.ndarray:
        """Return the transform of the matrix, of which this rank gets columns: ``result[i]`` is column ``i`` of ``mine(1)``."""
        return np.fft.fft(self.transposed(np.fft.fft(rows), axis=0))

    def inverse(self, columns: np.ndarray) -> np.ndarray:
        """Return rows of the matrix from columns of its transform."""
        return np.fft.ifft(self.transposed(np.fft.ifft(columns), axis=1))

    def transposed(self, matrix: np.ndarray, axis: int) -> np.ndarray:
        """Return columns of a matrix, as rows, from this rank's rows of it, which are ``mine(axis)``; columns lie along the other axis."""
        start = time.perf_counter()
        result = self.turns[axis](matrix)
        self.seconds += time.perf_counter() - start
        return result


class PlainTransform(Transform):
    """The same on mpi4py alone: a block for each rank is packed, exchanged and unpacked."""

    name = "Alltoallv"

    def plan(self) -> None:
        """Need none."""

    def transposed(self, matrix: np.ndarray, axis: int) -> np.ndarray:
        """Return columns of a matrix, as rows, by an exchange of packed blocks."""
        rows, columns = self.starts(axis), self.starts(1 - axis)
        here = self.mine(1 - axis)
        nrows, ncolumns = len(matrix), here.stop - here.start
        start = time.perf_counter()
        # a block for each rank
        send = np.concatenate([matrix[:, low:high].T.ravel() for low, high in pairwise(columns)])
        receive = np.empty(ncolumns * rows[-1], complex)
        counts = (
            [nrows * (high - low) for low, high in pairwise(columns)],
            [ncolumns * (high - low) for low, high in pairwise(rows)],
        )
        self.comm.Alltoallv([send, counts[0]], [receive, counts[1]])
        blocks = np.split(receive, [ncolumns * row for row in rows[1:-1]])  # a block from each rank
        result = np.concatenate([block.reshape(ncolumns, -1) for block in blocks], axis=1)
        self.seconds += time.perf_counter() - start
        return result


def poisson(transform: Transform) -> tuple[np.ndarray, np.ndarray]:
    """Return the solution of ``-laplace(u) = f``, periodic in ``0..2*pi``, at this rank's rows; and the analytic one."""
    x, y = (2 * np.pi / n * np.arange(n) for n in transform.shape)
    x = x[transform.mine(0), None]
    waves, oblique = np.sin(x) * np.cos(2 * y), np.cos(x + y)
    kx, ky = (n * np.fft.fftfreq(n) for n in transform.shape)
    squares = ky[transform.mine(1), None] ** 2 + kx**2
    squares[squares == 0] = 1  # the mean of f is zero, and so is that of u
    return transform.inverse(transform.forward(5 * waves + 2 * oblique + 0j) / squares).real, waves + oblique


def whole(comm: MPI.Intracomm, part: np.ndarray) -> np.ndarray:
    """Return all ranks' parts on rank 0, and nothing elsewhere."""
    parts = comm.gather(part)
    return np.zeros(0) if parts is None else np.concatenate(parts)


def is_close(name: str, found: np.ndarray, right: np.ndarray) -> bool:
    """Say whether the error is that of rounding: it grows with the logarithm of the number of elements, twice as fast for prime lengths."""
    error = np.abs(found - right).max() / np.abs(right).max()
    allowed = 2 * np.finfo(float).eps * np.log2(right.size)
    print(f"{name}: relative error {error:.2e}, {allowed:.2e} is allowed")
    return bool(error <= allowed)


def compare(shape: tuple[int, int], rows: np.ndarray, times: int) -> None:
    """Transform with mpi4py and with hpcoll in turns; print medians of the slowest rank's times, waiting included."""
    transforms = {
        "mpi4py": PlainTransform(MPI.COMM_WORLD, shape),
        "hpcoll": Transform(hpcoll.Communicator(MPI.COMM_WORLD), shape),
    }
    taken: dict[str, list[list[float]]] = {name: [] for name in transforms}
    for _ in range(times + 1):
        for name, transform in transforms.items():
            transform.comm.Barrier()
            transform.seconds, start = 0.0, time.perf_counter()
            transform.inverse(transform.forward(rows))
            taken[name].append(
                [
                    transform.comm.allreduce(one, MPI.MAX)
                    for one in (transform.seconds, time.perf_counter() - start)
                ]
            )
    for name in transforms:
        # the first is a warm-up
        exchange, both = (1e3 * statistics.median(column) for column in zip(*taken[name][1:]))
        if MPI.COMM_WORLD.rank == 0:
            print(f"{name}: {exchange:.2f} ms in transpositions, {both:.2f} ms for transform and inverse")


def main(arguments: list[str] | None = None) -> int:
    """Transform, compare, and return the exit status."""
    parser = argparse.ArgumentParser(description="Fourier transform of a matrix whose rows the ranks share.")
    parser.add_argument(
        "--shape", type=int, nargs=2, default=[384, 500], metavar="N", help="rows and columns, at least 5"
    )
    parser.add_argument("--plain", action="store_true", help="mpi4py alone")
    parser.add_argument(
        "--compare", type=int, default=0, metavar="TIMES", help="also measure mpi4py and hpcoll in turns"
    )
    options = parser.parse_args(arguments)
    if min(options.shape) < 5:
        parser.error("the waves of the Poisson problem need a --shape of at least 5 x 5")
    comm = MPI.COMM_WORLD if options.plain else hpcoll.Communicator(MPI.COMM_WORLD)
    transform, good = (PlainTransform if options.plain else Transform)(comm, tuple(options.shape)), False
    # the same on every rank
    matrix = np.random.default_rng(0).normal(size=(*options.shape, 2)).view(complex)[..., 0]
    rows = matrix[transform.mine(0)]
    columns = transform.forward(rows)
    solution, exact = poisson(transform)
    parts = [whole(comm, part) for part in (columns, transform.inverse(columns), solution, exact)]
    if comm.rank == 0:
        print(f"{comm.size} ranks, {options.shape[0]} x {options.shape[1]}, by {transform.name}")
        if isinstance(comm, hpcoll.Communicator):
            print(comm.ledger)
        checks = (
            ("transform", parts[0].T, np.fft.fft2(matrix)),
            ("inverse", parts[1], matrix),
            ("solution", *parts[2:]),
        )
        verdicts = [is_close(*check) for check in checks]
        good = all(verdicts)
        print(f"parallel equals serial: {'yes' if good else 'NO'}", flush=True)
    good = comm.bcast(good)
    if options.compare:
        compare(transform.shape, rows, options.compare)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
