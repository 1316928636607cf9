"""Fixed data: contributions of wide exponents, by a seed; the same on every machine, and for any number of ranks.

What an operator is given repeats after a prime number of elements, so that a million of them are expected as fast as a thousand.
"""

import zlib
from functools import cache

import numpy as np
from right_bits import BF16, FORMS, PARTS, Array, largest_below, reduced

PERIOD = 1009
NPARTS = 8  # contributions of a sum, however many ranks there are
REALS = (np.dtype(np.float64), np.dtype(np.float32), np.dtype(np.float16), BF16)
COMPLEX = tuple(PARTS)
INTEGERS = tuple(map(np.dtype, ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")))
DTYPES = (*REALS, *COMPLEX, *INTEGERS)


def operators(dtype: np.dtype) -> tuple[str, ...]:
    """Return the names of the operators that are tried on an element type; the user's on one, since each process compiles it."""
    return (
        ("sum", "prod", "exact")
        + (("min", "max") if dtype.kind != "c" else ())
        + (("lean",) if dtype == np.float64 else ())
    )


def _reals(rng: np.random.Generator, dtype: np.dtype, op: str) -> Array:
    """Return a period of each contribution: rows of one type."""
    form = FORMS[dtype]
    least, top = (
        (form.least + form.digits, form.top - 5)
        if op in ("sum", "exact", "lean")
        else (-form.top // 16, form.top // 16 + 1)
    )
    shape = NPARTS, PERIOD
    # Three in ten of any size, the others of sizes alike, so that all digits of each count.
    centre = rng.integers(least, top, PERIOD)
    alike = centre + rng.integers(-form.digits, form.digits, shape) // 2
    exponents = (
        np.clip(np.where(rng.random(shape) < 0.3, rng.integers(least, top, shape), alike), least, top)
        - form.digits
    )
    values = np.ldexp(rng.integers(-1 << form.digits, 1 << form.digits, shape).astype(np.float64), exponents)
    values[1::2, ::7] = -values[::2, ::7]  # what cancels
    # subnormal
    values[:, 3::31] = np.ldexp(rng.integers(-9, 9, (NPARTS, len(range(3, PERIOD, 31)))), form.least)
    values[:, 5] = -0.0
    values[:, 6] = rng.choice([0.0, -0.0], NPARTS)
    with np.errstate(over="ignore"):
        return values.astype(dtype)


def _special(values: Array, form_top: float) -> None:
    """Put in infinities, what is no number, what overflows in the middle, and ties."""
    huge = float(form_top)
    for column, row in (
        (11, (np.inf, 1)),
        (12, (1, -np.inf)),
        (13, (np.inf, -np.inf)),
        (14, (np.nan, 1)),
        (15, (np.inf, np.nan)),
        (16, (huge, huge, -huge, -huge, 1)),
        (17, (huge, huge, -huge)),
        (18, (-huge, -huge)),
        (19, (huge, -huge, huge, -huge)),
    ):
        values[:, column] = 0
        values[: len(row), column] = row


@cache
def contributions(dtype: np.dtype, op: str) -> Array:
    """Return a period of every contribution, as rows."""
    rng = np.random.default_rng(zlib.crc32(f"{dtype.name} {op}".encode()))
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, (NPARTS, PERIOD), dtype, endpoint=True)
    if dtype.kind == "c":
        made = np.empty((NPARTS, PERIOD), dtype)
        for part in (made.real, made.imag):
            part[...] = _reals(rng, PARTS[dtype], op)
        return made
    values = _reals(rng, dtype, op)
    if op in ("sum", "exact"):
        form = FORMS[dtype]
        _special(values, np.ldexp(1.0 - 2.0**-form.digits, form.top))
        tie = np.ldexp(1.0, form.digits)
        values[:, 20:24] = 0
        values[:3, 20:24] = np.array([[tie, tie, tie + 2, -tie], [1, 1, 1, -1], [0, 2.0**-3, 0, -0.0]])
    return values


def shares(nparts: int, nranks: int) -> list[range]:
    """Return which contributions each rank has, so that the canonical expression of the ranks is that of all contributions.

    Contributions are 2**k, and ranks at most as many: the first ranks, the largest power of two below their number, have the first half.
    """
    if nranks == 1:
        return [range(nparts)]
    first, half = largest_below(nranks), nparts // 2
    behind = [range(one.start + half, one.stop + half) for one in shares(half, nranks - first)]
    return shares(half, first) + behind


@cache
def inputs(dtype: np.dtype, op: str, nranks: int) -> tuple[Array, ...]:
    """Return a period of every rank's input.

    Where a rank can combine several contributions and lose nothing that counts, all are in it, and results are those of any other number
    of ranks. Half types and exact sums would be rounded too often: there each rank has a contribution of its own.
    """
    parts = contributions(dtype, op)
    if is_free(dtype, op):
        return tuple(reduced(op, [parts[i] for i in share]) for share in shares(NPARTS, nranks))
    return tuple(parts[:nranks])


def is_free(dtype: np.dtype, op: str) -> bool:
    """Say whether results are the same for any number of ranks."""
    return dtype.kind in "iu" or (op != "exact" and dtype.itemsize > 2)


def repeated(period: Array, count: int, start: int = 0) -> Array:
    """Return so many elements of an endless repetition, from one of them on."""
    return np.resize(np.roll(period, -(start % PERIOD)), count)
