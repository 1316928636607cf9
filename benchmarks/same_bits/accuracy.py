"""Millions of exact sums and products, each compared with the correctly rounded one: ill-conditioned, any exponents, subnormal, ties.

    python benchmarks/same_bits/accuracy.py                # ten million, minutes
    python benchmarks/same_bits/accuracy.py --cases 100000 --seed 7

The fold of `hpcoll.EXACT_SUM`, `hpcoll.exact_sum` and `hpcoll.exact_dot` run in this process, without MPI. The right results are those of
`math.fsum`; where that overflows, or a second rounding could differ, of integers of any length. If mpmath is there, it sums some again.
"""

import argparse
import ctypes
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from right_bits import FORMS, SQUARE, Array, bits, integer, nearest, total

import hpcoll
from hpcoll.kernels.host import kernel_address

DOUBLE, SINGLE = np.dtype(np.float64), np.dtype(np.float32)
WIDTHS = (2, 3, 4, 5, 8, 16)
BATCH = 50_000
Rng = np.random.Generator


# ---- data: rows of numbers, each a case


def _any(rng: Rng, shape: tuple[int, int], dtype: np.dtype, low: Any, high: Any) -> Array:
    """Return random signs and significands, with exponents from ``low`` to ``high``."""
    form = FORMS[dtype]
    whole = rng.integers(1 << (form.digits - 1), 1 << form.digits, shape) * rng.choice((-1, 1), shape)
    return np.ldexp(whole.astype(np.float64), rng.integers(low, high, shape) - form.digits).astype(dtype)


def exponents(rng: Rng, shape: tuple[int, int], dtype: np.dtype) -> Array:
    """Exponents of the whole range."""
    form = FORMS[dtype]
    return _any(rng, shape, dtype, form.least + 1, form.top - 4)


def alike(rng: Rng, shape: tuple[int, int], dtype: np.dtype) -> Array:
    """Within two significands of each other, anywhere."""
    form = FORMS[dtype]
    centre = rng.integers(form.least + 2 * form.digits, form.top - form.digits - 5, (shape[0], 1))
    return _any(rng, shape, dtype, centre - form.digits, centre + form.digits)


