"""The arguments of a `Halo`, which all ranks of a grid check before any of them sends: its own, then those of all."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from hpcoll.base.agreement import agreed
from hpcoll.base.errors import ArgumentError, ArgumentTypeError
from hpcoll.comm.arguments.memory import find_gpu_array
from hpcoll.runtime.gpu.arrays import DeviceArray

_KINDS = "an array on the host", "an array on a GPU"


class Block(NamedTuple):
    """A rank's block with its ghost layers, as the other ranks know it."""

    width: tuple[tuple[int, int], ...]  # along each dimension of the grid
    corners: bool
    axes: tuple[int, ...]  # of the array, along each dimension of the grid
    kind: str
    dtype: str
    shape: tuple[int, ...]
    order: str

    @property
    def on_gpu(self) -> bool:
        """Say whether it lies in GPU memory."""
        return self.kind == _KINDS[True]

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)


def agreed_block(
    comm: MPI.Cartcomm, given: Any, width: Any, corners: bool, axes: Any
) -> tuple[np.dtype[Any], Block]:
    """Return the element type of an array, and what else it is; collective.

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
    return array.dtype, blocks[comm.rank]


def _as_array(given: Any) -> np.ndarray[Any, Any] | DeviceArray:
    """Return an array of NumPy's, or one in GPU memory."""
    array = given if isinstance(given, np.ndarray) else find_gpu_array(given)
    if array is None:
        raise ArgumentTypeError(f"an array of NumPy, or one in GPU memory, got {type(given).__name__}")
    if array.readonly if isinstance(array, DeviceArray) else not array.flags.writeable:
        raise ArgumentError("an array that can be written, got a read-only one")
    if array.dtype.hasobject:
        raise ArgumentTypeError(f"elements of fixed size, got {array.dtype}")
    if not _order(array):
        raise ArgumentError(
            f"an array that is contiguous in C or Fortran order, got strides {array.strides} for shape {array.shape}"
        )
    return array


def _order(array: np.ndarray[Any, Any] | DeviceArray) -> str:
    """Return the order of elements without gaps, as `DeviceArray.order`."""
    if isinstance(array, DeviceArray):
        return array.order
    return "C" if array.flags.c_contiguous else "F" if array.flags.f_contiguous else ""


def _block(array: Any, ndims: int, width: Any, corners: bool, axes: Any) -> Block:
    """Return the description of a rank's arguments."""
    ndim = len(array.shape)
    along = tuple(range(ndims)) if axes is None else _axes(axes, ndim)
    if len(along) != ndims or (axes is None and ndim != ndims):
        expected = f"an array with {ndims} axes, as the grid has dimensions, or axes= for them"
        raise ArgumentError(f"{expected}, got {ndim if axes is None else axes!r}")
    widths = _widths(width, ndims)
    for dimension, (axis, (low, high)) in enumerate(zip(along, widths)):
        n = array.shape[axis]
        least = low + high + max(low, high)
        if n < least:
            expected = f"at least {least} points along dimension {dimension} for a width of {(low, high)}, ghost layers included"
            raise ArgumentError(f"{expected}, got {n}")
    kind = _KINDS[isinstance(array, DeviceArray)]
    return Block(widths, corners, along, kind, str(array.dtype), tuple(array.shape), _order(array))


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
