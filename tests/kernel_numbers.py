"""Inputs of GPU kernels' tests: element types, numbers, where they lie, and NumPy's results."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from hpcoll.base import canonical, ops
from hpcoll.base.dtypes import working_dtype
from hpcoll.base.ops import ReduceOp

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
INTEGERS = [np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]
FLOATS = [np.dtype(name) for name in ("float16", "float32", "float64")] + [BFLOAT16]
COMPLEX = [np.dtype("complex64"), np.dtype("complex128")]
DTYPES = [np.dtype(bool), *INTEGERS, *FLOATS, *COMPLEX]
HALVES = [np.dtype(np.float16), BFLOAT16]
SCALES = [(one, one) for one in [*FLOATS, *COMPLEX]] + [
    pair for h in HALVES for pair in ((h, np.dtype("f4")), (np.dtype("f4"), h))
]

NUMPY: dict[str, Callable[..., Any]] = {
    "sum": np.add,
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


def bits(array: np.ndarray) -> np.ndarray:
    """Return what the kernel is handed: half types as uint16, bool as uint8."""
    stored = {"b": np.uint8, "V": np.uint16}.get(array.dtype.kind)
    return (
        array.view(np.uint16 if array.dtype == np.float16 else stored)
        if stored or array.dtype == np.float16
        else array
    )


def placed(values: np.ndarray, shift: int) -> np.ndarray:
    """A copy that starts ``shift`` elements behind a multiple of 16 bytes."""
    room = np.zeros(values.nbytes + 16 + (shift + 1) * values.itemsize, np.uint8)
    start = -room.ctypes.data % 16 + shift * values.itemsize
    found = room[start : start + values.nbytes].view(values.dtype)
    found[...] = values
    return found


def integers(dtype: np.dtype, count: int, rng: np.random.Generator) -> np.ndarray:
    """Integers of the type's whole range, zeros among them; or bools."""
    if dtype.kind == "b":
        return rng.integers(0, 2, count).astype(bool)
    limits = np.iinfo(dtype)
    whole = rng.integers(limits.min, limits.max, count, dtype, endpoint=True)
    return np.where(rng.random(count) < 0.3, rng.integers(0, 2, count), whole).astype(dtype)


def numbers(dtype: np.dtype, count: int, rng: np.random.Generator) -> np.ndarray:
    """Integers as `integers`; floating numbers whose folds are exact in float32, not all of them in halves."""
    if dtype.kind in "biu":
        return integers(dtype, count, rng)
    found = rng.integers(-6, 7, count).astype(dtype)
    if dtype.kind == "c":
        return found + np.array(1j, dtype) * rng.integers(-6, 7, count).astype(dtype)
    return np.where(rng.random(count) < 0.2, found * dtype.type(0.125), found).astype(dtype)


def by_numpy(op: ReduceOp, sources: list[np.ndarray]) -> np.ndarray:
    """The half types in float32, rounded at the end."""
    dtype = sources[0].dtype
    work = working_dtype(dtype)
    folded = canonical.fold(
        lambda a, b: NUMPY[op.name](a, b).astype(work), [one.astype(work) for one in sources]
    )
    return (folded + 0 if op in (ops.MIN, ops.MAX) else folded).astype(dtype)


def check_same(found: np.ndarray, expected: np.ndarray, what: str) -> None:
    """Equal bits, but any NaN for a NaN."""
    if found.dtype.kind not in "fV":
        assert np.array_equal(found, expected), f"{what}: {found} is not {expected}"
        return
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(found), nan), f"{what}: {found} is not {expected}"
    assert found[~nan].tobytes() == expected[~nan].tobytes(), f"{what}: {found} is not {expected}"


def spread(dtype: np.dtype, count: int, rng: np.random.Generator) -> np.ndarray:
    """Numbers of many magnitudes."""
    found = rng.standard_normal(count) * 2.0 ** rng.integers(-12, 12, count)
    return (found + 1j * rng.standard_normal(count) if dtype.kind == "c" else found).astype(dtype)
