"""The right bits, by plain Python and NumPy: the canonical expression, and exact sums by integers of any length.

It shares no code with hpcoll, and needs no MPI.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
Combine = Callable[[Any, Any], Any]
BF16 = np.dtype(ml_dtypes.bfloat16)
UNIT = -1074  # every number of every type here is an integer times 2**UNIT
SQUARE = 2 * UNIT


class Form(NamedTuple):
    """A floating-point format: digits of the significand, exponents of the least number and of the first that overflows."""

    digits: int
    least: int
    top: int


FORMS = {
    np.dtype(np.float64): Form(53, -1074, 1024),
    np.dtype(np.float32): Form(24, -149, 128),
    np.dtype(np.float16): Form(11, -24, 16),
    BF16: Form(8, -133, 128),
}
PARTS = {np.dtype(np.complex128): np.dtype(np.float64), np.dtype(np.complex64): np.dtype(np.float32)}


def largest_below(n: int) -> int:
    """Return the largest power of two below n, for n >= 2."""
    return 1 << (n - 1).bit_length() - 1


def canonical(parts: Sequence[Any], combine: Combine) -> Any:
    """Return the canonical expression of contributions in rank order."""
    if len(parts) == 1:
        return parts[0]
    first = largest_below(len(parts))
    return combine(canonical(parts[:first], combine), canonical(parts[first:], combine))


def product(a: Array, b: Array) -> Array:
    """Return the product; of complex numbers without fused operations, which some of NumPy's loops have."""
    if a.dtype.kind != "c":
        return a * b
    found = np.empty_like(a)
    found.real = a.real * b.real - a.imag * b.imag
    found.imag = a.real * b.imag + a.imag * b.real
    return found


def least(a: Array, b: Array) -> Array:
    """Return the lesser; the first number that is not one; zero without its sign."""
    return np.where((a < b) | (a != a), a, b) + a.dtype.type(0)


def greatest(a: Array, b: Array) -> Array:
    """Return the greater, as `least`."""
    return np.where((a > b) | (a != a), a, b) + a.dtype.type(0)


def lean(a: Any, b: Any) -> Any:
    """A user's operator whose result depends on order and on brackets."""
    return a + b / 2


COMBINES: dict[str, Combine] = {"sum": np.add, "prod": product, "min": least, "max": greatest, "lean": lean}


def reduced(op: str, parts: Sequence[Array]) -> Array:
    """Return what ranks must get for their contributions: half types are computed in float32 and rounded once."""
    if op == "exact":
        return exact(parts)
    dtype = parts[0].dtype
    wide = [part.astype(np.float32) if dtype in (BF16, np.float16) else part for part in parts]
    with np.errstate(all="ignore"):
        found: Array = canonical(wide, COMBINES[op]).astype(dtype)
    return found


# ---- exact sums


def integer(x: float) -> int:
    """Return a finite number in units of 2**UNIT."""
    n, d = float(x).as_integer_ratio()
    return n * ((1 << -UNIT) // d)


def nearest(n: int, unit: int, form: Form, *, more: bool = False) -> float:
    """Return n * 2**unit rounded to nearest, ties to even; ``more``: the number is a little further from zero than that."""
    size = abs(n)
    drop = max(size.bit_length() - form.digits, form.least - unit, 0)
    kept, rest = size >> drop, size & ((1 << drop) - 1)
    half = (1 << drop) >> 1
    if drop and (rest > half or (rest == half and (more or kept & 1))):
        kept += 1
    value = math.inf if kept.bit_length() + drop + unit > form.top else math.ldexp(kept, drop + unit)
    return math.copysign(value, 1 if n > 0 else -1)


def total(values: Sequence[float], form: Form) -> float:
    """Return the correctly rounded sum."""
    if not all(map(math.isfinite, values)):
        return sum(value for value in values if not math.isfinite(value))
    n = sum(map(integer, values))
    if n:
        return nearest(n, UNIT, form)
    return -0.0 if values and all(math.copysign(1, value) < 0 for value in values) else 0.0


def exact(parts: Sequence[Array]) -> Array:
    """Return the correctly rounded sums of contributions, element by element; integers wrap."""
    dtype = parts[0].dtype
    if dtype.kind in "iu":
        return np.add.reduce(parts, dtype=dtype)
    if dtype.kind == "c":
        found = np.empty_like(parts[0])
        found.real, found.imag = exact([part.real for part in parts]), exact([part.imag for part in parts])
        return found
    columns = np.stack([part.astype(np.float64) for part in parts], axis=-1).reshape(-1, len(parts)).tolist()
    sums = [total(column, FORMS[dtype]) for column in columns]
    with np.errstate(over="ignore"):
        return np.array(sums, np.float64).astype(dtype).reshape(parts[0].shape)


def square(n: int) -> int:
    return n * n


def root(n: int, form: Form) -> float:
    """Return the correctly rounded square root of n * 2**SQUARE."""
    wide = n << 256  # SQUARE is even
    found = math.isqrt(wide)
    return nearest(found, UNIT - 128, form, more=found * found != wide)


def quotient(n: int, divisor: int, form: Form) -> float:
    """Return n * 2**UNIT / divisor, correctly rounded."""
    found, rest = divmod(abs(n) << 256, divisor)
    return math.copysign(nearest(found, UNIT - 256, form, more=rest != 0), 1 if n > 0 else -1)


def bits(values: Array) -> bytes:
    """Return the bytes of results, those that are no numbers all alike."""
    values = np.ascontiguousarray(values)
    if values.dtype.kind in "iu":
        return values.tobytes()
    flat = values.view(PARTS[values.dtype]) if values.dtype.kind == "c" else values.copy()
    with np.errstate(invalid="ignore"):
        return np.where(flat != flat, flat.dtype.type(np.nan), flat).tobytes()
