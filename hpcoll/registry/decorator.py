"""The decorator that makes a builder a row of the catalogue."""

import re
from collections.abc import Callable
from typing import Any

from hpcoll.base.errors import ArgumentError
from hpcoll.base.text import is_count, one_of, quoted
from hpcoll.schedules.catalogue import CATALOGUE, register
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.ir import Writer
from hpcoll.schedules.row import DERIVED, Algorithm

_COSTS = tuple(name for name in DERIVED if name != "staged")  # formulas; "" where they are derived
_FACTS = (
    *_COSTS,
    "summary",
    "source",
    "chunks",
    "ordered",
    "reproducible",
    "canonical",
    "uniform",
    "pipelined",
    "chunked",
    "one_fold",
    "neighbours",
    "hierarchical",
    "parts",
    "serves",
)
_NAME = re.compile("[a-z][a-z0-9_]{0,63}")
_TAKEN = ("native", "auto", "all")  # in place of names of algorithms
_TRIED = (2, 3, 4)  # ranks for which formulas are tried
_DEFAULTS: dict[str, Any] = dict.fromkeys(DERIVED, "") | {
    "summary": "registered by this program",
    "source": "not said",
}


def algorithm(
    collective: str, *, name: str | None = None, **facts: Any
) -> Callable[[Callable[[Writer], None]], Algorithm]:
    """Return a decorator that registers a builder as an algorithm of a collective.

    The builder takes a `hpcoll.Writer` and writes one rank's steps for two and more ranks. The algorithm is proven for a number of ranks
    when it is first used with it, before any message leaves. In place of the function the decorator gives its row, for ``algorithm=``.

    Args:
        collective: Name of the collective, such as ``"allreduce"``.
        name: Name of the algorithm; None: that of the function.
        facts: Fields of `hpcoll.schedules.row.Algorithm`. ``chunks`` (a formula), ``parts``, ``serves``, ``ordered``, ``reproducible``,
            ``canonical`` (a formula), ``uniform``, ``pipelined``, ``chunked``, ``one_fold``, ``neighbours`` and ``hierarchical`` say what
            it is; ``summary`` and ``source`` are texts. ``rounds``, ``critical``, ``sent``, ``received``, ``largest`` and ``messages`` are
            formulas of its costs; those that are not given are derived from its schedules.

    Returns:
        The decorator.

    Raises:
        ArgumentError: There is no such collective or fact, a value is of a wrong type or does not evaluate, or the name is another's.
    """
    wrong = sorted(facts.keys() - set(_FACTS))
    if wrong:
        raise ArgumentError(f"facts of an algorithm must be {one_of(sorted(_FACTS), wrong[0])}")

    def decorate(builder: Callable[[Writer], None]) -> Algorithm:
        row = row_of(collective, builder.__name__ if name is None else name, builder, facts)
        known = CATALOGUE.get(row.key)
        if known is not None and _is_same(known, row):
            return known
        register(row)
        return row

    return decorate


def _is_same(known: Algorithm, row: Algorithm) -> bool:
    """Say whether a row is registered already: its file was read by another name of it, or a cell of a notebook runs again."""
    one, other = (getattr(each.builder, "__code__", None) for each in (known, row))
    alike = one is not None and one == other and not getattr(row.builder, "__closure__", None)
    return alike and known._replace(builder=None) == row._replace(builder=None)


def row_of(collective: str, name: str, builder: Callable[[Writer], None], facts: dict[str, Any]) -> Algorithm:
    """Return a row, after checking its parts; errors as of `algorithm`."""
    if collective not in COLLECTIVES:
        raise ArgumentError(f"collective must be {one_of(sorted(COLLECTIVES), collective)}")
    if not _NAME.fullmatch(name) or name in _TAKEN:
        raise ArgumentError(
            f"the name of an algorithm has a to z, 0 to 9 and _, up to 64 of them, got {quoted(name)}"
        )
    row = Algorithm(collective, name, **{**_DEFAULTS, **facts}, builder=builder)
    for field, value in facts.items():
        expected = type(Algorithm._field_defaults.get(field, ""))
        if type(value) is not expected:
            raise ArgumentError(
                f"{row.key}: {field} must be of type {expected.__name__}, got {quoted(value)}"
            )
    if row.parts < 1 or not all(is_count(str(nranks)) for nranks in row.serves):
        raise ArgumentError(
            f"{row.key}: parts and serves must be numbers above 0, got {row.parts} and {row.serves}"
        )
    for field in ("chunks", "canonical", *_COSTS):
        _check_formula(row, field)
    return row


def _check_formula(row: Algorithm, field: str) -> None:
    formula = getattr(row, field)
    try:
        values = [row.evaluate(formula, nranks) for nranks in _TRIED] if formula else []
    except Exception as error:
        raise ArgumentError(
            f"{row.key}: {field} is not a formula of p: {quoted(formula)} ({type(error).__name__}: {error})"
        ) from None
    if not all(value >= 0 for value in values) or (
        field == "chunks" and not all(value >= 1 for value in values)
    ):
        raise ArgumentError(
            f"{row.key}: {field} must not be below {int(field == 'chunks')}, got {quoted(formula)}"
        )
