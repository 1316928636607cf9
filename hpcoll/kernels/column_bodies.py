"""Exact sums of an array's columns, side by side in vector units. Imported only to be compiled.

Rows are read 32 at a time: their greatest number, then their shares at two levels (`hpcoll.kernels.extraction`). Each column has an int64
for each level, which becomes digits where the level rises, and after at most 2048 rows. What two levels leave is added number by number.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import carray, njit

from hpcoll.kernels.digit_bodies import SIGNED
from hpcoll.kernels.digit_form import NCOUNTS
from hpcoll.kernels.extraction import GREATEST_LEVEL, LEVEL_BITS, bits_of, least_level, level_for, put, put_any, put_float, sigma
from hpcoll.kernels.sum_room import COLUMNS, MOST_ROWS, RESTS, ROOM, ROWS


@njit
def _add_sums(sums1, sums2, n, level, words, first, ndigits):  # type: ignore[no-untyped-def]
    """Add the sums of columns to their vectors, and clear them."""
    for i in range(n):
        vector = words[i * (ndigits + NCOUNTS) :]
        put(vector, sums1[i], level - 52, first)
        put(vector, sums2[i], level - 52 - LEVEL_BITS, first)
        sums1[i], sums2[i] = 0, 0


def _row_adder(load: Any) -> Any:
    """Return the compiled function that adds a row at two levels."""

    @njit
    def two_levels(x, n, s1, s2, sums1, sums2):  # type: ignore[no-untyped-def]
        """Add a row to the sums of columns, and say whether that left anything."""
        left = np.int64(0)
        for i in range(n):
            t = load(x[i]) + s1
            sums1[i] += bits_of(t) - bits_of(s1)
            rest = load(x[i]) - (t - s1)
            u = rest + s2
            sums2[i] += bits_of(u) - bits_of(s2)
            left |= bits_of(u - s2) ^ bits_of(rest)
        return left << 1 != 0

    @njit
    def add_row(x, n, level, sums1, sums2, words, first, ndigits):  # type: ignore[no-untyped-def]
        s1, s2 = sigma(level), sigma(level - LEVEL_BITS)
        if two_levels(x, n, s1, s2, sums1, sums2):
            for i in range(n):
                rest = load(x[i])
                rest -= (rest + s1) - s1
                rest -= (rest + s2) - s2
                if rest != 0.0:
                    put_float(rest, 0, words[i * (ndigits + NCOUNTS) :], first)

    return add_row


def _tile_adder(load: Any) -> Any:
    """Return the compiled function that adds a tile of at most `MOST_ROWS` rows and `COLUMNS` columns."""
    add_row = _row_adder(load)

    @njit
    def greatest_of(x, n):  # type: ignore[no-untyped-def]
        greatest = np.int64(0)
        for i in range(n):
            greatest = max(greatest, bits_of(load(x[i])) & ~(-1 << 63))
        return greatest

    @njit
    def add_tile(x, nrows, step, n, sums1, sums2, words, first, ndigits):  # type: ignore[no-untyped-def]
        """Sums of columns are zeros, and are so afterwards."""
        level = least_level(first)
        for start in range(0, nrows, ROWS):
            end, greatest = min(start + ROWS, nrows), np.int64(0)
            for row in range(start, end):
                greatest = max(greatest, greatest_of(x[row * step : row * step + n], n))
            wanted = level_for(greatest, first)
            if wanted > GREATEST_LEVEL:
                for row in range(start, end):
                    for i in range(n):
                        put_any(load(x[row * step + i]), words[i * (ndigits + NCOUNTS) :], first, ndigits)
                continue
            if wanted > level:
                _add_sums(sums1, sums2, n, level, words, first, ndigits)
                level = wanted
            for row in range(start, end):
                add_row(x[row * step : row * step + n], n, level, sums1, sums2, words, first, ndigits)
        _add_sums(sums1, sums2, n, level, words, first, ndigits)

    return add_tile


def kernel_of(load: Any) -> Callable[..., None]:
    """Return the kernel for an element type, of its function to float64."""
    add_tile = _tile_adder(load)

    def kernel(x, nrows, step, n, words, first, ndigits, room):  # type: ignore[no-untyped-def]
        width = ndigits + NCOUNTS
        elements, vectors, work = carray(x, nrows * step + n), carray(words, n * width), carray(room, ROOM)
        sums1, sums2 = work[RESTS : RESTS + COLUMNS], work[RESTS + COLUMNS : RESTS + 2 * COLUMNS]
        sums1[:], sums2[:] = 0, 0
        for column in range(0, n, COLUMNS):
            some = min(COLUMNS, n - column)
            for row in range(0, nrows, MOST_ROWS):
                tile = elements[row * step + column :]
                add_tile(tile, min(MOST_ROWS, nrows - row), step, some, sums1, sums2, vectors[column * width :], first, ndigits)
        for i in range(n):
            row = 0
            while not vectors[i * width + ndigits + SIGNED] and row < nrows:
                vectors[i * width + ndigits + SIGNED] = bits_of(load(elements[row * step + i])) != -1 << 63
                row += 1

    return kernel
