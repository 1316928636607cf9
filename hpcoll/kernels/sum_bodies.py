"""Bodies of the kernels of exact sums (`hpcoll.kernels.sums` has what they do). Imported only to be compiled.

``rows`` and ``columns`` have the signature ``(x, nrows, step, n, words, first, ndigits, room)``, ``products`` that of
``(x, y, nrows, n, words, first, ndigits, room)``, ``exponents`` that of ``(x, n, found)``; elements of the half types are their bits.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import carray, njit, types

from hpcoll.kernels.digit_bodies import SIGNED
from hpcoll.kernels.digit_form import NCOUNTS
from hpcoll.kernels.extraction import (
    FRESH,
    INFINITY,
    LEVEL_BITS,
    add_any,
    columns_kernel,
    empty_bins,
    fetch_ahead,
    products_kernel,
    put,
    sigma,
    to_bins,
)
from hpcoll.kernels.float_bits import bits_of, float32_of, float_of
from hpcoll.kernels.object_code import object_file
from hpcoll.kernels.sum_room import BLOCK, BUSY, LEVEL, PART, RESTS, ROOM, SKIP

_ELEMENTS = {
    "float64": types.float64,
    "float32": types.float32,
    "float16": types.uint16,
    "bfloat16": types.uint16,
}


@njit(inline="always")
def _real(value):  # type: ignore[no-untyped-def]
    return np.float64(value)


@njit(inline="always")
def _bfloat16(bits):  # type: ignore[no-untyped-def]
    return np.float64(float32_of(np.uint32(bits) << np.uint32(16)))


@njit(inline="always")
def _float16(bits):  # type: ignore[no-untyped-def]
    exponent, fraction = np.int32((bits >> 10) & 31), np.int32(bits & 1023)
    mantissa = fraction + (1024 if exponent > 0 else 0)
    power = np.int64(max(exponent, 1)) + (1023 - 25)
    power = power if exponent < 31 else 2047  # infinity
    size = np.float64(mantissa) * float_of(power << 52)
    size = np.nan if exponent == 31 and fraction > 0 else size
    return -size if bits >> 15 else size


LOADS = {"float64": _real, "float32": _real, "float16": _float16, "bfloat16": _bfloat16}


def row_adder(load: Any) -> Any:
    """Return the compiled function ``(x, room, words, first, ndigits)`` that adds a block of elements to a vector."""

    @njit(inline="always")
    def part(x, n, s1, s2):  # type: ignore[no-untyped-def]
        fetch_ahead(x, n)
        sum1, sum2, beyond, left = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
        for i in range(n):
            value = load(x[i])
            t = value + s1
            sum1 += bits_of(t)
            beyond |= bits_of(t) ^ bits_of(s1)
            rest = value - (t - s1)
            u = rest + s2
            sum2 += bits_of(u)
            left |= bits_of(u - s2) ^ bits_of(rest)
        return sum1 - n * bits_of(s1), sum2 - n * bits_of(s2), (beyond >> 52) | (left << 1)

    @njit
    def two_levels(x, n, s1, s2):  # type: ignore[no-untyped-def]
        """Return the sums of both levels, and bits that say whether elements were too great, or left anything."""
        whole = n - n % PART
        sum1, sum2, wrong = part(x[whole:], n - whole, s1, s2)
        for start in range(0, whole, PART):  # a loop of constant length
            more1, more2, also = part(x[start:], PART, s1, s2)
            sum1, sum2, wrong = sum1 + more1, sum2 + more2, wrong | also
        return sum1, sum2, wrong

    @njit
    def add_block(x, room, words, first, ndigits):  # type: ignore[no-untyped-def]
        n, level = x.size, room[LEVEL]
        if level != FRESH and room[SKIP] == 0:
            sum1, sum2, wrong = two_levels(x, n, sigma(level), sigma(level - LEVEL_BITS))
            if wrong == 0:
                put(words, sum1, level - 52, first)
                put(words, sum2, level - 52 - LEVEL_BITS, first)
                if not words[ndigits + SIGNED]:
                    i = 0
                    while i < n and bits_of(load(x[i])) == -1 << 63:
                        i += 1
                    words[ndigits + SIGNED] = i < n
                return
        values = room[RESTS : RESTS + BLOCK].view(np.float64)
        fetch_ahead(x, n)
        for i in range(n):
            values[i] = load(x[i])
        if room[SKIP] > 0:
            room[SKIP] -= 1
            to_bins(values, n, room, words, first, ndigits)
        else:
            add_any(values, n, room, words, first, ndigits)

    return add_block


def _rows(load: Any) -> Callable[..., None]:
    add_block = row_adder(load)

    def kernel(x, nrows, step, n, words, first, ndigits, room):  # type: ignore[no-untyped-def]
        width = ndigits + NCOUNTS
        elements, vectors, work = (
            carray(x, nrows * step + n),
            carray(words, nrows * width),
            carray(room, ROOM),
        )
        work[LEVEL], work[SKIP], work[BUSY] = FRESH, 0, 0
        for row in range(nrows):
            vector = vectors[row * width : (row + 1) * width]
            for lo in range(row * step, row * step + n, BLOCK):
                add_block(elements[lo : min(lo + BLOCK, row * step + n)], work, vector, first, ndigits)
            empty_bins(work, vector, first, ndigits)

    return kernel


def _exponents(load: Any) -> Callable[..., None]:
    def kernel(x, n, found):  # type: ignore[no-untyped-def]
        elements, least, greatest = carray(x, n), np.int64(INFINITY), np.int64(0)
        for i in range(n):
            bits = bits_of(load(elements[i])) & ~(-1 << 63)
            least = min(least, bits if bits != 0 else INFINITY)
            greatest = max(greatest, bits if bits < INFINITY else 0)
        found[0], found[1] = (
            max(least >> 52, 1) - 1023,
            max(greatest >> 52, 1) - 1023 if greatest > 0 else -2000,
        )

    return kernel


def kernel_file(name: str, form: str, symbol: str) -> bytes:
    """Return the object file of a kernel."""
    elements, words, size = types.CPointer(_ELEMENTS[form]), types.CPointer(types.int64), types.int64
    if name == "products":
        kernel = products_kernel(form, LOADS[form], row_adder(_real))
        return object_file(
            kernel, types.void(elements, elements, size, size, words, size, size, words), symbol
        )
    if name == "exponents":
        return object_file(_exponents(LOADS[form]), types.void(elements, size, words), symbol)
    kernel = _rows(LOADS[form]) if name == "rows" else columns_kernel(LOADS[form])
    return object_file(kernel, types.void(elements, size, size, size, words, size, size, words), symbol)
