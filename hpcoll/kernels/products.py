"""Exact sums of products of two arrays' elements. Imported only to be compiled.

The product of two float32 or shorter numbers is a float64 number. That of two float64 numbers is ``p + e`` with ``p = x * y`` and
``e = fma(x, y, -p)``, where neither over- nor underflows. Three levels (`hpcoll.kernels.extraction`) hold products of which the least is
not below the greatest by more than 48 bits, and then leave nothing. More levels take more passes. Products that over- or underflow are
made of fractions between 1 and 2, and added to the digits one by one.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import carray, njit, types
from numba.extending import intrinsic

from hpcoll.kernels.digit_bodies import SIGNED
from hpcoll.kernels.digit_form import NCOUNTS
from hpcoll.kernels.extraction import (
    FRESH,
    INFINITY,
    LEVEL_BITS,
    add_any,
    bits_of,
    empty_bins,
    fetch_ahead,
    float_of,
    put,
    put_any,
    put_float,
    sigma,
)
from hpcoll.kernels.sum_room import BLOCK, BUSY, LEVEL, PART, RESTS, ROOM, SKIP

LEAST_PRODUCT_LEVEL = -700  # three levels are far above the least number
HELD_BITS = 48  # three levels hold products whose first bit is at most so many below their own
LEAST_PRODUCT, GREATEST_PRODUCT = 2.0**-960, 2.0**1020  # between them nothing under- or overflows


@intrinsic
def fma(typingctx, a, b, c):  # type: ignore[no-untyped-def]
    """Return ``a * b + c`` of float64 numbers, rounded once."""
    signature = types.float64(types.float64, types.float64, types.float64)
    return signature, lambda context, builder, signature, values: builder.fma(*values)


@njit(inline="always")
def _part(x, y, n, s1, s2, s3):  # type: ignore[no-untyped-def]
    fetch_ahead(x, n)
    fetch_ahead(y, n)
    sum1, sum2, sum3, beyond, least = np.int64(0), np.int64(0), np.int64(0), np.int64(0), INFINITY
    for i in range(n):
        p = x[i] * y[i]
        e = fma(x[i], y[i], -p)
        least = min(least, bits_of(p) & ~(-1 << 63))
        t = p + s1
        sum1 += bits_of(t)
        beyond |= bits_of(t) ^ bits_of(s1)
        u = (p - (t - s1)) + s2  # nothing is left of the product
        v = u + e
        sum2 += bits_of(v)
        sum3 += bits_of((e - (v - u)) + s3)
    return sum1 - n * bits_of(s1), sum2 - n * bits_of(s2), sum3 - n * bits_of(s3), beyond >> 52, least


@njit
def three_levels(x, y, n, s1, s2, s3):  # type: ignore[no-untyped-def]
    """Return the sums of three levels, bits that say whether a product was too great, and the bits of the least product in size."""
    whole = n - n % PART
    sum1, sum2, sum3, beyond, least = _part(x[whole:], y[whole:], n - whole, s1, s2, s3)
    for start in range(0, whole, PART):  # a loop of constant length
        more1, more2, more3, also, size = _part(x[start:], y[start:], PART, s1, s2, s3)
        sum1, sum2, sum3, beyond, least = sum1 + more1, sum2 + more2, sum3 + more3, beyond | also, min(least, size)
    return sum1, sum2, sum3, beyond, least


@njit
def _least_product(x, y, n):  # type: ignore[no-untyped-def]
    """Return the bits of the least product in size, but of those that are zero: 0 where one is only rounded to that."""
    least = INFINITY
    for i in range(n):
        p = bits_of(x[i] * y[i]) & ~(-1 << 63)
        least = min(least, INFINITY if (x[i] == 0) | (y[i] == 0) else p)
    return least


@njit
def _fraction(value):  # type: ignore[no-untyped-def]
    """Return a finite number's fraction, from 1 to 2 or zero, and its exponent."""
    exponent = 0
    if (bits_of(value) >> 52) & 0x7FF == 0:
        value, exponent = value * 2.0**54, -54
        if value == 0.0:
            return value, 0
    bits = bits_of(value)
    exponent += ((bits >> 52) & 0x7FF) - 1023
    return float_of((bits & ~(0x7FF << 52)) | (1023 << 52)), exponent


@njit
def _add_product(x, y, words, first, ndigits):  # type: ignore[no-untyped-def]
    """Add one product, of any two numbers."""
    if not (np.isfinite(x) and np.isfinite(y)):
        put_any(x * y, words, first, ndigits)
        return
    a, i = _fraction(x)
    b, k = _fraction(y)
    p = a * b
    put_float(p, i + k, words, first)
    put_float(fma(a, b, -p), i + k, words, first)
    words[ndigits + SIGNED] += bits_of(p) != -1 << 63


