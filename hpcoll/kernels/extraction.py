"""Error-free sums of float64 numbers, of columns, and of products: integers that the vector units add. Imported only to be compiled.

With ``s = 1.5 * 2**k`` and ``|x| <= 2**(k - 1)``, the bits of ``x + s``, as an integer, are those of ``s`` and x's share: x in units of
``2**(k - 52)``, rounded to an integer. What rounding left, ``x - ((x + s) - s)``, is a float64 number, and goes to the next level with
an ``s`` that is ``2**51`` times less. So the addition of floats only aligns them, and integers are added, in any order and without error:
the extraction of Rump, Ogita and Oishi (SIAM J. Sci. Comput. 31, 2008) and of Demmel and Nguyen (ARITH 2013). Two levels hold numbers of
which the greatest is at most ``2**102`` times the last place of any other. More levels take more passes over the block. What six
levels do not hold goes to Neal's large superaccumulator (arXiv:1505.05571): a bin for each exponent and sign.

Of columns, rows are read 32 at a time: their greatest number, then their shares at two levels. Each column has an int64 for each level,
which becomes digits where the level rises, and after at most 2048 rows. What two levels leave is added number by number.

The product of two float32 or shorter numbers is a float64 number. That of two float64 numbers is ``p + e`` with ``p = x * y`` and
``e = fma(x, y, -p)``, where neither over- nor underflows. Three levels hold products of which the least is not below the greatest by more
than 48 bits, and then leave nothing. More levels take more passes. Products that over- or underflow are made of fractions between 1 and 2,
and added to the digits one by one.

Comparisons of one number with another would be as many instructions as the sums. So differences are collected by OR, and tested once.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from hpcoll.kernels.digit_bodies import MASK, NAN, NEGATIVE, POSITIVE, SIGNED
from hpcoll.kernels.digit_form import LOWEST, NCOUNTS
from hpcoll.kernels.float_bits import bits_of, float_of
from hpcoll.kernels.sum_room import (
    AHEAD,
    BINS,
    BLOCK,
    BUSY,
    COLUMNS,
    COUNTS,
    LEVEL,
    MOST_ROWS,
    PART,
    RESTS,
    ROOM,
    ROWS,
    SKIP,
)

LEVEL_BITS = 51
MOST_LEVELS = 6
FRESH = -5000  # a level that no number has: nothing is known yet
LEAST_LEVEL, GREATEST_LEVEL = -970, 1022  # so that both sigmas of two levels are normal numbers
SKIPPED = 127  # blocks that go to bins at once, after one that had to
INFINITY = 0x7FF << 52  # bits
BIN_CAPACITY = 2047  # fractions of 52 bits in an int64
LEAST_PRODUCT_LEVEL = -700  # three levels are far above the least number
HELD_BITS = 48  # three levels hold products whose first bit is at most so many below their own
LEAST_PRODUCT, GREATEST_PRODUCT = 2.0**-960, 2.0**1020  # between them nothing under- or overflows


@intrinsic
def fma(typingctx, a, b, c):  # type: ignore[no-untyped-def]
    """Return ``a * b + c`` of float64 numbers, rounded once."""
    signature = types.float64(types.float64, types.float64, types.float64)
    return signature, lambda context, builder, signature, values: builder.fma(*values)


@intrinsic
def _prefetch(typingctx, address):  # type: ignore[no-untyped-def]
    """Have the processor read a line of memory ahead; any address will do."""

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [builder.inttoptr(values[0], byte), number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@njit(inline="always")
def fetch_ahead(x, n):  # type: ignore[no-untyped-def]
    """Have the processor read what comes `AHEAD` bytes after n elements: it would read less far ahead by itself."""
    address = np.int64(x.ctypes.data) + AHEAD
    for i in range(0, n * x.itemsize, 64):
        _prefetch(address + i)


@njit(inline="always")
def sigma(level):  # type: ignore[no-untyped-def]
    """Return ``1.5 * 2**level``."""
    return float_of(((level + 1023) << 52) | (1 << 51))


@njit(inline="always")
def put(words, value, place, first):  # type: ignore[no-untyped-def]
    """Add ``value * 2**place`` to a vector; bits below the first digit are zeros."""
    least = 32 * first + LOWEST
    if place < least:
        value, place = value >> min(least - place, 63), least
    i, shift = ((place - LOWEST) >> 5) - first, (place - LOWEST) & 31
    low, high = (value & MASK) << shift, (value >> 32) << shift
    words[i] += low & MASK
    words[i + 1] += (low >> 32) + (high & MASK)
    words[i + 2] += high >> 32


@njit
def put_float(value, exponent, words, first):  # type: ignore[no-untyped-def]
    """Add ``value * 2**exponent``, of a finite float64."""
    bits = bits_of(value)
    fraction, biased = bits & ((1 << 52) - 1), (bits >> 52) & 0x7FF
    mantissa = fraction | (1 << 52) if biased > 0 else fraction
    put(words, -mantissa if bits < 0 else mantissa, max(biased, 1) - 1075 + exponent, first)


@njit
def put_any(value, words, first, ndigits):  # type: ignore[no-untyped-def]
    """Add a float64 of any kind."""
    if np.isfinite(value):
        put_float(value, 0, words, first)
    else:
        words[ndigits + (NAN if value != value else POSITIVE if value > 0 else NEGATIVE)] += 1
    words[ndigits + SIGNED] += bits_of(value) != -1 << 63


@njit(inline="always")
def least_level(first):  # type: ignore[no-untyped-def]
    """Return the level below which the second of two levels would be below a vector's first digit."""
    return max(32 * first + LOWEST + 52 + LEVEL_BITS, LEAST_LEVEL)


