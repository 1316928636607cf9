"""Reduction operators as data. Knows no MPI, no array library and no algorithm.

An operator is a name, an identity and two promises (commutative, and which element kinds it takes). What it does
to elements lives in `hpcoll.kernels`; a user's operator carries its own Python function.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hpcoll.base.errors import ArgumentError
from hpcoll.base.function_digest import parts_of


@dataclass(frozen=True, eq=False)
class ReduceOp:
    """An element-wise, associative binary operator.

    Attributes:
        name: ``"sum"``, ``"max"``, ...: the kernel's name, or the user function's.
        kinds: Element kinds it takes, letters of `hpcoll.base.dtypes.KINDS`: ``b`` bool, ``i`` integer, ``f`` real floating,
            ``c`` complex.
        commutative: Whether ranks may be combined in any order. If not, only order-preserving schedules are used.
        identity: Neutral element, or None where there is none.
        function: A user's scalar function ``(left, right) -> value``, or None for a built-in.
        premultiplier: Factor applied to this rank's contribution before the reduction, or None.
        average: Whether the result is divided by the number of ranks.
    """

    name: str
    kinds: str
    commutative: bool = True
    identity: Any = None
    function: Callable[[Any, Any], Any] | None = None
    premultiplier: float | complex | None = None
    average: bool = False

    @cached_property
    def digest(self) -> int:
        """32 bits of all that decides what a user's operator does: equal on all ranks of a program for one and the same operator."""
        return zlib.crc32("\0".join((self.name, str(self.commutative), *parts_of(self.identity), *parts_of(self.function))).encode())

    def __repr__(self) -> str:
        return f"hpcoll.{self.name.upper()}" if self.function is None and self.premultiplier is None else f"<ReduceOp {self.name}>"


SUM = ReduceOp("sum", "ifc", identity=0)
PROD = ReduceOp("prod", "ifc", identity=1)
MIN = ReduceOp("min", "if")
MAX = ReduceOp("max", "if")
LAND = ReduceOp("land", "bi", identity=True)
LOR = ReduceOp("lor", "bi", identity=False)
LXOR = ReduceOp("lxor", "bi", identity=False)
BAND = ReduceOp("band", "i", identity=-1)
BOR = ReduceOp("bor", "i", identity=0)
BXOR = ReduceOp("bxor", "i", identity=0)
AVG = ReduceOp("avg", "fc", average=True)

BUILTIN = {op.name: op for op in (SUM, PROD, MIN, MAX, LAND, LOR, LXOR, BAND, BOR, BXOR)}


def premul_sum(factor: float | complex) -> ReduceOp:
    """Sum of each rank's contribution times its own factor; the factor may differ from rank to rank.

    Args:
        factor: Finite number; complex only with complex arrays.
    """
    return ReduceOp("premul_sum", "fc", premultiplier=factor)


def reduce_op(
    function: Callable[[Any, Any], Any], identity: Any = None, commutative: bool = True, *, name: str | None = None
) -> ReduceOp:
    """An operator from a scalar Python function that Numba can compile.

    Args:
        function: ``(left, right) -> value``, associative; ``left`` comes from the lower ranks. Both arguments and the result are
            scalars of the array's element type (float32 for float16 and bfloat16 arrays).
        identity: Neutral element, or None.
        commutative: False keeps rank order: only order-preserving schedules are then used.
        name: What logs and errors call it; default: the function's own name.

    Raises:
        ArgumentError: ``function`` is not callable.

    >>> reduce_op(lambda a, b: a if abs(a) > abs(b) else b, name="absmax")
    <ReduceOp absmax>
    """
    if not callable(function):
        raise ArgumentError(f"reduce_op needs a function of two scalars, got {type(function).__name__}")
    return ReduceOp(name or str(getattr(function, "__name__", "user")), "bifc", commutative, identity, function)