def conditioned(rng: Rng, shape: tuple[int, int], dtype: np.dtype) -> Array:
    """Pairs that cancel, and a remainder that is smaller by anything: condition numbers of 1 to 1e300 (1e60 in float32)."""
    form = FORMS[dtype]
    n, width = shape
    top = rng.integers(form.top // 4 * 3, form.top - 8, (n, 1))
    made = _any(rng, shape, dtype, top - 2 * form.digits, top)
    pairs = (width - 1) // 2
    made[:, pairs : 2 * pairs] = -rng.permuted(made[:, :pairs], axis=1)
    small = top - rng.integers(0, 1000 if dtype == DOUBLE else 200, (n, 1))
    rest = width - 2 * pairs
    made[:, 2 * pairs :] = _any(
        rng, (n, rest), dtype, np.maximum(small - 3, form.least + 1), np.maximum(small, form.least + 2)
    )
    return rng.permuted(made, axis=1)


def subnormal(rng: Rng, shape: tuple[int, int], dtype: np.dtype) -> Array:
    """Below the normal numbers, and not far above."""
    form = FORMS[dtype]
    return _any(rng, shape, dtype, form.least - 1, form.least + form.digits + 3)


def ties(rng: Rng, shape: tuple[int, int], dtype: np.dtype) -> Array:
    """Halfway between two numbers, or off that by one more number that may be far smaller."""
    form = FORMS[dtype]
    n, width = shape
    at = rng.integers(form.least + form.digits + 1, form.top - form.digits - 4, n)
    made = np.zeros(shape, np.float64)
    sign = rng.choice((-1.0, 1.0), n)
    made[:, 0] = sign * np.ldexp(
        rng.integers(1 << (form.digits - 1), 1 << form.digits, n).astype(np.float64), at
    )
    made[:, 1] = rng.choice((-1.0, 1.0), n) * np.ldexp(1.0, at - 1)
    if width > 2:
        far = np.maximum(at - rng.integers(2, 1000, n), form.least)
        made[:, 2] = rng.choice((-1.0, 0.0, 1.0), n) * np.ldexp(1.0, far)
    if width > 4:
        made[:, 3] = np.ldexp(rng.integers(1, 100, n).astype(np.float64), at)
        made[:, 4] = -made[:, 3]
    return rng.permuted(made.astype(dtype), axis=1)


def overflowing(rng: Rng, shape: tuple[int, int], dtype: np.dtype) -> Array:
    """Near the largest number, so that partial sums overflow and results may not."""
    form = FORMS[dtype]
    return _any(rng, shape, dtype, form.top - 2, form.top + 1) * rng.choice((0, 1, 1, 1), shape).astype(dtype)


def special(rng: Rng, shape: tuple[int, int], dtype: np.dtype) -> Array:
    """Zeros of both signs, and a few infinities and NaN."""
    values = np.array([0.0, -0.0, -0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan], dtype)
    few = rng.integers(0, 4, (shape[0], 1)) == 0
    return values[
        np.where(
            few, rng.integers(0, 9, shape), rng.integers(0, 3 + 3 * (rng.random((shape[0], 1)) < 0.3), shape)
        )
    ]


FAMILIES = {
    one.__name__: one for one in (exponents, alike, conditioned, subnormal, ties, overflowing, special)
}
SHARES = {
    "exponents": 2,
    "alike": 2,
    "conditioned": 3,
    "subnormal": 1,
    "ties": 2,
    "overflowing": 0.5,
    "special": 0.25,
}


# ---- right results


def right(rows: Array) -> Array:
    """Return the correctly rounded sum of each row."""
    dtype, form = rows.dtype, FORMS[rows.dtype]
    columns = rows.astype(np.float64).tolist()
    try:
        sums = list(map(math.fsum, columns))
    except (OverflowError, ValueError):
        sums = [total(row, FORMS[DOUBLE]) for row in columns]
    wide = np.array(sums)
    negative = (wide == 0) & (np.signbit(rows) & (rows == 0)).all(axis=1)
    wide[negative] = -0.0
    if dtype == DOUBLE:
        return wide
    with np.errstate(over="ignore", invalid="ignore"):
        found = wide.astype(dtype)
        step = np.nextafter(found, np.where(wide > found, np.inf, -np.inf).astype(dtype)).astype(np.float64)
        doubtful = (wide - found) == (step - wide)  # halfway, after a first rounding
    doubtful |= np.isinf(found) & np.isfinite(wide)
    for i in np.flatnonzero(doubtful):
        found[i] = total(columns[i], form)
    return found


def conditions(rows: Array, sums: Array) -> Array:
    """Return how often the sum of absolute values is the sum, as powers of ten; of sums that are zero or no number none."""
    with np.errstate(all="ignore"):
        size, rest = np.abs(rows.astype(np.float64)), np.abs(sums.astype(np.float64))
        top = size.max(axis=1)
        found = np.log10((size / top[:, None]).sum(axis=1)) + np.log10(top) - np.log10(rest)
    return found[np.isfinite(found)]


# ---- what is tried


def fold(rows: Array) -> Array:
    """Return the sums of rows by the kernel that reductions with `hpcoll.EXACT_SUM` use, of as many sources as there are columns."""
    columns, out = np.ascontiguousarray(rows.T), np.empty(len(rows), rows.dtype)
    kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(
        kernel_address(hpcoll.EXACT_SUM, rows.dtype)
    )
    pointers = np.array([column.ctypes.data for column in columns], np.uint64)
    kernel(out.ctypes.data, pointers.ctypes.data, len(columns), len(out))
    return out


def along(rows: Array) -> Array:
    """Return the sums of rows by `hpcoll.exact_sum`."""
    found: Array = hpcoll.exact_sum(None, rows, axis=1)
    return found


def products(rng: Rng, n: int) -> Iterator[tuple[str, bool]]:
    """Yield what `hpcoll.exact_dot` was given, and whether it was right; ill-conditioned for the most part."""
    form = FORMS[DOUBLE]
    for i in range(n):
        width = (1, 2, 3, 5, 17)[i % 5]
        x, y = (_any(rng, (1, width), DOUBLE, -500 - 40 * (i % 13), 500)[0] for _ in range(2))
        if width > 2:
            x[-1], y[-1] = -x[0], y[0] * (1 + 2.0**-52 * (i % 3))
        n_squares = sum(integer(a) * integer(b) for a, b in zip(x.tolist(), y.tolist()))
        want = np.float64(nearest(n_squares, SQUARE, form) if n_squares else 0.0)
        yield "products", bits(np.asarray(hpcoll.exact_dot(None, x, y))) == bits(np.asarray(want))


def rows_of(family: str, rng: Rng, n: int, dtype: np.dtype) -> Iterator[Array]:
    """Yield so many cases of a family, in batches of one width, each width in turn."""
    most, batch = min(BATCH, math.ceil(n / len(WIDTHS))), 0
    while n > 0:
        yield FAMILIES[family](rng, (min(n, most), WIDTHS[batch % len(WIDTHS)]), dtype)
        n, batch = n - most, batch + 1


def checked_again(rows: Array, sums: Array) -> int:
    """Return how many of some sums are not the nearest by mpmath."""
    try:
        import mpmath
    except ImportError:
        return 0
    mpmath.mp.prec = 2300
    wrong = 0
    for row, found in zip(rows.tolist(), sums.tolist()):
        if math.isfinite(found) and abs(found) > 1e-300:
            wrong += float(mpmath.fsum(row)) != found
    return wrong


def main() -> None:
    """Run, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=10_000_000, help="in all (10000000)")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    rng, begin = np.random.default_rng(asked.seed), time.monotonic()
    tried: list[tuple[str, Callable[[Array], Array], np.dtype, float]] = [
        ("EXACT_SUM", fold, DOUBLE, 0.45),
        ("EXACT_SUM", fold, SINGLE, 0.2),
        ("exact_sum", along, DOUBLE, 0.2),
        ("exact_sum", along, SINGLE, 0.1),
    ]
    print("| of | type | numbers | cases | wrong |\n|---|---|---|---|---|")
    ncases, nwrong, again, decades = 0, 0, [0, 0], Counter[int]()
    for name, function, dtype, share in tried:
        for family, part in SHARES.items():
            cases, wrong = 0, 0
            for rows in rows_of(
                family, rng, math.ceil(asked.cases * share * part / sum(SHARES.values())), dtype
            ):
                want = right(rows)
                if family == "conditioned":
                    decades.update((np.maximum(conditions(rows, want), 0) // 50 * 50).astype(int).tolist())
                with np.errstate(all="ignore"):
                    found = function(rows)
                differ = bits(found) != bits(want)
                bad = (
                    [i for i in range(len(rows)) if bits(found[i : i + 1]) != bits(want[i : i + 1])]
                    if differ
                    else []
                )
                for i in bad[:3]:
                    print(
                        f"wrong: {name} {[one.hex() for one in rows[i].tolist()]} gave {found[i]!r} for {want[i]!r}"
                    )
                cases, wrong = cases + len(rows), wrong + len(bad)
                if dtype == DOUBLE:
                    again = [again[0] + min(50, len(rows)), again[1] + checked_again(rows[:50], want[:50])]
            ncases, nwrong = ncases + cases, nwrong + wrong
            print(f"| `{name}` | {dtype} | {family} | {cases:,} | {wrong} |", flush=True)
    tally = Counter(good for _, good in products(rng, math.ceil(asked.cases * 0.05)))
    print(f"| `exact_dot` | float64 | products | {tally.total():,} | {tally[False]} |")
    print(
        f"\n{ncases + tally.total():,} cases, {nwrong + tally[False]} wrong, {time.monotonic() - begin:.0f} s"
    )
    print("condition numbers, from 10**k on:", dict(sorted(decades.items())))
    print(f"mpmath: {again[0]:,} of the right results again, {again[1]} differ")


if __name__ == "__main__":
    main()
