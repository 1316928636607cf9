"""Solves Poisson's equation on a grid that the ranks share, by conjugate gradients, and proves the result.

Start it with ``mpirun -n 4 python -m mpi4py jobs/conjugate_gradient.py``. ``-laplace(u) = f`` on the unit square, ``u = 0`` on its edge.
Each rank holds a block of the grid; a cartesian communicator knows its neighbours, from which ``Sendrecv`` fetches the points around the
block; two allreduces of one number per iteration are what such solvers wait for on many ranks. All that an existing mpi4py code changes
is the line that makes ``comm``: what ``Create_cart`` returns is an `MPI.Cartcomm` with hpcoll's collectives. ``--plain`` leaves that
line as it was. Ends with status 1 when the result is not that of the same solver on one rank, or not the analytic solution.

Rounded sums depend on how the grid is cut: another number of ranks ends with other last bits, perhaps after another iteration. With
``--exact`` the scalar products are correctly rounded, and the printed fingerprint is the same on any number of ranks. Nothing else here
depends on the cut: the stencil and the updates compute each point by the same additions, products and quotients, which IEEE 754 rounds
correctly. NumPy rounds after each of them, and fuses none. Functions that a processor may compute in several ways, such as ``exp``, are
asked for whole axes, and each rank takes its part.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
import time

import numpy as np
from mpi4py import MPI

import hpcoll

LIMIT = 10_000  # iterations
# bounds of g(t) = t * (1 - t) * exp(t) and of its fourth derivative in 0..1
LARGEST_G, LARGEST_G4 = (
    0.4381,
    16 * np.e,
)


class Grid:
    """This rank's block of a grid of unknowns, and what its solver asks of the other ranks."""

    def __init__(self, comm: MPI.Intracomm, shape: list[int], *, exact: bool = False) -> None:
        self.shape, self.exact = shape, exact
        self.cart = comm.Create_cart(MPI.Compute_dims(comm.size, 2))
        low, high = (
            [n * (c + end) // d for n, c, d in zip(shape, self.cart.coords, self.cart.dims)] for end in (0, 1)
        )
        self.block = (slice(low[0], high[0]), slice(low[1], high[1]))
        self.spacings = [1 / (n + 1) for n in shape]
        self.transfers, self.seconds = [], 0.0
        inner = [high[0] - low[0], high[1] - low[1]]
        for axis in (0, 1):
            below, above = self.cart.Shift(axis, 1)
            margin, first, last, far_margin = (
                edge(inner, axis, index) for index in (0, 1, inner[axis], inner[axis] + 1)
            )
            self.transfers += [(last, above, margin, below), (first, below, far_margin, above)]

    def exchange(self, padded: np.ndarray) -> None:
        """Fill the margins of a padded block from the neighbours; those outside the grid stay zero."""
        for send, dest, receive, source in self.transfers:
            self.cart.Sendrecv([padded, 1, send], dest, 0, [padded, 1, receive], source, 0)

    def dot(self, x: np.ndarray, y: np.ndarray) -> float:
        """Return the scalar product over all ranks; its bits are the same on all of them, so that they end after the same iteration."""
        if self.exact:
            start = time.perf_counter()
            product = hpcoll.exact_dot(self.cart, x, y)
        else:
            box = np.array([np.sum(x * y)])
            start = time.perf_counter()
            self.cart.Allreduce(MPI.IN_PLACE, box, op=MPI.SUM)
            product = box[0]
        self.seconds += time.perf_counter() - start
        return float(product)

    def fields(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the analytic solution ``g(x) * g(y)`` and the right-hand side at the points of the block."""
        x, y = (h * np.arange(1, n + 1) for n, h in zip(self.shape, self.spacings))
        whole = ((t * (1 - t) * np.exp(t), -t * (3 + t) * np.exp(t)) for t in (x, y))
        (gx, gx2), (gy, gy2) = ((g[part], g2[part]) for (g, g2), part in zip(whole, self.block))
        return np.outer(gx, gy), -np.outer(gx2, gy) - np.outer(gx, gy2)


def edge(inner: list[int], axis: int, index: int) -> MPI.Datatype:
    """Return the datatype of a row or column of a padded block, without its corners."""
    counts, starts = list(inner), [1, 1]
    counts[axis], starts[axis] = 1, index
    return MPI.DOUBLE.Create_subarray([n + 2 for n in inner], counts, starts).Commit()


def operator(padded: np.ndarray, hx: float, hy: float) -> np.ndarray:
    """Return ``-laplace`` by the five-point formula, at the points inside the margins."""
    along_x = (2 * padded[1:-1, 1:-1] - padded[:-2, 1:-1] - padded[2:, 1:-1]) / hx**2
    return along_x + (2 * padded[1:-1, 1:-1] - padded[1:-1, :-2] - padded[1:-1, 2:]) / hy**2


def solve(grid: Grid, tolerance: float) -> tuple[np.ndarray, int]:
    """Return this rank's block of the solution, with a residual of ``tolerance`` times the right-hand side, and the iterations."""
    residual = grid.fields()[1]
    u, padded = np.zeros_like(residual), np.pad(residual, 1)
    direction = padded[1:-1, 1:-1]
    square = grid.dot(residual, residual)
    goal = tolerance**2 * square
    for iterations in range(LIMIT):
        if square <= goal:
            return u, iterations
        grid.exchange(padded)
        image = operator(padded, *grid.spacings)
        step = square / grid.dot(direction, image)
        u += step * direction
        residual -= step * image
        square, before = grid.dot(residual, residual), square
        direction[:] = residual + square / before * direction
    sys.exit(f"conjugate_gradient: a tolerance of {tolerance:g} was not reached in {LIMIT} iterations")


def is_right(u: np.ndarray, iterations: int, tolerance: float, exact: bool) -> bool:
    """Say whether the solution on the whole grid is that of one rank, and the analytic one, within the error of the method.

    Exact scalar products give the bits of one rank.

    A residual ``r`` puts a solution off by ``|r| / smallest`` at most, the operator's smallest eigenvalue, and each of the two has one.
    The five-point formula is off by at most ``h**2 / 12`` times the fourth derivative along each axis.
    """
    grid = Grid(MPI.COMM_SELF, list(u.shape), exact=exact)
    serial, serially = solve(grid, tolerance)
    analytic, f = grid.fields()
    grid.cart.Free()
    smallest = sum((2 / h * np.sin(np.pi * h / 2)) ** 2 for h in grid.spacings)
    residual, formula = tolerance * rms(f), sum(h**2 for h in grid.spacings) / 12 * LARGEST_G * LARGEST_G4
    good = abs(iterations - serially) <= 2
    print(f"{iterations} iterations, on one rank {serially}")
    for name, other, bound in (("serial", serial, 2 * residual), ("analytic", analytic, residual + formula)):
        good = good and rms(u - other) <= bound / smallest
        print(f"difference from the {name} solution: {rms(u - other):.2e}, {bound / smallest:.2e} is allowed")
    if exact:
        good = good and (fingerprint(u), iterations) == (fingerprint(serial), serially)
    print(f"fingerprint of the solution: {fingerprint(u)}, on one rank {fingerprint(serial)}")
    print(f"parallel equals serial: {'yes' if good else 'NO'}", flush=True)
    return good


def fingerprint(values: np.ndarray) -> str:
    """Return a hash of the bits."""
    return hashlib.blake2b(values.tobytes(), digest_size=8).hexdigest()


def rms(values: np.ndarray) -> float:
    """Return the root of the mean square."""
    return float(np.sqrt(np.mean(values**2)))


def compare(shape: list[int], tolerance: float, times: int, exact: bool) -> None:
    """Solve with mpi4py and with hpcoll in turns; print medians of the slowest rank's times, waiting included."""
    grids = {
        "mpi4py": Grid(MPI.COMM_WORLD, shape),
        "hpcoll": Grid(hpcoll.Communicator(MPI.COMM_WORLD), shape),
    }
    if exact:
        grids["hpcoll, exact"] = Grid(hpcoll.Communicator(MPI.COMM_WORLD), shape, exact=True)
    taken: dict[str, list[list[float]]] = {name: [] for name in grids}
    for _ in range(times + 1):
        for name, grid in grids.items():
            grid.seconds, start = 0.0, time.perf_counter()
            solve(grid, tolerance)
            taken[name].append(
                [grid.cart.allreduce(one, MPI.MAX) for one in (grid.seconds, time.perf_counter() - start)]
            )
    for name in grids:
        # the first is a warm-up
        reductions, whole = (1e3 * statistics.median(column) for column in zip(*taken[name][1:]))
        if MPI.COMM_WORLD.rank == 0:
            print(f"{name}: {reductions:.2f} ms in allreduce, {whole:.2f} ms in all")
        grids[name].cart.Free()


def main(arguments: list[str] | None = None) -> int:
    """Solve, compare, and return the exit status."""
    parser = argparse.ArgumentParser(
        description="Poisson's equation by conjugate gradients on a shared grid."
    )
    parser.add_argument(
        "--shape", type=int, nargs=2, default=[97, 83], metavar="N", help="unknowns along each axis"
    )
    parser.add_argument(
        "--tolerance", type=float, default=1e-9, help="of the residual, relative to the right-hand side"
    )
    parser.add_argument("--plain", action="store_true", help="mpi4py alone")
    parser.add_argument(
        "--exact", action="store_true", help="exact scalar products: the same bits on any number of ranks"
    )
    parser.add_argument(
        "--compare", type=int, default=0, metavar="TIMES", help="also measure mpi4py and hpcoll in turns"
    )
    options = parser.parse_args(arguments)
    comm = MPI.COMM_WORLD if options.plain else hpcoll.Communicator(MPI.COMM_WORLD)  # the line that changes
    if any(n < d for n, d in zip(options.shape, MPI.Compute_dims(comm.size, 2))):
        parser.error(f"{comm.size} ranks need a larger --shape")
    grid, good = Grid(comm, options.shape, exact=options.exact), False
    mine, iterations = solve(grid, options.tolerance)
    parts = grid.cart.gather((grid.block, mine))
    if parts is not None:
        u = np.zeros(options.shape)
        for block, part in parts:
            u[block] = part
        print(f"{comm.size} ranks as {grid.cart.dims}, {options.shape} unknowns")
        if isinstance(grid.cart, hpcoll.Communicator):
            print(grid.cart.ledger)
        good = is_right(u, iterations, options.tolerance, options.exact)
    good = comm.bcast(good)
    grid.cart.Free()
    if options.compare:
        compare(options.shape, options.tolerance, options.compare, options.exact)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
