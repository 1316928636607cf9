"""Element types of hpcoll's own kernels, and the operators that each takes.

float16 and bfloat16 are reduced in float32 and rounded once, at the end; long double is reduced by the MPI library.
"""

import numpy as np

from hpcoll.base.errors import ArgumentError
from hpcoll.base.ops import EXACT_SUM, EXACT_SUM_ODD, ReduceOp

KINDS = {"b": "bool", "i": "integer", "f": "real floating", "c": "complex"}
BYTES = "bytes"  # the class of data that is only moved
_OPAQUE = {"opaque": True}
# By the types of scalars: what a package adds to NumPy's types may have any letter, as ml_dtypes' float8_e5m2 has "f".
_KIND_OF = {
    np.dtype(code).type: kind
    for codes, kind in (("?", "b"), ("bhilqpBHILQP", "i"), ("efdg", "f"), ("FDG", "c"))
    for code in codes
}


def kind(dtype: np.dtype) -> str:
    """Return the letter of `KINDS` for an element type; the empty string for a type that cannot be reduced.

    >>> kind(np.dtype("uint8")), kind(np.dtype("complex64")), kind(np.dtype("datetime64[s]"))
    ('i', 'c', '')
    """
    if is_bfloat16(dtype):
        return "f"
    return "" if dtype.metadata == _OPAQUE else _KIND_OF.get(dtype.type, "")


def opaque(dtype: np.dtype) -> np.dtype:
    """Return an element type that moves as another one does and equals it, but cannot be reduced: text is no number.

    >>> kind(opaque(np.dtype("uint8")))
    ''
    """
    return np.dtype(dtype, metadata=_OPAQUE)


def type_class(dtype: np.dtype | None) -> str:
    """Return the class of element types that are tuned together: kind and size, or ``bytes`` for None, data that is only moved.

    >>> type_class(np.dtype("float32")), type_class(np.dtype("uint64")), type_class(None)
    ('f4', 'i8', 'bytes')
    """
    return BYTES if dtype is None else f"{kind(dtype)}{dtype.itemsize}"


def is_bfloat16(dtype: np.dtype) -> bool:
    """Say whether a type is ml_dtypes' bfloat16; its name tells, so that ml_dtypes need not be imported."""
    return dtype.type.__name__ == "bfloat16"


def working_dtype(dtype: np.dtype) -> np.dtype:
    """Return the element type in which a reduction computes: float32 for the half types, else the type itself."""
    return np.dtype(np.float32) if is_bfloat16(dtype) or dtype == np.float16 else dtype


def working_op(op: ReduceOp, dtype: np.dtype) -> ReduceOp:
    """Return the operator of a reduction that computes in `working_dtype`: an exact sum of half types is not to be rounded twice."""
    return EXACT_SUM_ODD if op is EXACT_SUM and working_dtype(dtype) != dtype else op


def is_extended(dtype: np.dtype) -> bool:
    """Say whether a type is long double, real or complex, which only the MPI library reduces."""
    return dtype.type in (np.longdouble, np.clongdouble)


def is_exact(op: ReduceOp | None, dtype: np.dtype) -> bool:
    """Say whether a reduction is a sum that is rounded once, whatever the order; integers have no rounding."""
    return op is EXACT_SUM and kind(dtype) in ("f", "c")


def check_op(op: ReduceOp, dtype: np.dtype, rank: int) -> None:
    """Refuse an operator that has no meaning for an element type; the ArgumentError names both, the kinds that it takes, and the rank."""
    letter = kind(dtype)
    if not letter or letter not in op.kinds:
        takes = ", ".join(KINDS[one] for one in op.kinds)
        raise ArgumentError(f"rank {rank}: operator {op.name} takes {takes} elements, got {dtype}")
