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
from hpcoll.kernels.float_bits import bits_of, float32_of, float_of
from hpcoll.kernels.host_bodies import fold_two
from hpcoll.kernels.object_code import object_file

BLOCK = 512  # elements summed at a time: three partial results and a source stay in the first-level cache
_FIRST, _NDIGITS, _NWORDS = WINDOWS["float64"].first, WINDOWS["float64"].ndigits, WINDOWS["float64"].nwords
_CUT = 1 << 29  # in the bits of a float64, the last one of a float32

_add_digits = adder(FORMATS["float64"])


@intrinsic
def _room(typingctx, number):  # type: ignore[no-untyped-def]
    """Return stack memory for a block of numbers of a type."""

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        return cgutils.alloca_once(builder, context.get_data_type(number), BLOCK)

    return types.CPointer(number)(number), codegen


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


def _settler(unit: Any, nan: Any) -> Any:
    """Return the compiled function of `_more`'s three that gives the rounded sum; a NaN where it is not certain."""

    @njit
    def settle(s, c, d):  # type: ignore[no-untyped-def]
        r, w = _two_sum(s, -c)
        e = d if d == 0 else d + d + abs(w) * unit
        low, high = r - (w + e), r - (w - e)
        return low if low == high else nan

    return settle


_settle64 = _settler(2.0**-50, np.nan)
_settle32 = _settler(np.float32(2.0**-21), np.float32(np.nan))


@njit
def _settle_odd(s, c, d):  # type: ignore[no-untyped-def]
    """Return the sum of half types, rounded to odd: cut off to float32, whose last bit is set where anything was cut off.

    Below the normal numbers of float32 such sums are exact, since bfloat16 has no bits that float32 has not.
    """
    r, w = _two_sum(s, -c)
    cut = w != 0
    bits = bits_of(r) - (cut and (w > 0) == (r > 0)) | cut  # cut off to float64
    odd = np.float32(float_of(bits & -_CUT | np.int64(bits & _CUT - 1 != 0) * _CUT))
    return odd if d == 0 else np.float32(np.nan)


@njit
def _same(x):  # type: ignore[no-untyped-def]
    return x


@njit
def _wide(x):  # type: ignore[no-untyped-def]
    return np.float64(x)


@njit
def _add_more(widen, settle, slow, zero, dst, srcs, nsrcs, count):  # type: ignore[no-untyped-def]
    """Sum sources."""
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
def _infinite(srcs, nsrcs, at):  # type: ignore[no-untyped-def]
    """Return the sum of the infinities and NaN among an element of each source; 0 where there are none."""
    total = 0.0
    for k in range(nsrcs):
        x = np.float64(srcs[k][at])
        if x - x != 0:
            total += x
    return total if total == total else np.nan


def _slow(form: str, as_float: Any, as_bits: Any, to_odd: bool) -> Any:
    """Return the compiled function that gives the sum of one element of each source, by digits, rounded to a format."""
    round_ = rounder(FORMATS[form])

    @njit
    def slow(srcs, nsrcs, at):  # type: ignore[no-untyped-def]
        infinite = as_float(_infinite(srcs, nsrcs, at))
        if infinite != 0:
            return infinite
        words = carray(_room(np.int64(0)), _NWORDS)
        for i in range(_NWORDS):
            words[i] = 0
        for k in range(nsrcs):
            _add_digits(bits_of(np.float64(srcs[k][at])), words, _FIRST, _NDIGITS)
        carry(words, _NDIGITS)
        return as_bits(round_(words, _FIRST, _NDIGITS, to_odd))

    return slow


@njit
def _float32_of(bits):  # type: ignore[no-untyped-def]
    return float32_of(np.uint32(bits))


def _sums(widen: Any, settle: Any, slow: Any, zero: Any, *, nparts: int = 1) -> Callable[..., None]:
    """Return the kernel that sums elements of so many parts; ``zero`` has the type that is computed with."""
    nan = type(zero)(np.nan)

    @njit
    def plus(a, b):  # type: ignore[no-untyped-def]
        """Add two numbers, which is one rounding."""
        s = a + b
        return s if s == s else nan

    def kernel(dst, srcs, nsrcs, count):  # type: ignore[no-untyped-def]
        if nsrcs == 2:
            fold_two(plus, dst, srcs, nparts * count)
        else:
            _add_more(widen, settle, slow, zero, dst, srcs, nsrcs, nparts * count)

    return kernel


def _odd(dst, srcs, nsrcs, count):  # type: ignore[no-untyped-def]
    _add_more(_wide, _settle_odd, _slow_odd, 0.0, dst, srcs, nsrcs, count)


_slow_odd = _slow("float32", np.float32, _float32_of, True)
_OF_64 = _same, _settle64, _slow("float64", np.float64, float_of, False), 0.0
_OF_32 = _same, _settle32, _slow("float32", np.float32, _float32_of, False), np.float32(0)
_KERNELS: dict[str, tuple[Callable[..., None], Any]] = {
    "exact_sum_float64": (_sums(*_OF_64), types.float64),
    "exact_sum_complex128": (_sums(*_OF_64, nparts=2), types.float64),
    "exact_sum_float32": (_sums(*_OF_32), types.float32),
    "exact_sum_complex64": (_sums(*_OF_32, nparts=2), types.float32),
    "exact_sum_odd_float32": (_odd, types.float32),
}


def kernel_file(name: str, symbol: str) -> bytes:
    """Return the object file of a kernel, whose name has the element type; the two parts of a complex number are summed apart."""
    function, element = _KERNELS[name]
    pointer = types.CPointer(element)
    return object_file(
        function, types.void(pointer, types.CPointer(pointer), types.int64, types.int64), symbol
    )