@njit(inline="always")
def level_for(greatest, first):  # type: ignore[no-untyped-def]
    """Return a level for the bits of the greatest number of a block; one bit more, since the next block may have a greater one."""
    return max((greatest >> 52) - 1023 + 3, least_level(first))


@njit
def extract(values, n, level, words, first):  # type: ignore[no-untyped-def]
    """Add n float64 numbers level by level, leave what is left of them, and say whether anything is."""
    for _ in range(MOST_LEVELS):
        if level < max(LEAST_LEVEL, 32 * first + LOWEST + 52):
            break
        s = sigma(level)
        total, left = np.int64(0), np.int64(0)
        for i in range(n):
            value = values[i]
            t = value + s
            total += bits_of(t)
            rest = value - (t - s)
            left |= bits_of(rest)
            values[i] = rest
        put(words, total - n * bits_of(s), level - 52, first)
        if left << 1 == 0:
            return False
        level -= LEVEL_BITS
    return True


@njit
def empty_bin(room, counts, i, words, first, ndigits):  # type: ignore[no-untyped-def]
    """Add a bin to a vector, and clear it."""
    exponent, fractions, n = i & 0x7FF, room[BINS + i], np.int64(counts[i])
    room[BINS + i], counts[i] = 0, 0
    if n == 0:
        return
    if exponent == 0x7FF:
        words[ndigits + (NAN if fractions != 0 else NEGATIVE if i >> 11 else POSITIVE)] += 1
    else:
        place = max(exponent, 1) - 1075
        sign = -1 if i >> 11 else 1
        put(words, sign * fractions, place, first)
        if exponent > 0:
            put(words, sign * n, place + 52, first)
    if i != 0x800 or fractions != 0:
        words[ndigits + SIGNED] += 1


@njit
def empty_bins(room, words, first, ndigits):  # type: ignore[no-untyped-def]
    """Add all bins to a vector, where any is in use."""
    if room[BUSY]:
        counts = room[COUNTS:RESTS].view(np.int16)
        for i in range(4096):
            empty_bin(room, counts, i, words, first, ndigits)
        room[BUSY] = 0


@njit
def to_bins(values, n, room, words, first, ndigits):  # type: ignore[no-untyped-def]
    """Add n float64 numbers of any kind to bins."""
    counts = room[COUNTS:RESTS].view(np.int16)
    if not room[BUSY]:
        room[BINS:RESTS] = 0
        room[BUSY] = 1
    for i in range(n):
        bits = bits_of(values[i])
        k = (bits >> 52) & 0xFFF
        room[BINS + k] += bits & ((1 << 52) - 1)
        counts[k] += 1
        if counts[k] == BIN_CAPACITY:
            empty_bin(room, counts, k, words, first, ndigits)


