"""Element types that hpcoll's own kernels know, and which operator takes which; NumPy only.

float16 and bfloat16 are reduced in float32 and rounded once, at the end; long double is reduced by the MPI library.
"""

import numpy as np

from hpcoll.base.errors import ArgumentError
from hpcoll.base.ops import ReduceOp

KINDS = {"b": "bool", "i": "integer", "f": "real floating", "c": "complex"}
BYTES = "bytes"  # class of data that is moved and not combined
_KIND_OF_NUMPY = {"b": "b", "i": "i", "u": "i", "f": "f", "c": "c"}


def kind(dtype: np.dtype) -> str:
    """Letter of `KINDS` for an element type, or the empty string for one that cannot be reduced.

    >>> kind(np.dtype("uint8")), kind(np.dtype("complex64")), kind(np.dtype("datetime64[s]"))
    ('i', 'c', '')
    """
    return "f" if is_bfloat16(dtype) else _KIND_OF_NUMPY.get(dtype.kind, "")


def type_class(dtype: np.dtype | None) -> str:
    """Class of element types that are tuned together: kind and size, or ``bytes`` for data that is only moved (None).

    >>> type_class(np.dtype("float32")), type_class(np.dtype("uint64")), type_class(None)
    ('f4', 'i8', 'bytes')
    """
    return BYTES if dtype is None else f"{kind(dtype)}{dtype.itemsize}"


def is_bfloat16(dtype: np.dtype) -> bool:
    """Whether this is ml_dtypes' bfloat16, told by name so that ml_dtypes need not be imported."""
    return dtype.kind == "V" and dtype.name == "bfloat16"


def working_dtype(dtype: np.dtype) -> np.dtype:
    """Element type in which a reduction runs: float32 for the half types, else the type itself."""
    return np.dtype(np.float32) if is_bfloat16(dtype) or dtype == np.float16 else dtype


def is_extended(dtype: np.dtype) -> bool:
    """Whether this is long double or its complex twin, which only the MPI library reduces."""
    return dtype.char in "gG"


def check_op(op: ReduceOp, dtype: np.dtype, rank: int) -> None:
    """Refuse an operator that has no meaning for an element type.

    Raises:
        ArgumentError: names the operator, what it takes, what it got and the rank.
    """
    if kind(dtype) not in op.kinds or not kind(dtype):
        takes = ", ".join(KINDS[letter] for letter in op.kinds)
        raise ArgumentError(f"rank {rank}: operator {op.name} takes {takes} elements, got {dtype}")
