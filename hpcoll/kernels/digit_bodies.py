"""Compiled functions on digits (`hpcoll.kernels.digit_form` has the form). Imported only to be compiled.

All integers are int64: Numba makes a float64 of a sum of int64 and uint64. Signatures, with ``words`` of n vectors one after the other:

- ``add(bits *x, int64 *words, n, first, ndigits)``: add x[i] to vector i;
- ``normalise(int64 *words, n, ndigits)``;
- ``divide(int64 *words, n, ndigits, divisor)``;
- ``round(int64 *words, bits *out, n, first, ndigits, to_odd)``.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import carray, njit, types

from hpcoll.kernels.digit_form import DIGIT_BITS, FORMATS, LOWEST, NCOUNTS, Format
from hpcoll.kernels.object_code import object_file

MASK = (1 << DIGIT_BITS) - 1
POSITIVE, NEGATIVE, NAN, SIGNED = 0, 1, 2, 3  # places of counts after the digits

_BITS = {"float64": types.int64, "float32": types.uint32, "float16": types.uint16, "bfloat16": types.uint16}


def adder(form: Format) -> Callable[..., Any]:
    """Return the compiled function ``(bits, digits, first, ndigits)`` that adds one element, whose bits are int64, to a vector."""
    fraction, top = form.fraction_bits, (1 << form.exponent_bits) - 1
    hidden, sign, base = 1 << fraction, form.nbits - 1, form.lowest - LOWEST

    @njit(inline="always")
    def add(bits, words, first, ndigits):  # type: ignore[no-untyped-def]
        exponent = (bits >> fraction) & top
        mantissa = bits & (hidden - 1)
        negative = (bits >> sign) & 1
        if exponent == top:
            words[ndigits + (NAN if mantissa != 0 else NEGATIVE if negative else POSITIVE)] += 1
            words[ndigits + SIGNED] += 1
            return
        if exponent == 0:
            if mantissa == 0:
                words[ndigits + SIGNED] += 1 - negative
                return
            exponent = 1
        else:
            mantissa |= hidden
        place = base + exponent - 1
        i, shift = (place >> 5) - first, place & 31
        low = (mantissa & MASK) << shift
        high = (mantissa >> 32) << shift
        middle = (low >> 32) | (high & MASK)
        words[ndigits + SIGNED] += 1
        if negative:
            words[i] -= low & MASK
            words[i + 1] -= middle
            words[i + 2] -= high >> 32
        else:
            words[i] += low & MASK
            words[i + 1] += middle
            words[i + 2] += high >> 32

    return add


def _adds(form: Format) -> Callable[..., None]:
    add = adder(form)

    def kernel(x, words, n, first, ndigits):  # type: ignore[no-untyped-def]
        width = ndigits + NCOUNTS
        bits, vectors = carray(x, n), carray(words, n * width)
        for i in range(n):
            add(np.int64(bits[i]), vectors[i * width : (i + 1) * width], first, ndigits)

    return kernel


@njit(inline="always")
def carry(words, ndigits):  # type: ignore[no-untyped-def]
    """Bring a vector to normal form."""
    over = 0
    for i in range(ndigits - 1):
        value = words[i] + over
        words[i] = value & MASK
        over = value >> 32
    words[ndigits - 1] += over
    for i in range(ndigits, ndigits + NCOUNTS):
        words[i] = 1 if words[i] > 0 else 0
    if words[ndigits + NAN]:
        words[ndigits + POSITIVE], words[ndigits + NEGATIVE] = 0, 0


def _normalise(words, n, ndigits):  # type: ignore[no-untyped-def]
    width = ndigits + NCOUNTS
    vectors = carray(words, n * width)
    for i in range(n):
        carry(vectors[i * width : (i + 1) * width], ndigits)


def _divide(words, n, ndigits, divisor):  # type: ignore[no-untyped-def]
    width = ndigits + NCOUNTS
    vectors = carray(words, n * width)
    for i in range(n):
        digits = vectors[i * width : i * width + ndigits]
        top = digits[ndigits - 1]
        quotient = top // divisor
        digits[ndigits - 1] = quotient
        rest = top - quotient * divisor
        for k in range(ndigits - 2, -1, -1):
            value = (rest << 32) | digits[k]
            quotient = value // divisor
            digits[k] = quotient
            rest = value - quotient * divisor
        digits[0] |= 1 if rest != 0 else 0


@njit
def _magnitude(digits, i, ndigits, lowest, negative):  # type: ignore[no-untyped-def]
    """Return a digit of a number without its sign, 0 outside the vector; the last digit's carry is one more digit."""
    if i < 0 or i > ndigits:
        return 0
    digit = digits[min(i, ndigits - 1)]
    if i < ndigits - 1:
        if not negative:
            return digit
        return 0 if i < lowest else MASK + 1 - digit if i == lowest else MASK - digit
    if negative:
        digit = -digit if lowest == ndigits - 1 else -digit - 1
    return digit & MASK if i == ndigits - 1 else digit >> 32