@njit
def _add_block(x, y, room, words, first, ndigits):  # type: ignore[no-untyped-def]
    n, level = x.size, room[LEVEL]
    if level != FRESH and room[SKIP] == 0:
        s1, s2, s3 = sigma(level), sigma(level - LEVEL_BITS), sigma(level - 2 * LEVEL_BITS)
        sum1, sum2, sum3, beyond, least = three_levels(x, y, n, s1, s2, s3)
        bound = (level - HELD_BITS + 1023) << 52
        if beyond == 0 and (least >= bound or _least_product(x, y, n) >= bound):
            put(words, sum1, level - 52, first)
            put(words, sum2, level - 52 - LEVEL_BITS, first)
            put(words, sum3, level - 52 - 2 * LEVEL_BITS, first)
            i = 0
            while not words[ndigits + SIGNED] and i < n:
                words[ndigits + SIGNED] = bits_of(x[i] * y[i]) != -1 << 63
                i += 1
            return
    room[SKIP] = max(room[SKIP] - 1, 0)
    _add_any_block(x, y, room, words, first, ndigits)


@njit
def _add_any_block(x, y, room, words, first, ndigits):  # type: ignore[no-untyped-def]
    """Add a block of products as two blocks of numbers, or one by one where a product over- or underflows."""
    n = x.size
    products = room[RESTS : RESTS + BLOCK].view(np.float64)
    errors = room[RESTS + BLOCK : RESTS + 2 * BLOCK].view(np.float64)
    greatest = np.int64(0)
    for i in range(n):
        p = x[i] * y[i]
        products[i], errors[i] = p, fma(x[i], y[i], -p)
        greatest = max(greatest, bits_of(p) & ~(-1 << 63))
    room[LEVEL] = FRESH
    if greatest > bits_of(GREATEST_PRODUCT) or _least_product(x, y, n) < bits_of(LEAST_PRODUCT):
        room[SKIP] = 0
        for i in range(n):
            _add_product(x[i], y[i], words, first, ndigits)
        return
    add_any(products, n, room, words, first, ndigits)
    level, signed = room[LEVEL], words[ndigits + SIGNED]
    add_any(errors, n, room, words, first, ndigits)
    room[LEVEL], words[ndigits + SIGNED] = max(level, LEAST_PRODUCT_LEVEL), signed


@njit
def _add_row(x, y, room, words, first, ndigits):  # type: ignore[no-untyped-def]
    for lo in range(0, x.size, BLOCK):
        _add_block(x[lo : lo + BLOCK], y[lo : lo + BLOCK], room, words, first, ndigits)
    signed = words[ndigits + SIGNED]
    empty_bins(room, words, first, ndigits)
    words[ndigits + SIGNED] = signed  # errors of products that are zero are in bins, too


def _row_adder(load: Any, add_block: Any) -> Any:
    @njit
    def add_row(x, y, room, words, first, ndigits):  # type: ignore[no-untyped-def]
        products = room[RESTS + BLOCK : RESTS + 2 * BLOCK].view(np.float64)
        for lo in range(0, x.size, BLOCK):
            one, other = x[lo : lo + BLOCK], y[lo : lo + BLOCK]
            fetch_ahead(one, one.size)
            fetch_ahead(other, one.size)
            for i in range(one.size):
                products[i] = load(one[i]) * load(other[i])
            add_block(products[: one.size], room, words, first, ndigits)
        empty_bins(room, words, first, ndigits)

    return add_row


def kernel_of(form: str, load: Any, add_block: Any) -> Callable[..., None]:
    """Return the kernel for an element type, of its function to float64 and of the one that adds a block of float64 numbers."""
    add_row = _add_row if form == "float64" else _row_adder(load, add_block)

    def kernel(x, y, nrows, n, words, first, ndigits, room):  # type: ignore[no-untyped-def]
        width = ndigits + NCOUNTS
        xs, ys, vectors, work = carray(x, nrows * n), carray(y, nrows * n), carray(words, nrows * width), carray(room, ROOM)
        work[LEVEL], work[SKIP], work[BUSY] = FRESH, 0, 0
        for row in range(nrows):
            one, other = xs[row * n : (row + 1) * n], ys[row * n : (row + 1) * n]
            add_row(one, other, work, vectors[row * width : (row + 1) * width], first, ndigits)

    return kernel
