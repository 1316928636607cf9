"""Element types and operators of GPU kernels: an element in memory, its type for arithmetic, and every operator on it.

Plain Python functions of scalars; `hpcoll.kernels.vectors` compiles them. The rules are those of `hpcoll.kernels.host`.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types

from hpcoll.base.dtypes import is_bfloat16
from hpcoll.base.ops import ReduceOp
from hpcoll.kernels.operators import OPERATORS
from hpcoll.kernels.vectors import float_bits, float_of_bits, float_of_half, half_of_float

Scalar = Callable[..., Any]


class Number(NamedTuple):
    """An element type."""

    stored: Any  # Numba type of an element in memory; the bits of the half types are uint16
    work: Any  # Numba type of arithmetic
    widen: Scalar  # from stored to work
    narrow: Scalar  # from work to stored, rounded to nearest even


def _same(value):  # type: ignore[no-untyped-def]
    return value


def _widen_float16(bits):  # type: ignore[no-untyped-def]
    return float_of_half(bits)


def _narrow_float16(value):  # type: ignore[no-untyped-def]
    return half_of_float(value)


def _widen_bfloat16(bits):  # type: ignore[no-untyped-def]
    return float_of_bits(np.uint32(bits) << np.uint32(16))


def _narrow_bfloat16(value):  # type: ignore[no-untyped-def]
    bits = np.uint32(float_bits(value))
    if value != value:
        # quiet, so that dropping bits cannot make it an infinity
        return np.uint16(bits >> np.uint32(16)) | np.uint16(0x40)
    return np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))


def number(dtype: np.dtype) -> Number:
    """Return how elements of a type are stored and computed with."""
    if is_bfloat16(dtype):
        return Number(types.uint16, types.float32, _widen_bfloat16, _narrow_bfloat16)
    if dtype == np.float16:
        return Number(types.uint16, types.float32, _widen_float16, _narrow_float16)
    element = types.uint8 if dtype.kind == "b" else numba.from_dtype(dtype)
    return Number(element, element, _same, _same)


def _prod_complex(a, b):  # type: ignore[no-untyped-def]
    real = a.real * b.real - a.imag * b.imag
    return complex(real, a.real * b.imag + a.imag * b.real)


def operator(op: ReduceOp, work: Any) -> Scalar:
    """Return the operator's function of two scalars of a Numba type."""
    if op.function is None:
        if op.name == "prod" and isinstance(work, types.Complex):
            return _prod_complex
        real = f"{op.name}_real" if isinstance(work, types.Float) else op.name
        return OPERATORS.get(real) or OPERATORS[op.name]
    known = getattr(op.function, "py_func", op.function)
    if isinstance(known, FunctionType):
        return known

    def combine(a, b):  # type: ignore[no-untyped-def]
        return known(a, b)

    return combine


def times(work: Any) -> Scalar:
    """Return the function ``(value, real, imag, divides)`` of a scalar of a Numba type: times a number, or by it where ``divides`` is set.

    Complex division is NumPy's (Smith's), for divisors whose real part is not the smaller one.
    """
    real_type = np.float32 if work in (types.float32, types.complex64) else np.float64

    def scaled(value, real, imag, divides):  # type: ignore[no-untyped-def]
        return value / real_type(real) if divides else value * real_type(real)

    def scaled_complex(value, real, imag, divides):  # type: ignore[no-untyped-def]
        x, y, a, b = value.real, value.imag, real_type(real), real_type(imag)
        if not divides:
            return complex(x * a - y * b, x * b + y * a)
        ratio = b / a
        share = real_type(1) / (a + b * ratio)
        return complex((x + y * ratio) * share, (y - x * ratio) * share)

    return scaled_complex if isinstance(work, types.Complex) else scaled
