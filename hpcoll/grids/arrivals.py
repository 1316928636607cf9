"""Elements that arrive packed in temporary memory: those of several ranks are combined there, and then they are put in place, converted.

A rank combines what it gets in the order of the ranks from which that comes, so results do not depend on when messages arrive.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcoll.base import canonical
from hpcoll.base.dtypes import is_exact, working_dtype, working_op
from hpcoll.base.ops import ReduceOp
from hpcoll.grids.moves import Move
from hpcoll.grids.parts import Parts
from hpcoll.kernels.host import kernel_address

Array = np.ndarray[Any, Any]


class Arrivals:
    """The moves to a rank, and the places of their elements in one array that has them move after move.

    Args:
        moves: Moves to the rank, by ascending peers.
        source: Parts of the source; ranks with equal parts send contributions to the same elements.
        order: Order of elements in messages.
        fold: Combines contributions; None: there is one to each element.

    Attributes:
        nelements: Elements of the array.
        packed: The moves into it.
    """

    def __init__(self, moves: Sequence[Move], source: Parts, order: str, fold: "Fold | None") -> None:
        self._fold = fold
        self._order: Any = order
        self._groups = dict[int, list[tuple[Move, slice]]]()
        self.packed = list[Move]()
        self.nelements = 0
        for move in moves:
            n = move.nelements
            self.packed.append(Move(move.peer, [(np.array([self.nelements]), np.array([n]))]))
            key = move.peer if fold is None else int(source.group[move.peer])
            self._groups.setdefault(key, []).append((move, slice(self.nelements, self.nelements + n)))
            self.nelements += n

    def put(self, arrived: Array, result: Array) -> None:
        """Put what has arrived in its places in the result; what has arrived is lost."""
        for group in self._groups.values():
            move, part = group[0]
            found = self._fold([arrived[one] for _, one in group]) if self._fold else arrived[part]
            result[move.places] = found.reshape(move.shape, order=self._order)


class Fold:
    """The combination of equally long contiguous arrays by an operator; half types are combined in float32."""

    def __init__(self, op: ReduceOp, dtype: np.dtype[Any]) -> None:
        self.working = working_dtype(dtype)
        self._at_once = is_exact(op, dtype)
        signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2)
        self._kernel = signature(kernel_address(working_op(op, dtype), self.working))

    def __call__(self, given: Sequence[Array]) -> Array:
        """Return the canonical expression of arrays, which are lost."""
        blocks = [block.astype(self.working, copy=False) for block in given]
        return self._combined(*blocks) if self._at_once else canonical.fold(self._combined, blocks)

    def _combined(self, *blocks: Array) -> Array:
        """Return the first of some arrays, with the combination of all."""
        addresses = (ctypes.c_void_p * len(blocks))(*(block.ctypes.data for block in blocks))
        self._kernel(addresses[0], addresses, len(blocks), blocks[0].size)
        return blocks[0]
