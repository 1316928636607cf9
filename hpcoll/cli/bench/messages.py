"""The messages of a benchmark: their sizes, their contents, and the results that they must have. NumPy only.

Contents are small integers, so that every sum is exact. They repeat after a prime number of elements: the expected answer is
computed on a few hundred elements, while data that lands in the wrong place still differs.
"""

from collections.abc import Sequence
from functools import reduce

import ml_dtypes
import numpy as np

from hpcoll.base.dtypes import kind, working_dtype
from hpcoll.base.errors import ArgumentError
from hpcoll.base.ops import AVG, BUILTIN, EXACT_SUM, ReduceOp
from hpcoll.base.text import one_of, parse_nbytes

MINBYTES, MAXBYTES, FACTOR = "8", "16M", 8
MAX_SIZES, MAX_ITERS = 10_000, 10_000_000
PERIOD = 1009  # elements
OPERATORS = BUILTIN | {"avg": AVG, "exact_sum": EXACT_SUM}
_NICKNAMES = {"half": "float16", "float": "float32", "double": "float64"}  # as nccl-tests calls them
_TYPES = (
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128", *_NICKNAMES),
)
_UFUNCS = {
    "sum": np.add,
    "exact_sum": np.add,
    "avg": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "land": np.logical_and,
    "lor": np.logical_or,
    "lxor": np.logical_xor,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


def find_dtype(name: str) -> np.dtype:
    """Return an element type by its NumPy name, or by nccl-tests' ``half``, ``float``, ``double``; ArgumentError lists the names.

    >>> find_dtype("float"), find_dtype("int8")
    (dtype('float32'), dtype('int8'))
    """
    if name not in _TYPES:
        raise ArgumentError(f"datatype must be {one_of(_TYPES, name)}")
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else _NICKNAMES.get(name, name))


def type_name(dtype: np.dtype) -> str:
    """Return the name that nccl-tests prints for an element type."""
    return next((short for short, name in _NICKNAMES.items() if name == dtype.name), dtype.name)


def find_op(name: str) -> ReduceOp:
    """Return an operator by name; an unknown one raises ArgumentError, which lists the names."""
    if name not in OPERATORS:
        raise ArgumentError(f"op must be {one_of(OPERATORS, name)}")
    return OPERATORS[name]


def contribution(code: int, rank: int, op: ReduceOp | None, dtype: np.dtype) -> np.ndarray:
    """Return one period of a rank's contribution to the item with number ``code``.

    Its `PERIOD` values are 0 to 10 (products: 1, 2 or i). Their type loses nothing: it is the element type itself, but float64
    and complex128 for shorter floating types.
    """
    index = (np.arange(PERIOD) + 101 * code + 31 * rank) % PERIOD
    small = index * index % PERIOD % 11
    is_complex, is_product = kind(dtype) == "c", op is not None and op.name == "prod"
    if is_product:
        return (
            np.where(small == 0, 1j, 1).astype(_wide(dtype))
            if is_complex
            else (1 + (small == 0)).astype(_wide(dtype))
        )
    if kind(dtype) == "b":
        return small > 5
    return (small + 1j * (index % 7)).astype(_wide(dtype)) if is_complex else small.astype(_wide(dtype))


def combined(
    code: int, ranks: Sequence[int], nranks: int, op: ReduceOp | None, dtype: np.dtype
) -> np.ndarray:
    """Return one period of the answer: the contributions of ``ranks`` to an item, rounded once to ``dtype``."""
    parts = [contribution(code, rank, op, dtype) for rank in ranks]
    if op is not None:
        with np.errstate(over="ignore"):
            total = reduce(_UFUNCS[op.name], parts).astype(parts[0].dtype)
        parts = [total / nranks if op.average else total]
    with np.errstate(over="ignore"):
        return parts[0].astype(dtype)


def count_wrong(received: np.ndarray, period: np.ndarray) -> int:
    """Count the elements of ``received`` that differ from an endless repetition of ``period``."""
    if received.dtype == np.bool_:  # a byte that is neither 0 nor 1 is wrong, whatever NumPy makes of it
        received, period = received.view(np.uint8), period.view(np.uint8)
    whole = received.size // period.size * period.size
    wrong = np.count_nonzero(received[:whole].reshape(-1, period.size) != period)
    return int(wrong + np.count_nonzero(received[whole:] != period[: received.size - whole]))


def repeat(period: np.ndarray, target: np.ndarray) -> None:
    """Fill ``target`` with an endless repetition of ``period``."""
    whole = target.size // period.size * period.size
    target[:whole].reshape(-1, period.size)[...] = period
    target[whole:] = period[: target.size - whole]


def _wide(dtype: np.dtype) -> np.dtype:
    """Return a type in which small integers stay exact under all operators."""
    if kind(dtype) not in "fc":
        return dtype
    return np.promote_types(working_dtype(dtype), np.complex128 if kind(dtype) == "c" else np.float64)


def sizes_of(minbytes: str, maxbytes: str | None, stepbytes: str | None, factor: int) -> tuple[int, ...]:
    """Return the sizes that the options of ``hpcoll bench`` ask for, ascending, or raise ArgumentError.

    Without ``maxbytes`` they go up to `MAXBYTES`, or ``minbytes`` if that is more; without ``stepbytes``, each is ``factor`` times
    the one before.

    >>> sizes_of("8", "64", None, 2), sizes_of("8", "20", "6", 2)
    ((8, 16, 32, 64), (8, 14, 20))
    """
    least = parse_nbytes(minbytes)
    greatest = max(least, parse_nbytes(MAXBYTES)) if maxbytes is None else parse_nbytes(maxbytes)
    step = 0 if stepbytes is None else parse_nbytes(stepbytes)
    if not 1 <= least <= greatest:
        raise ArgumentError(f"sizes need 1 <= minbytes <= maxbytes, got {least} and {greatest}")
    if factor < 2:
        raise ArgumentError(f"stepfactor must be at least 2, got {factor}")
    if stepbytes is not None and step < 1:
        raise ArgumentError(f"stepbytes must be at least 1, got {step}")
    if step and (greatest - least) // step >= MAX_SIZES:
        raise ArgumentError(
            f"stepbytes makes {(greatest - least) // step + 1} sizes, at most {MAX_SIZES} are measured"
        )
    if step:
        return tuple(range(least, greatest + 1, step))
    sizes = [least]
    while sizes[-1] * factor <= greatest:
        sizes.append(sizes[-1] * factor)
    return tuple(sizes)
