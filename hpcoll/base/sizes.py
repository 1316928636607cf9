"""Symbolic sizes: integers that are formulas of a call's counts, so that a program is written once for all counts.

Arithmetic on a `Size` gives another one. Wherever code decides by a `Size` (compares it, counts to it, uses it as an index), the decision
is noted as a condition; what was made of sizes holds for all counts for which every decision comes out the same. This is how a tracing
compiler specialises, with its guards. `Sizes.code` is what compiled code evaluates (`hpcoll.runtime.engine.compiled.resize`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn, TypeAlias

import numpy as np

# Kinds of records in `Sizes.code`: [kind, argument, number of terms, then a coefficient and a variable for each]. The sum of the terms is
# FLOOR, CLAMP: the next variable, divided by the argument and rounded down, or if it is negative, else 0; SAME, OTHER, NOT_NEGATIVE: to be
# 0, not 0, at least 0; ROOM: to be at most the word so many bytes behind the start of the engine's array; STORE: for the word there.
FLOOR, CLAMP, SAME, OTHER, NOT_NEGATIVE, ROOM, STORE = range(7)

Terms: TypeAlias = tuple[tuple[int, int], ...]  # (variable, coefficient), by variable; variable 0 is the constant 1
Number: TypeAlias = "int | Size"


class Sizes:
    """The variables of one program: the counts that a call brings, and what follows from them.

    Args:
        counts: Of the call at hand: decisions come out as for these.

    Attributes:
        values: Of all variables: 1, the counts, then those that were defined.
        given: The counts as sizes.
    """

    def __init__(self, counts: Iterable[int]) -> None:
        self.values = [1, *counts]
        self.given = [Size(self, value, ((i + 1, 1),)) for i, value in enumerate(self.values[1:])]
        self._records: list[tuple[int, int, Terms]] = []  # definitions and conditions, in order
        self._known: dict[tuple[int, int, Terms], Any] = {}

    def define(self, kind: int, argument: int, terms: Terms) -> Number:
        """A new variable, unless there is an equal one."""
        key = kind, argument, terms
        if key not in self._known:
            total = self.total(terms)
            self._records.append(key)
            self.values.append(total // argument if kind == FLOOR else min(total, 0))
            self._known[key] = Size(self, self.values[-1], ((len(self.values) - 1, 1),))
        found: Size = self._known[key]
        return found

    def condition(self, kind: int, terms: Terms) -> None:
        """Note what was decided."""
        key = kind, 0, terms
        if key not in self._known:
            self._known[key] = None
            self._records.append(key)

    def total(self, terms: Terms) -> int:
        """The sum of terms, at the values at hand."""
        return sum(coefficient * self.values[variable] for variable, coefficient in terms)

    def code(self, rooms: Iterable[tuple[Number, int]], stores: Iterable[tuple[Size, int]]) -> np.ndarray:
        """The records.

        Args:
            rooms: Sizes that must not exceed an int64, and where that is: in bytes from the engine's array on.
            stores: Sizes, and where the int64 is that is set to each.
        """
        last = [(ROOM, at, size.terms) for size, at in rooms if isinstance(size, Size)]
        last += [(STORE, at, size.terms) for size, at in stores]
        found: list[int] = []
        for kind, argument, terms in (*self._records, *last):
            found += (kind, argument, len(terms))
            for variable, coefficient in terms:
                found += (coefficient, variable)
        return np.array(found, np.int64)


class Size:
    """A sum of variables times constants, which behaves as the integer that it is for the counts at hand."""

    __slots__ = ("sizes", "terms", "value")

    def __init__(self, sizes: Sizes, value: int, terms: Terms) -> None:
        self.sizes, self.value, self.terms = sizes, value, terms

    def _plus(self, other: Number, factor: int) -> Number:
        terms = dict(self.terms)
        for variable, coefficient in other.terms if isinstance(other, Size) else ((0, other),):
            terms[variable] = terms.get(variable, 0) + factor * coefficient
        return self._made({variable: coefficient for variable, coefficient in terms.items() if coefficient})

    def _made(self, terms: dict[int, int]) -> Number:
        if not terms.keys() - {0}:
            return terms.get(0, 0)
        found = tuple(sorted(terms.items()))
        return Size(self.sizes, self.sizes.total(found), found)

    def __add__(self, other: Number) -> Number:
        return self._plus(other, 1)

    __radd__ = __add__

    def __sub__(self, other: Number) -> Number:
        return self._plus(other, -1)

    def __neg__(self) -> Number:
        return self * -1

    def __rsub__(self, other: Number) -> Number:
        return -self + other

    def __mul__(self, factor: Number) -> Number:
        factor = int(factor)
        return self._made({variable: factor * coefficient for variable, coefficient in self.terms if factor})

    __rmul__ = __mul__

    def __floordiv__(self, divisor: Number) -> Number:
        divisor = int(divisor)
        if all(coefficient % divisor == 0 for _, coefficient in self.terms):
            return self._made({variable: coefficient // divisor for variable, coefficient in self.terms})
        return self.sizes.define(FLOOR, divisor, self.terms)

    def __mod__(self, divisor: Number) -> Number:
        return self - (self // divisor) * divisor

    def __divmod__(self, divisor: Number) -> tuple[Number, Number]:
        return self // divisor, self % divisor

    # --- decisions

    def _decide(self, other: object, kind: int, opposite: int, holds: bool) -> bool:
        difference = self - other  # type: ignore[operator]
        if isinstance(difference, Size):
            self.sizes.condition(kind if holds else opposite, difference.terms)
        return holds

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (int, Size)):
            return NotImplemented
        return self._decide(other, SAME, OTHER, self.value == int_value(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: Number) -> bool:
        """Not noted as ``other - self > 0`` but as what is at least 0."""
        holds = self.value < int_value(other)
        self._order(other - self - 1 if holds else self - other)
        return holds

    def __le__(self, other: Number) -> bool:
        holds = self.value <= int_value(other)
        self._order(other - self if holds else self - other - 1)
        return holds

    def __gt__(self, other: Number) -> bool:
        return not self <= other

    def __ge__(self, other: Number) -> bool:
        return not self < other

    def _order(self, difference: Number) -> None:
        if isinstance(difference, Size):
            self.sizes.condition(NOT_NEGATIVE, difference.terms)

    def __bool__(self) -> bool:
        return self != 0

    def __index__(self) -> int:
        """The number itself: whatever is made of it holds for this one only."""
        self.sizes.condition(SAME, (self - self.value).terms)  # type: ignore[union-attr]
        return self.value

    __int__ = __index__

    def __hash__(self) -> NoReturn:
        raise TypeError("a Size is no key: equal numbers may differ for other counts")

    def __repr__(self) -> str:
        return f"Size({self.value})"

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)


def int_value(number: Number) -> int:
    """The number for the counts at hand, without deciding anything."""
    return number.value if isinstance(number, Size) else number


def least(one: Number, other: Number) -> Number:
    """``min``, without deciding which."""
    if isinstance(one, Size) or isinstance(other, Size):
        difference = one - other
        return other + difference.sizes.define(CLAMP, 0, difference.terms) if isinstance(difference, Size) else min(difference, 0) + other
    return min(one, other)


def largest(one: Number, other: Number) -> Number:
    """``max``, without deciding which."""
    return one + other - least(one, other)
