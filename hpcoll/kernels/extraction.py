"""Error-free sums of a block of float64 numbers: integers that the vector units add. Imported only to be compiled.

With ``s = 1.5 * 2**k`` and ``|x| <= 2**(k - 1)``, the bits of ``x + s``, as an integer, are those of ``s`` and x's share: x in units of
``2**(k - 52)``, rounded to an integer. What rounding left, ``x - ((x + s) - s)``, is a float64 number, and goes to the next level with
an ``s`` that is ``2**51`` times less. So the addition of floats only aligns them, and integers are added, in any order and without error:
the extraction of Rump, Ogita and Oishi (SIAM J. Sci. Comput. 31, 2008) and of Demmel and Nguyen (ARITH 2013). Two levels hold numbers of
which the greatest is at most ``2**102`` times the last place of any other. More levels take more passes over the block. What six
levels do not hold goes to Neal's large superaccumulator (arXiv:1505.05571): a bin for each exponent and sign.

Comparisons of one number with another would be as many instructions as the sums. So differences are collected by OR, and tested once.
"""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from hpcoll.kernels.digit_bodies import MASK, NAN, NEGATIVE, POSITIVE, SIGNED
from hpcoll.kernels.digit_form import LOWEST
from hpcoll.kernels.sum_room import AHEAD, BINS, BUSY, COUNTS, LEVEL, RESTS, SKIP

LEVEL_BITS = 51
MOST_LEVELS = 6
FRESH = -5000  # a level that no number has: nothing is known yet
LEAST_LEVEL, GREATEST_LEVEL = -970, 1022  # so that both sigmas of two levels are normal numbers
SKIPPED = 127  # blocks that go to bins at once, after one that had to
INFINITY = 0x7FF << 52  # bits
BIN_CAPACITY = 2047  # fractions of 52 bits in an int64


@intrinsic
def bits_of(typingctx, value):  # type: ignore[no-untyped-def]
    """Return the bits of a float64 as an int64."""
    return types.int64(types.float64), lambda context, builder, signature, values: builder.bitcast(values[0], ir.IntType(64))


@intrinsic
def float_of(typingctx, bits):  # type: ignore[no-untyped-def]
    """Return the float64 of an int64's bits."""
    return types.float64(types.int64), lambda context, builder, signature, values: builder.bitcast(values[0], ir.DoubleType())


@intrinsic
def float32_of(typingctx, bits):  # type: ignore[no-untyped-def]
    """Return the float32 of a uint32's bits."""
    return types.float32(types.uint32), lambda context, builder, signature, values: builder.bitcast(values[0], ir.FloatType())


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
