"""Bodies of the host kernels of exact sums, which Numba compiles: each element is the correctly rounded sum of all sources.

**Fast way**, vectorised: TwoSum (Knuth; Dekker 1971) gives ``s = RN(a + b)`` and its excess ``g = s - (a + b)``, a float, without error.
A cascade of them (Ogita, Rump and Oishi 2005) leaves ``s - (g1 + ... + gk)``; another over the excesses leaves ``s - c + (h1 + ... + hm)``
with ``|h1| + ... + |hm| <= d``; a last one ``r - w + h`` with ``|h| <= d``. All are equal to the sum while nothing overflows.
Rounding is monotonic. So where ``RN(r - (w + e))`` and ``RN(r - (w - e))`` are one number for an ``e`` that covers ``d`` and the rounding
of ``w + e``, it is the result (the test of Ziv 1991). With ``d = 0``, as nearly always, ``e = 0``, and it is ``r``.
``e = 2 d + 8 u |w|`` covers both: ``RN(w + e) >= w + e - u |w + e| >= w + d``, and the sum of ``|h|`` has a relative error below ``k u``.
An overflow makes a NaN of the excess, then of ``w``, and the test fails. With excesses in place of errors, ``s - c`` is -0.0 just where
all sources are: -0.0 - 0.0.

**Slow way**, for elements that fail: the digits of `hpcoll.kernels.digits`, right for all inputs. Any NaN is the one NaN of NumPy.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from hpcoll.kernels.digit_bodies import adder, carry, rounder
from hpcoll.kernels.digit_form import FORMATS, WINDOWS
from hpcoll.kernels.object_code import object_file

BLOCK = 512  # elements summed at a time: three partial results and a source stay in the first-level cache
_FIRST, _NDIGITS, _NWORDS = WINDOWS["float64"].first, WINDOWS["float64"].ndigits, WINDOWS["float64"].nwords
_CUT = 1 << 29  # in the bits of a float64, the last one of a float32

_add_digits = adder(FORMATS["float64"])
_round64, _round32 = rounder(FORMATS["float64"]), rounder(FORMATS["float32"])


@intrinsic
def _room(typingctx, number):  # type: ignore[no-untyped-def]
    """Return stack memory for a block of numbers of a type."""

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        return cgutils.alloca_once(builder, context.get_data_type(number), BLOCK)

    return types.CPointer(number)(number), codegen


@intrinsic
def _bits(typingctx, number):  # type: ignore[no-untyped-def]
    """Return the bits of a float64."""

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        return builder.bitcast(values[0], context.get_value_type(types.int64))

    return types.int64(types.float64), codegen


@intrinsic
def _of_bits(typingctx, bits):  # type: ignore[no-untyped-def]
    """Return the float64 of an int64, or the float32 of an int32."""
    number = types.float64 if bits.bitwidth == 64 else types.float32

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        return builder.bitcast(values[0], context.get_value_type(number))

    return number(bits), codegen


@njit
def _two_sum(a, b):  # type: ignore[no-untyped-def]
    """Return RN(a + b), and by how much it exceeds the sum."""
    s = a + b
    back = s - a
    return s, ((s - back) - a) + (back - b)


@njit
def _three(a, b, x):  # type: ignore[no-untyped-def]
    """Return ``s``, ``c`` and ``d`` of three sources."""
    s, c = _two_sum(a, b)
    s, g = _two_sum(s, x)
    c, h = _two_sum(c, g)
    return s, c, abs(h)


@njit
def _more(s, c, d, x):  # type: ignore[no-untyped-def]
    """Return ``s``, ``c`` and ``d`` with one more source."""
    s, g = _two_sum(s, x)
    c, h = _two_sum(c, g)
    return s, c, d + abs(h)


@njit
def _two(a, b):  # type: ignore[no-untyped-def]
    """Return ``s``, ``c`` and ``d`` of two sources."""
    s, c = _two_sum(a, b)
    return s, c, c - c


@njit
def _tested(s, c, d, unit, nan):  # type: ignore[no-untyped-def]
    """Return the rounded sum; a NaN where it is not certain."""
    r, w = _two_sum(s, -c)
    e = d if d == 0 else d + d + abs(w) * unit
    low, high = r - (w + e), r - (w - e)
    return low if low == high else nan


@njit
def _settle64(s, c, d):  # type: ignore[no-untyped-def]
    return _tested(s, c, d, 2.0**-50, np.nan)


@njit
def _settle32(s, c, d):  # type: ignore[no-untyped-def]
    return _tested(s, c, d, np.float32(2.0**-21), np.float32(np.nan))


@njit
def _settle_odd(s, c, d):  # type: ignore[no-untyped-def]
    """Return the sum of half types, rounded to odd: cut off to float32, whose last bit is set where anything was cut off.

    Below the normal numbers of float32 such sums are exact, since bfloat16 has no bits that float32 has not.
    """
    r, w = _two_sum(s, -c)
    cut = w != 0
    bits = _bits(r) - (cut and (w > 0) == (r > 0)) | cut  # cut off to float64
    odd = np.float32(_of_bits(bits & -_CUT | np.int64(bits & _CUT - 1 != 0) * _CUT))
    return odd if d == 0 else np.float32(np.nan)


@njit
def _same(x):  # type: ignore[no-untyped-def]
    return x


@njit
def _wide(x):  # type: ignore[no-untyped-def]
    return np.float64(x)


@njit
def _add_two(nan, dst, srcs, count):  # type: ignore[no-untyped-def]
    """Add two sources, which is one rounding; three loops, as in `hpcoll.kernels.host_bodies`."""
    out, first, second = carray(dst, count), carray(srcs[0], count), carray(srcs[1], count)
    if out.ctypes.data == first.ctypes.data:
        for i in range(count):
            s = first[i] + second[i]
            first[i] = s if s == s else nan
    elif out.ctypes.data == second.ctypes.data:
        for i in range(count):
            s = first[i] + second[i]
            second[i] = s if s == s else nan
    else:
        for i in range(count):
            s = first[i] + second[i]
            out[i] = s if s == s else nan


@njit
def _add_more(widen, settle, slow, zero, dst, srcs, nsrcs, count):  # type: ignore[no-untyped-def]
    """Sum sources; ``zero`` has the type that is computed with."""
    total = carray(_room(srcs[0][0]), BLOCK)
    s, c, d = carray(_room(zero), BLOCK), carray(_room(zero), BLOCK), carray(_room(zero), BLOCK)
    for lo in range(0, count, BLOCK):
        n = min(BLOCK, count - lo)
        a, b = carray(srcs[0], count)[lo : lo + n], carray(srcs[1], count)[lo : lo + n]
        if nsrcs == 2:
            for i in range(n):
                total[i] = settle(*_two(widen(a[i]), widen(b[i])))
        elif nsrcs == 3:
            x = carray(srcs[2], count)[lo : lo + n]
            for i in range(n):
                total[i] = settle(*_three(widen(a[i]), widen(b[i]), widen(x[i])))
        else:
            x, y = carray(srcs[2], count)[lo : lo + n], carray(srcs[3], count)[lo : lo + n]
            if nsrcs == 4:
                for i in range(n):
                    p, q, o = _three(widen(a[i]), widen(b[i]), widen(x[i]))
                    total[i] = settle(*_more(p, q, o, widen(y[i])))
            else:
                for i in range(n):
                    p, q, o = _three(widen(a[i]), widen(b[i]), widen(x[i]))
                    s[i], c[i], d[i] = _more(p, q, o, widen(y[i]))
                for k in range(4, nsrcs):
                    x = carray(srcs[k], count)[lo : lo + n]
                    for i in range(n):
                        s[i], c[i], d[i] = _more(s[i], c[i], d[i], widen(x[i]))
                for i in range(n):
                    total[i] = settle(s[i], c[i], d[i])
        uncertain = 0
        for i in range(n):
            uncertain += total[i] != total[i]
        if uncertain:
            for i in range(n):
                if total[i] != total[i]:
                    total[i] = slow(srcs, nsrcs, lo + i)
        out = carray(dst, count)[lo : lo + n]
        for i in range(n):
            out[i] = total[i]


@njit
def _slow(round_, to_odd, srcs, nsrcs, at):  # type: ignore[no-untyped-def]
    """Return the bits of the rounded sum of one element of each source, which are finite."""
    words = carray(_room(np.int64(0)), _NWORDS)
    for i in range(_NWORDS):
        words[i] = 0
    for k in range(nsrcs):
        _add_digits(_bits(np.float64(srcs[k][at])), words, _FIRST, _NDIGITS)
    carry(words, _NDIGITS)
    return round_(words, _FIRST, _NDIGITS, to_odd)


@njit
def _infinite(srcs, nsrcs, at):  # type: ignore[no-untyped-def]
    """Return the sum of the infinities and NaN among an element of each source; 0 where there are none."""
    total = 0.0
    for k in range(nsrcs):
        x = np.float64(srcs[k][at])
        if x - x != 0:
            total += x
    return total if total == total else np.nan


@njit
def _slow64(srcs, nsrcs, at):  # type: ignore[no-untyped-def]
    infinite = _infinite(srcs, nsrcs, at)
    return infinite if infinite != 0 else _of_bits(_slow(_round64, False, srcs, nsrcs, at))


@njit
def _slow32(srcs, nsrcs, at):  # type: ignore[no-untyped-def]
    infinite = np.float32(_infinite(srcs, nsrcs, at))
    return infinite if infinite != 0 else _of_bits(np.int32(_slow(_round32, False, srcs, nsrcs, at)))


@njit
def _slow_odd(srcs, nsrcs, at):  # type: ignore[no-untyped-def]
    infinite = np.float32(_infinite(srcs, nsrcs, at))
    return infinite if infinite != 0 else _of_bits(np.int32(_slow(_round32, True, srcs, nsrcs, at)))


def _float64(dst, srcs, nsrcs, count):  # type: ignore[no-untyped-def]
    if nsrcs == 2:
        _add_two(np.nan, dst, srcs, count)
    else:
        _add_more(_same, _settle64, _slow64, 0.0, dst, srcs, nsrcs, count)


def _float32(dst, srcs, nsrcs, count):  # type: ignore[no-untyped-def]
    if nsrcs == 2:
        _add_two(np.float32(np.nan), dst, srcs, count)
    else:
        _add_more(_same, _settle32, _slow32, np.float32(0), dst, srcs, nsrcs, count)


def _odd(dst, srcs, nsrcs, count):  # type: ignore[no-untyped-def]
    _add_more(_wide, _settle_odd, _slow_odd, 0.0, dst, srcs, nsrcs, count)


_once64, _once32 = njit(_float64), njit(_float32)


def _complex128(dst, srcs, nsrcs, count):  # type: ignore[no-untyped-def]
    _once64(dst, srcs, nsrcs, 2 * count)


def _complex64(dst, srcs, nsrcs, count):  # type: ignore[no-untyped-def]
    _once32(dst, srcs, nsrcs, 2 * count)


_KERNELS: dict[str, tuple[Callable[..., None], Any]] = {
    "exact_sum_float64": (_float64, types.float64),
    "exact_sum_complex128": (_complex128, types.float64),
    "exact_sum_float32": (_float32, types.float32),
    "exact_sum_complex64": (_complex64, types.float32),
    "exact_sum_odd_float32": (_odd, types.float32),
}


def kernel_file(name: str, symbol: str) -> bytes:
    """Return the object file of a kernel, whose name has the element type; the two parts of a complex number are summed apart."""
    function, element = _KERNELS[name]
    pointer = types.CPointer(element)
    return object_file(
        function, types.void(pointer, types.CPointer(pointer), types.int64, types.int64), symbol
    )
