"""Bodies of the GPU kernels that add arrays to vectors of digits (`hpcoll.kernels.digits` has the form).

A thread adds its elements to four numbers, by TwoSum (Knuth; Dekker 1971), which loses nothing. What four numbers do not hold goes to
digits, by atomic additions of integers: little, unless exponents differ much (Collange, Defour, Graillat and Iakymchuk, Parallel
Computing 49, 2015). The numbers of all threads are the elements of the next launch, of fewer threads; those of the last go to digits.
All is exact, so that no order matters. Zeros of both signs keep what they mean: four numbers are -0.0 until another element comes.
"""

from typing import Any

import numpy as np
from numba import cuda, types

from hpcoll.kernels.digit_form import DIGIT_BITS, LOWEST
from hpcoll.kernels.expansions import double_bits, two_sum, vectors
from hpcoll.kernels.numbers import number

address, ahead, atomic_add, fused64 = vectors.address, vectors.ahead, vectors.atomic_add, vectors.fused64

NPARTIALS = 4  # numbers of a thread
MASK = (1 << DIGIT_BITS) - 1
POSITIVE, NEGATIVE, NAN, SIGNED = 0, 1, 2, 3  # places of counts after the digits
FRACTION, TOP = 52, 2047  # of a float64: bits of the fraction, exponent of infinities and NaN
HIDDEN = 1 << FRACTION
BASE = -1075 - LOWEST  # place of the last bit of a number whose exponent is 0, less 1
HALF = 27  # bits of the lower part of a mantissa
LARGE = 2.0**960  # a thread's numbers stay finite
LEAST_PRODUCT = 2.0**-900  # what is lost of it is a number

_F8, _I8 = types.float64, types.int64
_WORDS = types.CPointer(types.int64)
_ADDED = types.int64(_WORDS, _F8, _I8, _I8)


def _put(words, value, place, sign):  # type: ignore[no-untyped-def]
    """Add an integer of up to 62 bits, times ``2**place``; places count from the first digit, and bits below that are zeros."""
    i, shift = place >> 5, place & 31
    low, high = (value & MASK) << shift, (value >> DIGIT_BITS) << shift
    middle = (low >> DIGIT_BITS) | (high & MASK)
    if low & MASK:
        atomic_add(words, i, sign * (low & MASK))
    if middle:
        atomic_add(words, i + 1, sign * middle)
    if high >> DIGIT_BITS:
        atomic_add(words, i + 2, sign * (high >> DIGIT_BITS))
    return 0


put = vectors.calls(_put, types.int64(_WORDS, _I8, _I8, _I8))


def _count(words, bits, ndigits):  # type: ignore[no-untyped-def]
    """Count an infinity or a NaN, by its bits."""
    atomic_add(words, ndigits + SIGNED, 1)
    atomic_add(words, ndigits + (NAN if bits & (HIDDEN - 1) else NEGATIVE if bits < 0 else POSITIVE), 1)
    return 0


count = vectors.calls(_count, types.int64(_WORDS, _I8, _I8))


def _add(words, x, first, ndigits):  # type: ignore[no-untyped-def]
    """Add a float64 to a vector."""
    bits = double_bits(x)
    exponent, mantissa = (bits >> FRACTION) & TOP, bits & (HIDDEN - 1)
    if exponent == TOP:
        return count(words, bits, ndigits)
    if exponent | mantissa:
        mantissa, exponent = (mantissa | HIDDEN, exponent) if exponent else (mantissa, np.int64(1))
        put(words, mantissa, BASE + exponent - DIGIT_BITS * first, -1 if bits < 0 else 1)
    elif bits < 0:
        return 0
    atomic_add(words, ndigits + SIGNED, 1)
    return 0


add = vectors.calls(_add, _ADDED)


def _mantissa(bits):  # type: ignore[no-untyped-def]
    return (bits & (HIDDEN - 1)) | (HIDDEN if (bits >> FRACTION) & TOP else 0)


mantissa_of = vectors.calls(_mantissa, _I8(_I8))


def _exponent(bits):  # type: ignore[no-untyped-def]
    return max((bits >> FRACTION) & TOP, 1)


exponent_of = vectors.calls(_exponent, _I8(_I8))


def _add_product(words, x, y, first, ndigits):  # type: ignore[no-untyped-def]
    """Add the product of two float64, not 0, to a vector, by integers."""
    product = x * y
    a, b = double_bits(x), double_bits(y)
    if (a >> FRACTION) & TOP == TOP or (b >> FRACTION) & TOP == TOP:
        return count(words, double_bits(product), ndigits)
    place = 2 * BASE + LOWEST + exponent_of(a) + exponent_of(b) - DIGIT_BITS * first
    a_high, a_low = mantissa_of(a) >> HALF, mantissa_of(a) & ((1 << HALF) - 1)
    b_high, b_low = mantissa_of(b) >> HALF, mantissa_of(b) & ((1 << HALF) - 1)
    sign = -1 if a ^ b < 0 else 1
    put(words, a_low * b_low, place, sign)
    put(words, a_low * b_high + a_high * b_low, place + HALF, sign)
    put(words, a_high * b_high, place + 2 * HALF, sign)
    atomic_add(words, ndigits + SIGNED, 1)
    return 0


