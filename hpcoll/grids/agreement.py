"""The arguments of a `Halo`, which all ranks of a grid check before any of them sends: its own, then those of all."""

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from hpcoll.base.agreement import agreed
from hpcoll.base.errors import ArgumentError, ArgumentTypeError


class Block(NamedTuple):
    """A rank's block with its ghost layers, as the other ranks know it."""

    width: tuple[tuple[int, int], ...]  # along each dimension of the grid
    corners: bool
    axes: tuple[int, ...]  # of the array, along each dimension of the grid
    kind: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)


def agreed_block(comm: MPI.Cartcomm, given: Any, width: Any, corners: bool, axes: Any) -> tuple[Any, Block]:
    """Return the array as one of NumPy's or CuPy's, and what it is; collective.

    Raises:
        ArgumentError: On every rank: a rank's arguments cannot be used, or ranks differ.
    """
    mine = None
    problem = ""
    try:
        array = _as_array(given)
        mine = _block(array, comm.Get_dim(), width, corners, axes)
    except ArgumentError as error:
        problem = f"rank {comm.rank}: Halo needs {error}"
    equal = "width", "corners", "axes", "kind", "dtype", "ndim"
    facts = {f"{field} of Halo": getattr(mine, field, None) for field in equal}
    blocks: list[Block] = agreed(comm.allgather, problem, facts, mine)
    _check_rows(comm, blocks)
    return array, blocks[comm.rank]


def _as_array(given: Any) -> Any:
    """Return an array of NumPy's or CuPy's over the same memory."""
    if hasattr(given, "__cuda_array_interface__"):
        try:
            return importlib.import_module("cupy").asarray(given)
        except ImportError as error:
            raise ArgumentTypeError(f"CuPy for an array on a GPU, got {error}") from None
    if not isinstance(given, np.ndarray):
        raise ArgumentTypeError(f"an array of NumPy or CuPy, got {type(given).__name__}")
    if not given.flags.writeable:
        raise ArgumentError("an array that can be written, got a read-only one")
    if given.dtype.hasobject:
        raise ArgumentTypeError(f"elements of fixed size, got {given.dtype}")
    if not given.flags.forc:
        raise ArgumentError(
            f"an array that is contiguous in C or Fortran order, got strides {given.strides} for shape {given.shape}"
        )
    return given


def _block(array: Any, ndims: int, width: Any, corners: bool, axes: Any) -> Block:
    """Return the description of a rank's arguments."""
    along = tuple(range(ndims)) if axes is None else _axes(axes, array.ndim)
    if len(along) != ndims or (axes is None and array.ndim != ndims):
        expected = f"an array with {ndims} axes, as the grid has dimensions, or axes= for them"
        raise ArgumentError(f"{expected}, got {array.ndim if axes is None else axes!r}")
    widths = _widths(width, ndims)
    for dimension, (axis, (low, high)) in enumerate(zip(along, widths)):
        n = array.shape[axis]
        least = low + high + max(low, high)
        if n < least:
            expected = f"at least {least} points along dimension {dimension} for a width of {(low, high)}, ghost layers included"
            raise ArgumentError(f"{expected}, got {n}")
    kind = "an array on the host" if isinstance(array, np.ndarray) else "an array on a GPU"
    return Block(widths, corners, along, kind, str(array.dtype), tuple(array.shape))


def _axes(axes: Any, ndim: int) -> tuple[int, ...]:
    try:
        numbers = tuple(range(ndim)[axis] for axis in axes)
    except (IndexError, TypeError):
        numbers = (0, 0)
    if len(set(numbers)) < len(numbers):
        raise ArgumentError(f"axes= with different axes of an array that has {ndim}, got {axes!r}")
    return numbers


def _widths(width: Any, ndims: int) -> tuple[tuple[int, int], ...]:
    """Return the layers before and after a block along each dimension."""
    try:
        each = [width] * ndims if hasattr(width, "__index__") else list(width)
        pairs = [(one, one) if hasattr(one, "__index__") else tuple(one) for one in each]
        widths = tuple((low.__index__(), high.__index__()) for low, high in pairs)
    except (AttributeError, TypeError, ValueError):
        widths = ()
    if len(widths) != ndims or any(n < 0 for pair in widths for n in pair):
        raise ArgumentError(f"a width of 0 or more, or {ndims} of them or of pairs, got {width!r}")
    return widths


def _check_rows(comm: MPI.Cartcomm, blocks: Sequence[Block]) -> None:
    """Refuse blocks that do not fit together: along an axis, all blocks at one coordinate have as many points."""
    dimension_of = {axis: dimension for dimension, axis in enumerate(blocks[0].axes)}
    first: dict[tuple[int, int], int] = {}
    for rank, block in enumerate(blocks):
        coordinates = comm.Get_coords(rank)
        for axis, n in enumerate(block.shape):
            at = coordinates[dimension_of[axis]] if axis in dimension_of else 0
            like = first.setdefault((axis, at), rank)
            expected = blocks[like].shape[axis]
            if n != expected:
                raise ArgumentError(
                    f"rank {rank}: array of Halo needs {expected} points along axis {axis}, as on rank {like}, got {n}"
                )