@njit
def _bit_length(digit):  # type: ignore[no-untyped-def]
    length = 0
    for step in (16, 8, 4, 2, 1):
        if digit >> step:
            digit >>= step
            length += step
    return length + 1


def rounder(form: Format) -> Callable[..., Any]:
    """Return the compiled function ``(words, first, ndigits, to_odd)`` that gives the bits of a vector in normal form, rounded."""
    fraction, precision, least = form.fraction_bits, form.fraction_bits + 1, form.lowest - LOWEST
    infinity, sign = ((1 << form.exponent_bits) - 1) << form.fraction_bits, -1 << (form.nbits - 1)
    nan, beyond = infinity | 1 << (form.fraction_bits - 1), (1 << form.exponent_bits) - 2

    @njit
    def finite(digits, first, ndigits, lowest, to_odd):  # type: ignore[no-untyped-def]
        """Return the bits of a number other than 0."""
        negative = digits[ndigits - 1] < 0
        top = ndigits
        while _magnitude(digits, top, ndigits, lowest, negative) == 0:
            top -= 1
        highest = 32 * (first + top) + _bit_length(_magnitude(digits, top, ndigits, lowest, negative)) - 1
        last = max(highest - precision + 1, least)  # place of the last bit that is kept
        i, shift = (last >> 5) - first, last & 31
        value = _magnitude(digits, i, ndigits, lowest, negative) >> shift
        value |= _magnitude(digits, i + 1, ndigits, lowest, negative) << (32 - shift)
        if shift:
            value |= _magnitude(digits, i + 2, ndigits, lowest, negative) << (64 - shift)
        i, shift = ((last - 1) >> 5) - first, (last - 1) & 31
        next_digit = _magnitude(digits, i, ndigits, lowest, negative)
        half = (next_digit >> shift) & 1
        more = (next_digit & ((1 << shift) - 1)) != 0 or lowest < i
        bits = value + ((last - least) << fraction) if last - least < beyond else infinity
        if to_odd:
            bits = min(bits, infinity - 1) | (1 if half or more else 0)
        elif half and (more or value & 1):
            bits += 1
        return min(bits, infinity) | (sign if negative else 0)

    @njit
    def round_(words, first, ndigits, to_odd):  # type: ignore[no-untyped-def]
        positive, negative = words[ndigits + POSITIVE] > 0, words[ndigits + NEGATIVE] > 0
        if words[ndigits + NAN] > 0 or (positive and negative):
            return nan
        if positive or negative:
            return infinity if positive else infinity | sign
        lowest = 0
        while lowest < ndigits and words[lowest] == 0:
            lowest += 1
        if lowest == ndigits:
            return 0 if words[ndigits + SIGNED] > 0 else sign
        return finite(words, first, ndigits, lowest, to_odd)

    return round_


def _rounds(form: Format) -> Callable[..., None]:
    round_ = rounder(form)

    def kernel(words, out, n, first, ndigits, to_odd):  # type: ignore[no-untyped-def]
        width = ndigits + NCOUNTS
        vectors, result = carray(words, n * width), carray(out, n)
        for i in range(n):
            result[i] = round_(vectors[i * width : (i + 1) * width], first, ndigits, to_odd)

    return kernel


def kernel_file(name: str, form: str, symbol: str) -> bytes:
    """Return the object file of a function."""
    words, size = types.CPointer(types.int64), types.int64
    if name == "normalise":
        return object_file(_normalise, types.void(words, size, size), symbol)
    if name == "divide":
        return object_file(_divide, types.void(words, size, size, size), symbol)
    bits = types.CPointer(_BITS[form])
    if name == "add":
        return object_file(_adds(FORMATS[form]), types.void(bits, words, size, size, size), symbol)
    return object_file(_rounds(FORMATS[form]), types.void(words, bits, size, size, size, size), symbol)
