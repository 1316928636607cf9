"""mpi4py-fft over redistributions: its pencils change hands by `hpcoll.Redistribution`, and nothing else of it changes.

Start it with ``mpirun -n 4 python -m mpi4py examples/fft_transfers.py`` where mpi4py-fft is installed. Its plans ask `Pencil.transfer` for
objects that move an array from one pencil to another. Here such an object is a `Transfer` of a few lines. Ends with status 1 when a
transform is not `numpy.fft.rfftn`, its inverse is not the array, or mpi4py-fft moved an array by itself.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from mpi4py import MPI

import hpcoll


class Transfer:
    """Moves an array between a pencil along axis A and one along axis B, among the ranks that share both."""

    def __init__(
        self, comm: Any, shape: Sequence[int], dtype: Any, shapeA: Any, axisA: int, shapeB: Any, axisB: int
    ) -> None:
        a, b = (hpcoll.Distribution(shape, comm.size, split=axis) for axis in (axisB, axisA))
        self.there = hpcoll.Redistribution(comm, a, b, dtype)
        self.back = hpcoll.Redistribution(comm, b, a, dtype)
        self.forward, self.backward = (
            self.there,
            self.back,
        )  # each is called with an array, and one for the result

    def destroy(self) -> None:
        """Give back the plans; collective."""
        self.there.Free()
        self.back.Free()


def main(arguments: list[str] | None = None) -> int:
    """Transform there and back, compare, and return the exit status."""
    parser = argparse.ArgumentParser(description="mpi4py-fft over redistributions.")
    parser.add_argument("--shape", type=int, nargs=3, default=[24, 20, 18], metavar="N")
    options = parser.parse_args(arguments)
    comm = MPI.COMM_WORLD
    try:
        theirs = import_module("mpi4py_fft")
    except ImportError as error:
        if comm.rank == 0:
            print(f"needs mpi4py-fft (pip install mpi4py-fft), got: {error}", file=sys.stderr, flush=True)
        return 2
    theirs.pencil.Transfer = Transfer  # the line that changes

    fft = theirs.PFFT(comm, options.shape, axes=(0, 1, 2), dtype=float, grid=(-1,) if comm.size < 4 else None)
    x = np.random.default_rng(0).normal(size=options.shape)
    mine = theirs.newDistArray(fft, False)
    mine[:] = x[mine.local_slice()]
    found = fft.forward(mine.copy(), theirs.newDistArray(fft, True))
    again = fft.backward(found.copy(), theirs.newDistArray(fft, False))
    right = np.fft.rfftn(x)[found.local_slice()] / x.size  # as mpi4py-fft scales
    off = max(np.abs(found - right).max(initial=0) * x.size**0.5, np.abs(again - mine).max(initial=0))
    off = comm.allreduce(off, MPI.MAX)
    plans = [one for one in fft.transfer if isinstance(one, Transfer)]
    nplans = comm.allreduce(len(plans), MPI.MIN)
    fft.destroy()
    good = bool(off < 1e-13) and nplans == len(fft.transfer)
    if comm.rank == 0:
        print(f"{nplans} transfers by redistributions; largest error {off:.1e}")
        print(f"parallel equals serial: {'yes' if good else 'NO'}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
