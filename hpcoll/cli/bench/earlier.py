"""Results of ``hpcoll bench --format json`` as curves: time, and bandwidth or hidden share, against message size. No MPI.

The JSON documents are checked, since others may have written them. Thinner curves are calls in place; markers tell runs apart, and a
cross is on what other programs disturbed. Of many algorithms, those that are nowhere the fastest are faded, and not drawn in place.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

from hpcoll.base.errors import ArgumentError
from hpcoll.base.json_fields import integer, member, number, read_json
from hpcoll.base.text import LINE, MAX_RANKS, printable
from hpcoll.cli import plot
from hpcoll.cli.bench.messages import find_dtype
from hpcoll.cli.bench.modes import BLOCKING, ORDINARY
from hpcoll.cli.bench.report import AUTO
from hpcoll.cli.plot import Curve, Panel
from hpcoll.selection.config import NATIVE

TIME, BANDWIDTH, HIDDEN = "time", "bus_bw", "hidden"  # quantities, by their names in documents
OUT_OF_PLACE, IN_PLACE = "out_of_place", "in_place"
WIDTHS = {OUT_OF_PLACE: 1.8, IN_PLACE: 0.7}
MOST_ALGORITHMS = 100  # of one document
_NAME = 40  # characters that a drawing has room for
_FITTING: dict[str, tuple[Callable[[float], bool], str]] = {  # which values are possible, also in words
    TIME: (lambda us: 0 < us <= 1e15, "microseconds above 0, at most 1e15"),
    BANDWIDTH: (lambda rate: 0 <= rate <= 1e15, "GB/s from 0 to 1e15"),
    HIDDEN: (lambda share: abs(share) <= 1e6, "a share, at most 1e6"),
}
_LABELS = {TIME: "time per call (µs)", BANDWIDTH: "bus bandwidth (GB/s)", HIDDEN: "hidden by overlap (%)"}
_MARKERS = "osD^vP*X"  # one per run
_FEW = 6  # algorithms that need no fading
_HIDDEN_RANGE = -100.0, 120.0  # percent; noise at small sizes would spoil the scale


class Result(NamedTuple):
    """A result: of an algorithm on one side at one size, in bytes; ``values`` by quantity."""

    algorithm: str
    side: str
    size: int
    values: dict[str, float]
    disturbed: bool = False


class Run(NamedTuple):
    """The run of one document; ``facts`` say what was measured where, in words that make a title, the collective first."""

    name: str
    facts: tuple[str, ...]
    results: tuple[Result, ...]


def read_run(path: Path) -> Run:
    """Return a run from a file that ``hpcoll bench --format json`` wrote; raises as `run_of`."""
    return run_of(read_json(path, str(path)), printable(str(path), LINE))


def run_of(document: Any, name: str) -> Run:
    """Return a run from a document as ``hpcoll.cli.bench.report.document`` makes it; ArgumentError names the file of any other.

    A document without sizes (of a barrier) cannot be drawn and is refused.
    """
    try:
        facts, results = tuple(_facts(document)), tuple(_results(document))
    except ArgumentError as error:
        raise ArgumentError(f"{name} is not a result of hpcoll bench --format json: {error}") from None
    if not all(result.size for result in results):
        raise ArgumentError(f"{name} has messages without bytes ({facts[0]}): nothing to plot against")
    return Run(name, facts, results)


def library_name(version: str) -> str:
    """Return name and release from the text of ``MPI_Get_library_version``.

    >>> library_name("Open MPI v5.0.11, package: Open MPI"), library_name("MPICH Version: 5.0.2")
    ('Open MPI 5.0.11', 'MPICH 5.0.2')
    """
    version = printable(version)
    match = re.match(
        r"(?:MPI VERSION\s*:\s*)?(.*?)(?:\s+library)?(?:\s+version)?[\s:v]*(\d+(?:\.\d+)+)",
        version,
        re.IGNORECASE,
    )
    return f"{match[1]} {match[2]}" if match else version[:_NAME]


def _facts(document: Any) -> Iterator[str]:
    config, results = member(document, "config", dict, ""), member(document, "results", list, "")
    if not results:
        raise ArgumentError("field results: expected some, got []")
    operator = _text(results[0], "redop", "results[0]")
    yield _text(document, "collective", "")
    yield f"{integer(document, 'nranks', '', most=MAX_RANKS)} ranks"
    name = find_dtype(member(results[0], "type", str, "results[0]")).name
    yield name if operator == "none" else f"{name} {operator}"
    yield library_name(member(config, "mpi", str, "config"))
    for key, usual, suffix in (("mode", BLOCKING, ""), ("memory", ORDINARY, " memory")):
        if key in config and (text := _text(config, key, "config")) != usual:
            yield text + suffix


def _results(document: Any) -> Iterator[Result]:
    names = set[str]()
    for i, row in enumerate(document["results"]):
        where = f"results[{i}]"
        names.add(name := _text(row, "algorithm", where))
        if len(names) > MOST_ALGORITHMS:
            raise ArgumentError(f"field results: expected at most {MOST_ALGORITHMS} algorithms, got more")
        size = integer(row, "size", where, least=0)
        for side in WIDTHS:
            if row.get(side, 0) is not None:
                side_of = member(row, side, dict, where)
                kinds = [kind for kind in _FITTING if kind != HIDDEN or side_of.get(HIDDEN) is not None]
                values = {kind: number(side_of, kind, f"{where}.{side}", *_FITTING[kind]) for kind in kinds}
                yield Result(name, side, size, values, row.get("disturbed") is True)


def _text(content: Any, key: str, where: str) -> str:
    return printable(member(content, key, str, where), _NAME)


def draw(runs: Sequence[Run], path: Path) -> None:
    """Draw runs: the facts that they have in common make the title, those in which they differ the legend."""
    common = [fact for fact in runs[0].facts if all(fact in run.facts for run in runs)]
    labels = [", ".join(fact for fact in run.facts if fact not in common) for run in runs]
    results = [result for run in runs for result in run.results]
    legend: dict[str, dict[str, Any]] = {}
    if any(result.disturbed for result in results):
        legend["disturbed: other programs used the cores"] = plot.CROSS
    for run, label, marker in zip(runs, labels, cycle(_MARKERS)) if len(runs) > 1 else ():
        text = label if labels.count(label) == 1 else f"{label} {run.name}".strip()
        legend[text] = {"linestyle": "none", "marker": marker}
    if len({result.side for result in results}) > 1:
        legend |= {side.replace("_", " "): {"linewidth": width} for side, width in WIDTHS.items()}
    second = HIDDEN if all(HIDDEN in result.values for result in results) else BANDWIDTH
    panels = [
        Panel("message size", _LABELS[kind], list(curves(runs, kind)), logarithmic=kind == TIME)
        for kind in (TIME, second)
    ]
    plot.draw(path, ", ".join(common), panels, legend)


def curves(runs: Sequence[Run], kind: str) -> Iterator[Curve]:
    """Return the curves of a quantity."""
    best = fastest(runs)
    for run, marker in zip(runs, cycle(_MARKERS)):
        for name, side in dict.fromkeys((result.algorithm, result.side) for result in run.results):
            mine = [result for result in run.results if (result.algorithm, result.side) == (name, side)]
            values = [result.values[kind] for result in mine]
            if kind == HIDDEN:
                values = [min(max(100 * share, _HIDDEN_RANGE[0]), _HIDDEN_RANGE[1]) for share in values]
            crossed = [i for i, result in enumerate(mine) if result.disturbed]
            points = list(zip((result.size for result in mine), values))
            if name in best:
                yield Curve(name, points, WIDTHS[side], marker, crossed=crossed)
            elif side == OUT_OF_PLACE:
                yield Curve(name, points, 1.0, marker, 0.3, crossed)


def fastest(runs: Sequence[Run]) -> set[str]:
    """Return ``native``, ``auto`` and the algorithms that are the fastest at some size out of place; all names when they are few."""
    names = {result.algorithm for run in runs for result in run.results}
    if len(names) <= _FEW:
        return names
    best = {NATIVE, AUTO}
    for run in runs:
        first: dict[int, tuple[float, str]] = {}
        for result in run.results:
            if result.side == OUT_OF_PLACE:
                first[result.size] = min(
                    first.get(result.size, (1e16, "")), (result.values[TIME], result.algorithm)
                )
        best |= {name for _, name in first.values()}
    return best
