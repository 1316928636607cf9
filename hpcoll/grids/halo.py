"""`Halo`: the exchange of an array's ghost layers between the ranks of a Cartesian grid.

All neighbours, diagonal ones among them, get their messages in one neighbourhood collective on a graph of these neighbours, so that a
program can compute while it runs. Going dimension by dimension takes fewer messages, and as many exchanges one after the other.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from types import TracebackType
from typing import Any

from mpi4py import MPI

from hpcoll.base.errors import ArgumentError, ArgumentTypeError
from hpcoll.base.text import format_nbytes
from hpcoll.comm.communicator import Communicator
from hpcoll.grids.agreement import agreed_block
from hpcoll.grids.ghost_layers import exchanges, inner_part, owned_part, rim_parts
from hpcoll.grids.transfers import Exchange, PartsInPlace


class Halo:
    """The ghost layers of a block of an array that a grid of ranks shares, filled from the blocks of the neighbours.

    All ranks of the grid make it, once for each array, and call its methods in the same order. Ghost layers at the open edges of a grid
    are left as they are.

        dims = hpcoll.dims_create(comm.size, 2, (1000, 1000))
        grid = comm.Create_cart(dims, [True, False], reorder=True)
        u = np.zeros((1000 // dims[0] + 2, 1000 // dims[1] + 2))    # a ghost layer on each side
        with hpcoll.Halo(grid, u) as halo:
            halo.start()
            v[halo.inner] = stencil(u, halo.inner)                 # needs no ghost layer
            halo.wait()
            for part in halo.rim:
                v[part] = stencil(u, part)

    Args:
        comm: Communicator with Cartesian topology, hpcoll's or mpi4py's, whose periods say where the array closes on itself.
        array: This rank's block with its ghost layers: a contiguous array of NumPy's, or one in GPU memory, such as CuPy's.
            The kind, element type and number of axes are equal on all ranks, and the points along an axis on ranks in a row.
        width: Number of ghost layers, or one for each dimension of the grid; a pair is the layers before the block and after it.
        corners: Fill the ghost layers at edges and corners, too, from diagonal neighbours.
        axes: Axis of the array for each dimension of the grid; None: the array has these axes and no others.

    Attributes:
        owned: Index of the points of this rank.
        inner: Index of the owned points that have no ghost layer within ``width``.
        rim: Indices of the parts with the other owned points, each in one of them.
        nbytes: Bytes that this rank sends in an exchange.

    Raises:
        ArgumentError: On every rank, before any message leaves: an argument cannot be used, or ranks differ.
    """

    def __init__(
        self,
        comm: MPI.Cartcomm,
        array: Any,
        width: int | Sequence[int | tuple[int, int]] = 1,
        *,
        corners: bool = False,
        axes: Sequence[int] | None = None,
    ) -> None:
        if not isinstance(comm, MPI.Cartcomm) or comm == MPI.COMM_NULL:
            raise ArgumentTypeError(
                f"rank {MPI.COMM_WORLD.rank}: Halo needs a communicator with cartesian topology, got {comm!r}"
            )
        self._rank = comm.rank
        self._running = False
        self.array = array
        dtype, block = agreed_block(comm, array, width, bool(corners), axes)
        self._block = block
        shape = block.shape
        widths = [(0, 0)] * len(block.shape)
        for axis, pair in zip(block.axes, block.width):
            widths[axis] = pair
        self.owned = owned_part(shape, widths)
        self.inner = inner_part(shape, widths)
        self.rim = rim_parts(shape, widths)
        sources = []
        targets = []
        received = []
        sent = []
        for exchange in exchanges(shape, widths, corners=block.corners):
            steps = [exchange.towards[axis] for axis in block.axes]
            if (target := _neighbour(comm, steps, 1)) != MPI.PROC_NULL:
                targets.append(target)
                sent.append(exchange.sent)
            if (source := _neighbour(comm, steps, -1)) != MPI.PROC_NULL:
                sources.append(source)
                received.append(exchange.received)
        self.nbytes, nreceived = (
            dtype.itemsize * sum(prod(span.stop - span.start for span in part) for part in parts)
            for parts in (sent, received)
        )
        # of Open MPI, a grid's graph would be a grid, too
        plain = (comm if isinstance(comm, Communicator) else Communicator(comm)).Split()
        self._graph = plain.Create_dist_graph_adjacent(sources, targets)
        plain.Free()
        transfer: Callable[..., Exchange] = PartsInPlace
        if block.on_gpu:
            from hpcoll.grids.packed_parts import PackedParts, short_room

            rooms = short_room(comm, (self.nbytes, nreceived))
            transfer = PartsInPlace if rooms is None else partial(PackedParts, rooms)
        self._transfer = transfer(self._graph, array, dtype, block, sent, received)

    def __repr__(self) -> str:
        state = "freed" if self._graph == MPI.COMM_NULL else "exchange runs" if self._running else "idle"
        array = f"{self._block.dtype} array of shape {self._block.shape}"
        return f"<hpcoll.Halo of rank {self._rank}: {array}, sends {format_nbytes(self.nbytes)} per exchange, {state}>"

    def exchange(self) -> None:
        """Fill the ghost layers; the blocks of the neighbours are as they are when these call it.

        Raises:
            ArgumentError: An exchange that `start` began runs, or `free` was called.
        """
        self._check(running=False)
        self._transfer.exchange()

    def start(self) -> None:
        """Begin to fill the ghost layers. Until `wait`, the program reads owned points only, and writes none of the array.

        Raises:
            ArgumentError: The exchange runs already, or `free` was called.
        """
        self._check(running=False)
        self._transfer.start()
        self._running = True

    def wait(self) -> None:
        """Wait until the ghost layers are filled, and this rank's points are with its neighbours.

        Raises:
            ArgumentError: No exchange runs.
        """
        self._check(running=True)
        self._running = False
        self._transfer.wait()

    def _check(self, *, running: bool) -> None:
        if self._graph == MPI.COMM_NULL:
            raise ArgumentError(f"rank {self._rank}: Halo needs to be in use, was freed")
        if self._running != running:
            wrong = (
                "start before wait, got wait alone"
                if running
                else "wait before the next start, got two starts"
            )
            raise ArgumentError(f"rank {self._rank}: Halo needs {wrong}")

    def free(self) -> None:
        """Wait for an exchange that runs, and give back what MPI keeps for it; collective. The array stays."""
        if self._graph != MPI.COMM_NULL:
            if self._running:
                self.wait()
            self._transfer.free()
            self._graph.Free()

    def __enter__(self) -> "Halo":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:  # else other ranks may never come here
            self.free()


def _neighbour(comm: MPI.Cartcomm, steps: Sequence[int], sign: int) -> int:
    """Return the rank so many steps away along each dimension, ``PROC_NULL`` beyond an open edge."""
    dims, periods, coords = comm.Get_topo()
    there = [at + sign * step for at, step in zip(coords, steps)]
    if all(periodic or 0 <= at < d for at, d, periodic in zip(there, dims, periods)):
        return comm.Get_cart_rank([at % d for at, d in zip(there, dims)])
    return MPI.PROC_NULL
