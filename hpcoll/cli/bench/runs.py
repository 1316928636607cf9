"""Runs of the benchmark, read for drawings from its JSON documents and checked, since others may have written them. No MPI."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcoll.base.errors import ArgumentError
from hpcoll.base.json_fields import integer, member, number, read_json
from hpcoll.base.text import LINE, printable
from hpcoll.base.units import MAX_RANKS
from hpcoll.cli.bench.messages import find_dtype
from hpcoll.cli.bench.modes import BLOCKING, ORDINARY

TIME, BANDWIDTH, HIDDEN = "time", "bus_bw", "hidden"  # quantities, by their names in documents
SIDES = OUT_OF_PLACE, IN_PLACE = "out_of_place", "in_place"
MOST_ALGORITHMS = 100  # of one document
_NAME = 40  # characters that a drawing has room for
_FITTING: dict[str, tuple[Callable[[float], bool], str]] = {  # says whether a value is possible, and which are
    TIME: (lambda us: 0 < us <= 1e15, "microseconds above 0, at most 1e15"),
    BANDWIDTH: (lambda rate: 0 <= rate <= 1e15, "GB/s from 0 to 1e15"),
    HIDDEN: (lambda share: abs(share) <= 1e6, "a share, at most 1e6"),
}


@dataclass(frozen=True)
class Line:
    """An algorithm's curve on one side: ``values`` has time (us), busbw (GB/s) and, in overlap mode, hidden share at each size (bytes)."""

    algorithm: str
    side: str
    sizes: tuple[int, ...]
    values: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class Run:
    """The run of one document; ``facts`` say what was measured where, in words that make a title."""

    name: str
    facts: tuple[str, ...]
    lines: tuple[Line, ...]

    @property
    def kinds(self) -> set[str]:
        """The quantities that the lines have."""
        return {kind for line in self.lines for kind in line.values}


def read_run(path: Path) -> Run:
    """Return a run from a file that ``hpcoll bench --format json`` wrote; raises as `run_of`."""
    return run_of(read_json(path, str(path)), printable(str(path), LINE))


def run_of(document: Any, name: str) -> Run:
    """Return a run from a document as ``hpcoll.cli.bench.report.document`` makes it; ArgumentError names the file of any other.

    A document without sizes (of a barrier) cannot be drawn and is refused.
    """
    try:
        facts, lines = _facts(document), _lines(member(document, "results", list, ""))
    except ArgumentError as error:
        raise ArgumentError(f"{name} is not a result of hpcoll bench --format json: {error}") from None
    if any(size == 0 for line in lines for size in line.sizes):
        raise ArgumentError(f"{name} has messages without bytes ({facts[0]}): nothing to plot against")
    return Run(name, facts, lines)


def library_name(version: str) -> str:
    """Return name and release from the text of ``MPI_Get_library_version``.

    >>> library_name("Open MPI v5.0.11, package: Open MPI"), library_name("MPICH Version: 5.0.2")
    ('Open MPI 5.0.11', 'MPICH 5.0.2')
    """
    version = printable(version)
    found = re.match(r"(?:MPI VERSION\s*:\s*)?(.*?)(?:\s+library)?(?:\s+version)?[\s:v]*(\d+(?:\.\d+)+)", version, re.IGNORECASE)
    return f"{found[1]} {found[2]}" if found else version[:40]


def _facts(document: Any) -> tuple[str, ...]:
    config, results = member(document, "config", dict, ""), member(document, "results", list, "")
    if not results:
        raise ArgumentError("field results: expected some, got []")
    operator, nranks = _text(results[0], "redop", "results[0]"), integer(document, "nranks", "", most=MAX_RANKS)
    what = find_dtype(member(results[0], "type", str, "results[0]")).name + ("" if operator == "none" else f" {operator}")
    extras = [("mode", BLOCKING, ""), ("memory", ORDINARY, " memory")]
    said = [(_text(config, key, "config") if key in config else usual, usual, suffix) for key, usual, suffix in extras]
    named = ["" if found == usual else f"{found}{suffix}" for found, usual, suffix in said]
    return _text(document, "collective", ""), f"{nranks} ranks", what, library_name(member(config, "mpi", str, "config")), *named


def _lines(results: Sequence[Any]) -> tuple[Line, ...]:
    rows: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for i, one in enumerate(results):
        rows.setdefault(_text(one, "algorithm", f"results[{i}]"), []).append((f"results[{i}]", one))
    if len(rows) > MOST_ALGORITHMS:
        raise ArgumentError(f"field results: expected at most {MOST_ALGORITHMS} algorithms, got {len(rows)}")
    lines = (_line(theirs, algorithm, side) for algorithm, theirs in rows.items() for side in SIDES)
    return tuple(line for line in lines if line.sizes)


def _line(rows: Sequence[tuple[str, dict[str, Any]]], algorithm: str, side: str) -> Line:
    measured = [(where, one) for where, one in rows if one.get(side, 0) is not None]
    found = [(f"{where}.{side}", member(one, side, dict, where)) for where, one in measured]
    kinds = [TIME, BANDWIDTH, *([HIDDEN] if found and found[0][1].get(HIDDEN) is not None else [])]
    values = {kind: tuple(number(one, kind, where, *_FITTING[kind]) for where, one in found) for kind in kinds}
    return Line(algorithm, side, tuple(integer(one, "size", where, least=0) for where, one in measured), values)


def _text(content: Any, key: str, where: str) -> str:
    return printable(member(content, key, str, where), _NAME)