@njit
def any_signed(values, n):  # type: ignore[no-untyped-def]
    """Say whether any of n numbers is other than -0.0."""
    found = False
    for i in range(n):
        found |= bits_of(values[i]) != -1 << 63
    return found


@njit
def add_any(values, n, room, words, first, ndigits):  # type: ignore[no-untyped-def]
    """Add a block of at most a block of float64 numbers of any kind, which are lost; note what is known for the next block."""
    if not words[ndigits + SIGNED]:
        words[ndigits + SIGNED] = any_signed(values, n)
    greatest = np.int64(0)
    for i in range(n):
        greatest = max(greatest, bits_of(values[i]) & ~(-1 << 63))
    level = level_for(greatest, first)
    room[LEVEL] = FRESH
    if level <= GREATEST_LEVEL:
        room[LEVEL] = level
        if not extract(values, n, level, words, first):
            return
    room[SKIP] = SKIPPED
    to_bins(values, n, room, words, first, ndigits)


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


def columns_kernel(load: Any) -> Callable[..., None]:
    """Return the kernel for an element type, of its function to float64."""
    add_tile = _tile_adder(load)

    def kernel(x, nrows, step, n, words, first, ndigits, room):  # type: ignore[no-untyped-def]
        """Add each column of rows that are ``step`` elements apart to its vector of digits."""
        width = ndigits + NCOUNTS
        elements, vectors, work = carray(x, nrows * step + n), carray(words, n * width), carray(room, ROOM)
        sums1, sums2 = work[RESTS : RESTS + COLUMNS], work[RESTS + COLUMNS : RESTS + 2 * COLUMNS]
        sums1[:], sums2[:] = 0, 0
        for column in range(0, n, COLUMNS):
            some = min(COLUMNS, n - column)
            for row in range(0, nrows, MOST_ROWS):
                tile = elements[row * step + column :]
                add_tile(
                    tile,
                    min(MOST_ROWS, nrows - row),
                    step,
                    some,
                    sums1,
                    sums2,
                    vectors[column * width :],
                    first,
                    ndigits,
                )
        for i in range(n):
            row = 0
            while not vectors[i * width + ndigits + SIGNED] and row < nrows:
                vectors[i * width + ndigits + SIGNED] = bits_of(load(elements[row * step + i])) != -1 << 63
                row += 1

    return kernel


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
        sum1, sum2, sum3, beyond, least = (
            sum1 + more1,
            sum2 + more2,
            sum3 + more3,
            beyond | also,
            min(least, size),
        )
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
def _add_product_block(x, y, room, words, first, ndigits):  # type: ignore[no-untyped-def]
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
        _add_product_block(x[lo : lo + BLOCK], y[lo : lo + BLOCK], room, words, first, ndigits)
    signed = words[ndigits + SIGNED]
    empty_bins(room, words, first, ndigits)
    words[ndigits + SIGNED] = signed  # errors of products that are zero are in bins, too


def _product_row_adder(load: Any, add_block: Any) -> Any:
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


def products_kernel(form: str, load: Any, add_block: Any) -> Callable[..., None]:
    """Return the kernel for an element type, of its function to float64 and of the one that adds a block of float64 numbers."""
    add_row = _add_row if form == "float64" else _product_row_adder(load, add_block)

    def kernel(x, y, nrows, n, words, first, ndigits, room):  # type: ignore[no-untyped-def]
        """Add the products of each row of x and y to its vector of digits."""
        width = ndigits + NCOUNTS
        xs, ys, vectors, work = (
            carray(x, nrows * n),
            carray(y, nrows * n),
            carray(words, nrows * width),
            carray(room, ROOM),
        )
        work[LEVEL], work[SKIP], work[BUSY] = FRESH, 0, 0
        for row in range(nrows):
            one, other = xs[row * n : (row + 1) * n], ys[row * n : (row + 1) * n]
            add_row(one, other, work, vectors[row * width : (row + 1) * width], first, ndigits)

    return kernel
