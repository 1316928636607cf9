"""Kernels that add to vectors of digits, against fractions; a part of kernel_cases.py, which is told where `launch` is."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from exact_reference import FORMATS, hard_numbers
from kernel_numbers import BFLOAT16, bits

from hpcoll.kernels.digits import LOWEST, NCOUNTS, PRODUCTS, as_integer, window

TYPES = [np.dtype(BFLOAT16 if name == "bfloat16" else name) for name in FORMATS]
OUT = np.zeros(4, np.float64)  # for launches that have none

Launch = Callable[..., None]


def check_words(words: np.ndarray, first: int, addends: list[Any], what: str) -> None:
    """Compare a vector with numbers, or pairs of factors."""
    pairs = [one if isinstance(one, tuple) else (one, np.float64(1)) for one in addends]
    with np.errstate(all="ignore"):
        products = [np.float64(a) * np.float64(b) for a, b in pairs]
    special = [
        one for one, (a, b) in zip(products, pairs, strict=True) if not (np.isfinite(a) and np.isfinite(b))
    ]
    exact = [Fraction(float(a)) * Fraction(float(b)) for a, b in pairs if np.isfinite(a) and np.isfinite(b)]
    assert Fraction(as_integer(words)) * Fraction(2) ** (32 * first + LOWEST) == sum(exact, Fraction(0)), what
    counts = [
        sum(one == np.inf for one in special),
        sum(one == -np.inf for one in special),
        sum(one != one for one in special),
    ]
    assert words[-NCOUNTS:-1].tolist() == counts, what
    assert (words[-1] > 0) == any(not (a * b == 0 and np.signbit(a) != np.signbit(b)) for a, b in pairs), what


def check_sums(launch: Launch, dtype: np.dtype, count: int) -> None:
    """Rows, columns and one vector; in one launch, and in two of which the second adds what the first leaves."""
    rng = np.random.default_rng(count)
    within = window(dtype)
    x = np.concatenate(hard_numbers(dtype.name, 4, count, rng)).reshape(4, count)
    for nvectors, length, across, along in (
        (1, x.size, 0, 1),
        (4, count, count, 1),
        (count, 4, 1, count),
        (2, count, 2 * count, 1),
    ):
        what = f"{nvectors} vectors of {length} {dtype}, {across} and {along} apart"
        for slices in (1, 3):
            words, out = (
                np.zeros((nvectors, within.nwords), np.int64),
                np.full((4 * slices, nvectors), np.nan),
            )
            sizes = nvectors, length, across, along
            flat, digits = x.ravel(), (within.first, within.ndigits)
            launch("digit_sums", (dtype,), words.ravel(), out.ravel(), bits(flat), *sizes, slices, 0, *digits)
            assert not np.isnan(out).any(), what
            launch(
                "digit_sums",
                (np.dtype("f8"),),
                words.ravel(),
                OUT,
                out.ravel(),
                nvectors,
                len(out),
                1,
                nvectors,
                2,
                1,
                *digits,
            )
            for v in range(nvectors):
                check_words(
                    words[v],
                    within.first,
                    list(flat[v * across : v * across + length * along : along][:length]),
                    what,
                )
    for zeros in (np.full(7, -0.0), np.array([-0.0, 0.0, -0.0])):
        words = np.zeros(within.nwords, np.int64)
        launch(
            "digit_sums",
            (dtype,),
            words,
            OUT,
            bits(zeros.astype(dtype)),
            1,
            zeros.size,
            0,
            1,
            2,
            1,
            within.first,
            within.ndigits,
        )
        check_words(words, within.first, list(zeros), f"zeros of {dtype}")


def check_products(launch: Launch, dtype: np.dtype, count: int) -> None:
    """Products of all sizes, steps of both arrays, infinities and NaN times zeros."""
    x, y = hard_numbers(dtype.name, 2, count, np.random.default_rng(count))
    words, out = np.zeros(PRODUCTS.nwords, np.int64), np.full(12, np.nan)
    launch(
        "digit_products", (dtype,), words, out, bits(x), bits(y), count // 2, 1, 2, 3, 0, 0, PRODUCTS.ndigits
    )
    launch("digit_sums", (np.dtype("f8"),), words, OUT, out, 1, out.size, 0, 1, 2, 1, 0, PRODUCTS.ndigits)
    wide = x.astype(np.float64), y.astype(np.float64)
    check_words(
        words,
        0,
        list(zip(wide[0][: count // 2], wide[1][: count // 2 * 2 : 2], strict=True)),
        f"products of {dtype}",
    )
