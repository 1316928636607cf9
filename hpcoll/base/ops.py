"""Reduction operators as data: a name, an identity and two promises (commutative, and the kinds of elements that it takes).

Knows no MPI, no array library and no algorithm. `hpcoll.kernels` has the code of built-in operators; a user's operator has a function.
"""

import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from types import CodeType
from typing import Any

from hpcoll.base.errors import ArgumentError

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
_DEPTH = 8  # of functions that call functions


@dataclass(frozen=True, eq=False)
class ReduceOp:
    """An element-wise, associative binary operator; `reduce_op` and `premul_sum` make some.

    Attributes:
        name: Name of the kernel, such as ``"sum"``, or of the user's function.
        kinds: Kinds of elements that it takes: ``b`` bool, ``i`` integer, ``f`` real floating, ``c`` complex.
        commutative: Ranks may be combined in any order; else only algorithms that keep rank order serve it.
        identity: Neutral element, or None.
        function: A user's scalar function ``(left, right) -> value``, or None.
        premultiplier: Factor for this rank's contribution, or None.
        average: The result is divided by the number of ranks.
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
        """32 bits that tell users' operators apart; equal on all ranks for one operator of a program."""
        return zlib.crc32(
            "\0".join(
                (self.name, str(self.commutative), *parts_of(self.identity), *parts_of(self.function))
            ).encode()
        )

    def __repr__(self) -> str:
        return (
            f"hpcoll.{self.name.upper()}"
            if self.function is None and self.premultiplier is None
            else f"<ReduceOp {self.name}>"
        )


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
# the sum of the contributions as real numbers, rounded once
EXACT_SUM = ReduceOp("exact_sum", "ifc", identity=0)
# in float32, of half types: rounded to odd, so that rounding it again is right
EXACT_SUM_ODD = ReduceOp("exact_sum", "f", identity=0)

BUILTIN = {op.name: op for op in (SUM, PROD, MIN, MAX, LAND, LOR, LXOR, BAND, BOR, BXOR)}


def premul_sum(factor: float | complex) -> ReduceOp:
    """Return the operator that multiplies each rank's contribution by a factor and adds the products.

    Args:
        factor: Finite number of this rank, which may differ from rank to rank; complex with complex arrays only.

    Returns:
        An operator for reductions of floating-point and complex arrays, as ``op=hpcoll.premul_sum(0.5)``.
    """
    return ReduceOp("premul_sum", "fc", premultiplier=factor)


def reduce_op(
    function: Callable[[Any, Any], Any],
    identity: Any = None,
    commutative: bool = True,
    *,
    name: str | None = None,
) -> ReduceOp:
    """Return the operator of a scalar Python function, which Numba compiles.

    All ranks make it from the same function.

    Args:
        function: ``(left, right) -> value``, associative; ``left`` comes from the lower ranks. All three are scalars of the array's
            element type (float32 for float16 and bfloat16 arrays).
        identity: Neutral element, or None.
        commutative: False: only algorithms that keep rank order serve the operator.
        name: Name in logs and errors; None: the function's.

    Returns:
        An operator for ``op=`` of any reduction, on arrays of any element type for which Numba compiles the function.

    Raises:
        ArgumentError: ``function`` is not callable.

    Examples:
        >>> reduce_op(lambda a, b: a if abs(a) > abs(b) else b, name="absmax")
        <ReduceOp absmax>
    """
    if not callable(function):
        raise ArgumentError(f"reduce_op needs a function of two scalars, got {type(function).__name__}")
    return ReduceOp(
        name or str(getattr(function, "__name__", "user")), "bifc", commutative, identity, function
    )


def parts_of(value: Any, depth: int = _DEPTH) -> Iterator[str]:
    """Yield the parts of a digest, equal in all processes of a program: those of a function, or of a value that a function uses.

    Addresses and the order of sets differ between processes. So a digest has the values of plain types only, and the types of others.

    >>> def two(a, b, factor=2):
    ...     return a + factor * b
    >>> def three(a, b, factor=3):
    ...     return a + factor * b
    >>> [*parts_of(two)] == [*parts_of(three)], [*parts_of(3.5)]
    (False, ['float 3.5'])
    """
    function = getattr(value, "py_func", value)  # behind Numba's wrapper
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType):
        yield from _of_function(function, code, depth - 1) if depth else ()
    elif type(value) in _PLAIN:
        yield f"{type(value).__name__} {value!r}"
    elif _is_numpy(value):
        yield f"{value.dtype} {value.shape} {value.tobytes().hex()}"
    elif isinstance(value, tuple | list):
        yield f"{type(value).__name__} {len(value)}"
        for part in value:
            yield from parts_of(part, depth)
    elif isinstance(value, frozenset | set):
        yield f"set {sorted(' '.join(parts_of(part, depth)) for part in value)}"
    else:
        named = value if hasattr(value, "__qualname__") else type(value)
        yield f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', '')}"


def _is_numpy(value: Any) -> bool:
    numpy = sys.modules.get("numpy")  # not imported for this, because many commands need no NumPy
    return numpy is not None and isinstance(value, numpy.ndarray | numpy.generic)


def _of_function(function: Any, code: CodeType, depth: int) -> Iterator[str]:
    yield from _of_code(code, depth)
    names = getattr(function, "__globals__", {})
    used = [cell.cell_contents for cell in function.__closure__ or ()] + [
        names[name] for name in code.co_names if name in names
    ]
    for value in (function.__defaults__, *(function.__kwdefaults__ or {}).items(), *used):
        yield from parts_of(value, depth)


def _of_code(code: CodeType, depth: int) -> Iterator[str]:
    yield f"{code.co_code.hex()} {code.co_names} {code.co_varnames}"
    for constant in code.co_consts:
        yield from _of_code(constant, depth) if isinstance(constant, CodeType) else parts_of(constant, depth)