add_product = vectors.calls(_add_product, types.int64(_WORDS, _F8, _F8, _I8, _I8))


def _absorb(words, x, first, ndigits, c0, c1, c2, c3):  # type: ignore[no-untyped-def]
    """Return a thread's numbers with one more; what they do not hold goes to digits."""
    if not abs(x) < LARGE:
        add(words, x, first, ndigits)
        return c0, c1, c2, c3
    c0, rest = two_sum(c0, x)
    if rest != 0.0:
        c1, rest = two_sum(c1, rest)
        if rest != 0.0:
            c2, rest = two_sum(c2, rest)
            if rest != 0.0:
                c3, rest = two_sum(c3, rest)
                if rest != 0.0:
                    add(words, rest, first, ndigits)
    return c0, c1, c2, c3


absorb = vectors.calls(_absorb, types.UniTuple(_F8, NPARTIALS)(_WORDS, _F8, _I8, _I8, *[_F8] * NPARTIALS))


def _end(words, out, at, step, last, first, ndigits, c0, c1, c2, c3):  # type: ignore[no-untyped-def]
    """Hand on a thread's numbers: to the next launch, or to digits."""
    if last:
        add(words, c0, first, ndigits)
        add(words, c1, first, ndigits)
        add(words, c2, first, ndigits)
        add(words, c3, first, ndigits)
    else:
        out[at] = c0
        out[at + step] = c1
        out[at + 2 * step] = c2
        out[at + 3 * step] = c3
    return 0


end = vectors.calls(_end, types.int64(_WORDS, types.CPointer(_F8), *[_I8] * 5, *[_F8] * NPARTIALS))


def sums(dtype: np.dtype) -> tuple[Any, Any]:
    """``(words, out, src, nvectors, length, across, along, slices, last, first, ndigits)``: sums of ``src[v * across + k * along]`` over k.

    ``slices`` threads share a vector. Their numbers go to ``out``, 4 * slices by nvectors of them; with ``last`` to digits.
    """
    one = number(dtype)
    widen = vectors.calls(one.widen, types.float64(one.stored))

    def kernel(words, out, src, nvectors, length, across, along, slices, last, first, ndigits):  # type: ignore[no-untyped-def]
        thread = cuda.grid(1)
        while thread < nvectors * slices:
            if along == 1:  # neighbouring threads have neighbouring elements
                v, k = thread // slices, thread % slices
            else:
                v, k = thread % nvectors, thread // nvectors
            vector, at = ahead(words, v * (ndigits + 4)), k * NPARTIALS * nvectors + v
            c0 = c1 = c2 = c3 = -0.0
            while k < length:
                c0, c1, c2, c3 = absorb(vector, widen(src[v * across + k * along]), first, ndigits, c0, c1, c2, c3)
                k += slices
            end(vector, out, at, nvectors, last, first, ndigits, c0, c1, c2, c3)
            thread += cuda.gridsize(1)

    return kernel, types.void(_WORDS, types.CPointer(_F8), types.CPointer(one.stored), *[types.int64] * 8)


def products(dtype: np.dtype) -> tuple[Any, Any]:
    """``(words, out, x, y, length, x_step, y_step, slices, last, first, ndigits)``: one vector, of ``x[k * x_step] * y[k * y_step]``.

    Products of float32 and shorter types are float64 numbers. The others leave a rest, which FMA tells, or are added by integers.
    """
    one = number(dtype)
    widen, splits = vectors.calls(one.widen, types.float64(one.stored)), dtype.itemsize == 8

    def kernel(words, out, x, y, length, x_step, y_step, slices, last, first, ndigits):  # type: ignore[no-untyped-def]
        thread = cuda.grid(1)
        while thread < slices:
            c0 = c1 = c2 = c3 = -0.0
            k = thread
            while k < length:
                a, b = widen(x[k * x_step]), widen(y[k * y_step])
                product = a * b
                size = abs(product)
                if not splits or (size > LEAST_PRODUCT and size < LARGE) or a == 0.0 or b == 0.0:
                    c0, c1, c2, c3 = absorb(words, product, first, ndigits, c0, c1, c2, c3)
                    if splits and size > 0.0:
                        c0, c1, c2, c3 = absorb(words, fused64(a, b, -product), first, ndigits, c0, c1, c2, c3)
                else:
                    add_product(words, a, b, first, ndigits)
                k += slices
            end(words, out, thread * NPARTIALS, 1, last, first, ndigits, c0, c1, c2, c3)
            thread += cuda.gridsize(1)

    pointer = types.CPointer(one.stored)
    return kernel, types.void(_WORDS, types.CPointer(_F8), pointer, pointer, *[types.int64] * 7)
