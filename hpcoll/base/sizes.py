"""Symbolic sizes: integers that are formulas of a call's counts, so that one program serves all counts.

Arithmetic on a `Size` gives another one. Where code decides by a `Size` (compares it, counts to it, indexes with it), `Sizes` records the
decision as a condition. A program holds for all counts for which every decision comes out the same. Tracing compilers specialise in this
way, with guards. Compiled code evaluates `Sizes.code` (`hpcoll.runtime.engine.compiled.interpreter.resize`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn, TypeAlias

import numpy as np

# Kinds of records in `Sizes.code`, each [kind, argument, number of terms, then a coefficient and a variable for each term]. The sum of
# the terms, by kind: FLOOR: divided by the argument and rounded down, it is the next variable. CLAMP: the next variable is the sum if
# negative, else 0. SAME, OTHER, NOT_NEGATIVE: the sum must be 0, not 0, at least 0. ROOM: it must not exceed the int64 at byte
# `argument` of the engine's array. STORE: it is stored there.
FLOOR, CLAMP, SAME, OTHER, NOT_NEGATIVE, ROOM, STORE = range(7)

# (variable, coefficient), by variable; variable 0 is the constant 1
Terms: TypeAlias = tuple[tuple[int, int], ...]
Number: TypeAlias = "int | Size"


class Sizes:
    """The variables of one program: the counts of the call at hand, for which decisions are made, and the sizes defined from them.

    Attributes:
        values: Values of all variables: 1, the counts, then the defined ones.
        given: The counts as `Size` objects.
    """

    def __init__(self, counts: Iterable[int]) -> None:
        self.values = [1, *counts]
        self.given = [Size(self, value, ((i + 1, 1),)) for i, value in enumerate(self.values[1:])]
        self._records: list[tuple[int, int, Terms]] = []  # definitions and conditions, in order
        self._known: dict[tuple[int, int, Terms], Any] = {}

    def define(self, kind: int, argument: int, terms: Terms) -> Number:
        """Return the variable of this definition, a new one where there is none yet."""
        key = kind, argument, terms
        if key not in self._known:
            total = self.total(terms)
            self._records.append(key)
            self.values.append(total // argument if kind == FLOOR else min(total, 0))
            self._known[key] = Size(self, self.values[-1], ((len(self.values) - 1, 1),))
        size: Size = self._known[key]
        return size

    def condition(self, kind: int, terms: Terms) -> None:
        """Record a decision."""
        key = kind, 0, terms
        if key not in self._known:
            self._known[key] = None
            self._records.append(key)

    def total(self, terms: Terms) -> int:
        """Return the sum of terms at the current values."""
        return sum(coefficient * self.values[variable] for variable, coefficient in terms)

    def code(self, rooms: Iterable[tuple[Number, int]], stores: Iterable[tuple[Any, Any]]) -> list[int]:
        """Return the records, one behind the other.

        ``rooms`` has sizes that must not exceed an int64, each with that int64's byte in the engine's array; ``stores`` sizes that are
        stored, alike; of `Multiples` there is a byte for each.
        """
        last = [(ROOM, at, size.terms) for size, at in rooms if isinstance(size, Size)]
        words: list[int] = []
        for kind, argument, terms in (*self._records, *last):
            words += _record(kind, argument, terms)
        for size, at in stores:
            words += size.stores(at) if isinstance(size, Multiples) else _record(STORE, at, size.terms)
        return words


def _record(kind: int, argument: int, terms: Terms) -> list[int]:
    words = [kind, argument, len(terms)]
    for variable, coefficient in terms:
        words += (coefficient, variable)
    return words


class Size:
    """A sum of variables times constants that behaves as its integer value for the current counts."""

    __slots__ = ("sizes", "terms", "value")

    def __init__(self, sizes: Sizes, value: int, terms: Terms) -> None:
        self.sizes, self.value, self.terms = sizes, value, terms

    def _plus(self, other: Number, factor: int) -> Number:
        if isinstance(other, Size):
            theirs, value = other.terms, self.value + factor * other.value
            if len(theirs) == len(self.terms) == 1 and theirs[0][0] == self.terms[0][0]:  # mostly
                coefficient = self.terms[0][1] + factor * theirs[0][1]
                return Size(self.sizes, value, ((theirs[0][0], coefficient),)) if coefficient else 0
        else:
            if not other:
                return self
            theirs, value = ((0, other),), self.value + factor * other
        terms = dict(self.terms)
        for variable, coefficient in theirs:
            terms[variable] = terms.get(variable, 0) + factor * coefficient
        left = tuple(sorted(term for term in terms.items() if term[1]))
        return Size(self.sizes, value, left) if left and left != ((0, value),) else value

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
        if not factor:
            return 0
        return Size(self.sizes, self.value * factor, tuple([(var, factor * of) for var, of in self.terms]))

    __rmul__ = __mul__

    def __floordiv__(self, divisor: Number) -> Number:
        divisor = int(divisor)
        if all(coefficient % divisor == 0 for _, coefficient in self.terms):
            terms = tuple([(variable, coefficient // divisor) for variable, coefficient in self.terms])
            return Size(self.sizes, self.value // divisor, terms)
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
        if isinstance(other, Size) and self.terms == other.terms:
            return True
        return self._decide(other, SAME, OTHER, self.value == int_value(other))

    def __lt__(self, other: Number) -> bool:
        """Record, either way, a difference that is at least 0."""
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
        """Return the value; a program that uses it holds for this value only."""
        self.sizes.condition(SAME, (self - self.value).terms)  # type: ignore[union-attr]
        return self.value

    __int__ = __index__

    def __hash__(self) -> NoReturn:
        raise TypeError("a Size is no key: equal numbers may differ for other counts")

    def __repr__(self) -> str:
        return f"Size({self.value})"

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)


class Multiples:
    """Many numbers, such as the places of many alike things: ``first + step * factor`` for each factor of an array."""

    __slots__ = ("factors", "first", "step")

    def __init__(self, factors: Any, step: Number = 1, first: Number = 0) -> None:
        self.factors, self.step, self.first = factors, step, first

    def __add__(self, other: Number) -> Multiples:
        return Multiples(self.factors, self.step, self.first + other)

    def __getitem__(self, i: int) -> Number:
        return self.first + self.step * int(self.factors[i])

    @property
    def value(self) -> Any:
        """The values for the current counts."""
        return int_value(self.first) + self.factors * int_value(self.step)

    @property
    def symbolic(self) -> bool:
        """Say whether they depend on counts."""
        return isinstance(self.first, Size) or isinstance(self.step, Size)

    def stores(self, at: np.ndarray) -> list[int]:
        """Return the records that store them, each at a byte of the engine's array."""
        first, step = (dict(_terms(number)) for number in (self.first, self.step))
        variables = sorted({*first, *step})
        words = np.empty((len(at), 3 + 2 * len(variables)), np.int64)
        words[:, 0], words[:, 1], words[:, 2] = STORE, at, len(variables)
        for i, variable in enumerate(variables):
            words[:, 3 + 2 * i] = first.get(variable, 0) + self.factors * step.get(variable, 0)
            words[:, 4 + 2 * i] = variable
        found: list[int] = words.ravel().tolist()
        return found


def _terms(number: Number) -> Terms:
    if isinstance(number, Size):
        return number.terms
    return ((0, number),) if number else ()


def int_value(number: Any) -> Any:
    """Return the value for the current counts, without a decision; an array of `Multiples`."""
    return number.value if isinstance(number, (Size, Multiples)) else number


def least(one: Number, other: Number) -> Number:
    """Return ``min``, without a decision."""
    if isinstance(one, Size) or isinstance(other, Size):
        difference = one - other
        return (
            other + difference.sizes.define(CLAMP, 0, difference.terms)
            if isinstance(difference, Size)
            else min(difference, 0) + other
        )
    return min(one, other)


def largest(one: Number, other: Number) -> Number:
    """Return ``max``, without a decision."""
    return one + other - least(one, other)
