"""Heat spreads in a box that the ranks share, and the result is proven; the ghost layers are exchanged in four ways, in turns.

Start it with ``mpirun -n 8 python -m mpi4py jobs/heat3d.py``. Each rank holds a block of the points with a ghost layer around it, filled

- by copies of faces, ``Isend`` and ``Irecv``, as programs do by hand,
- by the MPI library's ``Neighbor_alltoallw`` with a datatype for each face,
- by `hpcoll.Halo`,
- by `hpcoll.Halo` while the points that need no ghost layer are computed.

The box is periodic in the first dimension, and its other walls are cold. ``--plot FILE`` draws the middle of the box; it needs matplotlib.
Ends with status 1 when a way does not give the very bits of the same steps on one rank.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import hpcoll
from hpcoll.base.errors import ArgumentError
from hpcoll.cli import plot

PERIODS = [True, False, False]
RATE = 0.15  # heat that passes between two points in a step; the scheme is stable below 1/6
OWNED = (slice(1, -1),) * 3


def shifted(part: tuple[slice, ...], axis: int, step: int) -> tuple[slice, ...]:
    """Return the part that lies a step away."""
    moved = slice(part[axis].start + step, part[axis].stop + step)
    return (*part[:axis], moved, *part[axis + 1 :])


def update(now: np.ndarray, later: np.ndarray, part: tuple[slice, ...]) -> None:
    """Compute a part of the field a step later."""
    flow = -6 * now[part]
    for axis in range(3):
        for step in (-1, 1):
            flow += now[shifted(part, axis, step)]
    later[part] = now[part] + RATE * flow


def hot_ball(shape: list[int]) -> np.ndarray:
    """Return the field at the beginning: a ball near a wall, partly beyond the edge where the box closes on itself."""
    x, y, z = np.meshgrid(*((np.arange(n) + 0.5) / n for n in shape), indexing="ij", sparse=True)
    return np.where(np.minimum(x, 1 - x) ** 2 + (y - 0.3) ** 2 + (z - 0.5) ** 2 < 0.25**2, 1.0, 0.0)


def serial(shape: list[int], steps: int) -> np.ndarray:
    """Return the field after so many steps, computed by one rank."""
    field = hot_ball(shape)
    for _ in range(steps):
        now = np.pad(np.pad(field, ((1, 1), (0, 0), (0, 0)), "wrap"), ((0, 0), (1, 1), (1, 1)))
        later = np.empty_like(now)
        update(now, later, tuple(slice(1, n + 1) for n in shape))
        field = later[OWNED]
    return field


class Messages:
    """Ghost layers by hand: faces are copied, sent and received one by one."""

    def __init__(self, grid: MPI.Cartcomm, field: np.ndarray) -> None:
        self.grid, self.field, self.transfers = grid, field, list[tuple[Any, ...]]()
        for axis in range(3):
            below, above = grid.Shift(axis, 1)
            for dest, sent, source, ghost in ((below, 1, above, -1), (above, -2, below, 0)):
                faces: list[Any] = [(*OWNED[:axis], index, *OWNED[axis + 1 :]) for index in (sent, ghost)]
                self.transfers.append(
                    (dest, faces[0], source, faces[1], np.empty(field[faces[1]].shape), len(self.transfers))
                )

    def exchange(self) -> None:
        """Fill the ghost layers."""
        requests = [self.grid.Irecv(buffer, source, tag) for *_, source, _, buffer, tag in self.transfers]
        requests += [
            self.grid.Isend(self.field[face].copy(), dest, tag) for dest, face, *_, tag in self.transfers
        ]
        MPI.Request.Waitall(requests)
        for _, _, source, ghost, buffer, _ in self.transfers:
            if source != MPI.PROC_NULL:
                self.field[ghost] = buffer


class Neighbours:
    """Ghost layers by the MPI library: a datatype for each face."""

    def __init__(self, grid: MPI.Cartcomm, field: np.ndarray) -> None:
        self.grid, types = (
            grid,
            [
                [self.face(field, axis, index) for axis in range(3) for index in pair]
                for pair in ((1, -2), (0, -1))
            ],
        )
        self.buffers = [[field, [1] * 6, [0] * 6, one] for one in types]

    @staticmethod
    def face(field: np.ndarray, axis: int, index: int) -> MPI.Datatype:
        """Return the datatype of a layer of points across an axis."""
        counts, starts = [n - 2 for n in field.shape], [1, 1, 1]
        counts[axis], starts[axis] = 1, index % field.shape[axis]
        return MPI.DOUBLE.Create_subarray(field.shape, counts, starts).Commit()

    def exchange(self) -> None:
        """Fill the ghost layers."""
        self.grid.Neighbor_alltoallw(*self.buffers)


class Heat:
    """This rank's block: the field and the field a step later, in turns, each with a ghost layer around it."""

    def __init__(self, grid: hpcoll.CartCommunicator, shape: list[int]) -> None:
        self.grid, self.shape = grid, shape
        self.block = tuple(
            slice(n * at // d, n * (at + 1) // d) for n, at, d in zip(shape, grid.coords, grid.dims)
        )
        self.fields = [np.zeros([one.stop - one.start + 2 for one in self.block]) for _ in range(2)]
        plain = MPI.Cartcomm(grid)
        makers = {
            "Isend and Irecv": lambda field: Messages(plain, field),
            "Neighbor_alltoallw": lambda field: Neighbours(plain, field),
            "hpcoll.Halo": lambda field: hpcoll.Halo(grid, field),
            "hpcoll.Halo, overlapped": lambda field: hpcoll.Halo(grid, field),
        }
        self.ways: dict[str, list[Any]] = {
            name: [make(field) for field in self.fields] for name, make in makers.items()
        }

    def run(self, way: str, steps: int) -> tuple[np.ndarray, float]:
        """Return the field after so many steps, and seconds in exchanges."""
        for field in self.fields:
            field[...] = 0
        self.fields[0][OWNED] = hot_ball(self.shape)[self.block]
        owned, seconds = tuple(slice(1, n - 1) for n in self.fields[0].shape), 0.0
        for step in range(steps):
            (now, later), halo = self.fields[:: -1 if step % 2 else 1], self.ways[way][step % 2]
            start = time.perf_counter()
            if way.endswith("overlapped"):
                halo.start()
                between = time.perf_counter()
                update(now, later, halo.inner)
                start += time.perf_counter() - between
                halo.wait()
                seconds += time.perf_counter() - start
                for part in halo.rim:
                    update(now, later, part)
            else:
                halo.exchange()
                seconds += time.perf_counter() - start
                update(now, later, owned)
        return self.fields[steps % 2][OWNED], seconds

    def whole(self, part: np.ndarray) -> np.ndarray:
        """Return the field of the whole box on rank 0, zeros elsewhere."""
        field = np.zeros(self.shape)
        for block, points in self.grid.gather((self.block, part)) or []:
            field[block] = points
        return field

    def free(self) -> None:
        """Free what hpcoll keeps."""
        for way in self.ways.values():
            for halo in way:
                if isinstance(halo, hpcoll.Halo):
                    halo.free()
        self.grid.Free()


def draw(path: Path, heat: Heat, last: np.ndarray, steps: int) -> None:
    """Draw the middle of the box before and after, with the edges of blocks and the ranks that hold them."""
    from matplotlib.figure import Figure

    figure, middle = Figure(figsize=(11, 5), layout="constrained"), heat.shape[2] // 2
    dims, axes = heat.grid.dims, figure.subplots(1, 2)
    layer = next(at for at in range(dims[2]) if heat.shape[2] * (at + 1) // dims[2] > middle)
    for one, field, title in zip(axes, (hot_ball(heat.shape), last), ("before", f"after {steps} steps")):
        shown = one.imshow(field[:, :, middle].T, origin="lower", cmap="inferno", vmin=0, vmax=1)
        one.set(title=title, xlabel="x, periodic", ylabel="y")
        edges = [[n * at // d - 0.5 for at in range(d + 1)] for n, d in zip(heat.shape, dims)]
        one.vlines(edges[0], edges[1][0], edges[1][-1], "deepskyblue", linewidth=0.8)
        one.hlines(edges[1], edges[0][0], edges[0][-1], "deepskyblue", linewidth=0.8)
        for x in range(dims[0]):
            for y in range(dims[1]):
                name = f"rank {heat.grid.Get_cart_rank([x, y, layer])}"
                one.text(edges[0][x] + 1, edges[1][y] + 1, name, color="deepskyblue", fontsize=9)
    figure.colorbar(shown, ax=axes, label="temperature")
    plot.write(path, figure)


def main(arguments: list[str] | None = None) -> int:
    """Run all ways in turns, and return the exit status."""
    parser = argparse.ArgumentParser(
        description="Heat in a box that the ranks share, with ghost layers in four ways."
    )
    parser.add_argument(
        "--shape", type=int, nargs=3, default=[96, 80, 64], metavar="N", help="points along each axis"
    )
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--times", type=int, default=5, help="turns that are measured")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the middle of the box: .svg, .png or .pdf"
    )
    options = parser.parse_args(arguments)
    comm = hpcoll.Communicator(MPI.COMM_WORLD)
    try:
        dims = hpcoll.dims_create(comm.size, 3, options.shape, PERIODS)
        if comm.rank == 0 and options.plot:
            plot.check(options.plot)
    except ArgumentError as error:
        parser.error(str(error))
    heat = Heat(comm.Create_cart(dims, PERIODS, reorder=True, shape=options.shape), options.shape)
    right = serial(options.shape, options.steps) if heat.grid.rank == 0 else np.zeros(0)
    taken: dict[str, list[list[float]]] = {way: [] for way in heat.ways}
    wrong, last = [], right
    for _ in range(options.times + 1):
        for way, times in taken.items():
            comm.Barrier()
            start = time.perf_counter()
            part, seconds = heat.run(way, options.steps)
            times.append([comm.allreduce(one, MPI.MAX) for one in (time.perf_counter() - start, seconds)])
            last = heat.whole(part)
            wrong += [way] if heat.grid.rank == 0 and not np.array_equal(last, right) else []
    if heat.grid.rank == 0:
        print(
            f"{comm.size} ranks as {' x '.join(map(str, dims))}, {' x '.join(map(str, options.shape))} points, {options.steps} steps"
        )
        print(f"{'ghost layers by':26}{'ms per step':>12}{'in exchange':>12}")
        for way, times in taken.items():
            # the first is a warm-up
            step, exchange = (1e3 * statistics.median(column) / options.steps for column in zip(*times[1:]))
            print(f"{way:26}{step:12.3f}{exchange:12.3f}")
        print(
            f"parallel equals serial: {'NO, by ' + ', '.join(sorted(set(wrong))) if wrong else 'yes'}",
            flush=True,
        )
        if options.plot:
            draw(options.plot, heat, last, options.steps)
    good = heat.grid.bcast(not wrong)
    heat.free()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
