"""Drawings of results: time, and bandwidth or hidden share, against message size. No MPI; needs matplotlib.

The results come as JSON documents, which are checked, since others may have written them.

Each algorithm has a colour, with its name at the curve's end; the MPI library's own is black and dashed. Thinner lines are calls
in place; markers tell runs apart, and a cross is on what other programs disturbed. Of many algorithms, those that are nowhere the
fastest are faded, and not drawn in place.
matplotlib's objects draw it: no display, no state of pyplot.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, groupby
from pathlib import Path
from typing import Any

from hpcoll.base.errors import ArgumentError
from hpcoll.base.json_fields import integer, member, number, read_json
from hpcoll.base.text import LINE, MAX_RANKS, format_nbytes, printable
from hpcoll.cli.bench.messages import find_dtype
from hpcoll.cli.bench.modes import BLOCKING, ORDINARY
from hpcoll.cli.bench.report import AUTO
from hpcoll.cli.figures import SIZE, Look, label_ends, looks, write
from hpcoll.selection.config import NATIVE

TIME, BANDWIDTH, HIDDEN = "time", "bus_bw", "hidden"  # quantities, by their names in documents
SIDES = OUT_OF_PLACE, IN_PLACE = "out_of_place", "in_place"
MOST_ALGORITHMS = 100  # of one document
_NAME = 40  # characters that a drawing has room for
_FITTING: dict[
    str, tuple[Callable[[float], bool], str]
] = {  # says whether a value is possible, and which are
    TIME: (lambda us: 0 < us <= 1e15, "microseconds above 0, at most 1e15"),
    BANDWIDTH: (lambda rate: 0 <= rate <= 1e15, "GB/s from 0 to 1e15"),
    HIDDEN: (lambda share: abs(share) <= 1e6, "a share, at most 1e6"),
}
_TICKS = 8  # labels below an axis, about
_MARKERS = "osD^vP*X"  # one per run
_STYLES = {
    OUT_OF_PLACE: {"linewidth": 1.8, "markersize": 4.5},
    IN_PLACE: {"linewidth": 0.7, "markersize": 2.2},
}
_LABELS = {TIME: "time per call (µs)", BANDWIDTH: "bus bandwidth (GB/s)", HIDDEN: "hidden by overlap (%)"}
_FEW = 6  # algorithms that need no fading
_NATIVE = Look("black", (0, (4, 2)), "")
_FADED = {"alpha": 0.3, "linewidth": 1.0, "markersize": 2.2}
_DISTURBED: dict[str, Any] = {"linestyle": "none", "marker": "x", "markersize": 9, "markeredgewidth": 1.0}
_HIDDEN_RANGE = -100, 120  # percent; noise at small sizes would spoil the scale


@dataclass(frozen=True)
class Line:
    """An algorithm's curve on one side: ``values`` has time (us), busbw (GB/s) and, in overlap mode, hidden share at each size (bytes)."""

    algorithm: str
    side: str
    sizes: tuple[int, ...]
    values: Mapping[str, tuple[float, ...]]
    disturbed: tuple[bool, ...] = ()  # at which sizes others disturbed the measurement


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
    found = re.match(
        r"(?:MPI VERSION\s*:\s*)?(.*?)(?:\s+library)?(?:\s+version)?[\s:v]*(\d+(?:\.\d+)+)",
        version,
        re.IGNORECASE,
    )
    return f"{found[1]} {found[2]}" if found else version[:40]


def _facts(document: Any) -> tuple[str, ...]:
    config, results = member(document, "config", dict, ""), member(document, "results", list, "")
    if not results:
        raise ArgumentError("field results: expected some, got []")
    operator, nranks = (
        _text(results[0], "redop", "results[0]"),
        integer(document, "nranks", "", most=MAX_RANKS),
    )
    what = find_dtype(member(results[0], "type", str, "results[0]")).name + (
        "" if operator == "none" else f" {operator}"
    )
    extras = [("mode", BLOCKING, ""), ("memory", ORDINARY, " memory")]
    said = [
        (_text(config, key, "config") if key in config else usual, usual, suffix)
        for key, usual, suffix in extras
    ]
    named = ["" if found == usual else f"{found}{suffix}" for found, usual, suffix in said]
    return (
        _text(document, "collective", ""),
        f"{nranks} ranks",
        what,
        library_name(member(config, "mpi", str, "config")),
        *named,
    )


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
    values = {
        kind: tuple(number(one, kind, where, *_FITTING[kind]) for where, one in found) for kind in kinds
    }
    sizes = tuple(integer(one, "size", where, least=0) for where, one in measured)
    return Line(algorithm, side, sizes, values, tuple(one.get("disturbed") is True for _, one in measured))


def _text(content: Any, key: str, where: str) -> str:
    return printable(member(content, key, str, where), _NAME)


def draw(runs: Sequence[Run], path: Path) -> None:
    """Draw runs into a file for which `hpcoll.cli.figures.check` was called; raises as `hpcoll.cli.figures.write`."""
    from matplotlib import rc_context

    with rc_context({"text.parse_math": False}):  # names may have dollar signs
        _draw(runs, path)


def _draw(runs: Sequence[Run], path: Path) -> None:
    """Draw runs: the facts that they have in common make the title, those in which they differ the legend."""
    from matplotlib.figure import Figure

    columns = list(zip(*(run.facts for run in runs)))
    common = [column[0] for column in columns if len(set(column)) == 1 and column[0]]
    labels = [
        ", ".join(one for one, column in zip(run.facts, columns) if len(set(column)) > 1 and one)
        for run in runs
    ]
    labels = [
        label if labels.count(label) == 1 else " ".join(filter(None, [label, run.name]))
        for label, run in zip(labels, runs)
    ]
    names = dict.fromkeys(line.algorithm for run in runs for line in run.lines if line.algorithm != NATIVE)
    best, styles = _best(runs), looks(names) | {NATIVE: _NATIVE}
    figure = Figure(figsize=SIZE, layout="constrained")
    figure.suptitle(", ".join(common))
    kinds = TIME, HIDDEN if all(HIDDEN in run.kinds for run in runs) else BANDWIDTH
    panels = figure.subplots(1, 2)
    ends: dict[str, dict[str, tuple[float, str]]] = {kind: {} for kind in kinds}
    for axes, kind in zip(panels, kinds):
        for run, marker in zip(runs, cycle(_MARKERS)):
            for line in (line for line in run.lines if line.algorithm in best or line.side == OUT_OF_PLACE):
                end = _draw_line(
                    axes, line, kind, styles[line.algorithm], marker, faded=line.algorithm not in best
                )
                ends[kind].setdefault(line.algorithm, (end, styles[line.algorithm].colour))
        _finish(axes, kind, sorted({size for run in runs for line in run.lines for size in line.sizes}))
    figure.legend(handles=_legend(runs, labels), loc="outside lower center", ncols=4, frameon=False)
    for axes, kind in zip(panels, kinds):
        label_ends(axes, ends[kind])
    write(path, figure)


def _best(runs: Sequence[Run]) -> set[str]:
    """Return ``native``, ``auto`` and the algorithms that are the fastest at some size out of place; all names when they are few."""
    names = {line.algorithm for run in runs for line in run.lines}
    if len(names) <= _FEW:
        return names
    best = {NATIVE, AUTO}
    for run in runs:
        lines = [line for line in run.lines if line.side == OUT_OF_PLACE]
        cells = sorted(
            (size, us, line.algorithm) for line in lines for size, us in zip(line.sizes, line.values[TIME])
        )
        best |= {next(names)[2] for _, names in groupby(cells, key=lambda cell: cell[0])}
    return best


def _draw_line(axes: Any, line: Line, kind: str, look: Look, marker: str, *, faded: bool) -> float:
    """Draw a curve, and return its last value."""
    scale = 100 if kind == HIDDEN else 1
    values = [scale * value for value in line.values[kind]]
    top = 3 if line.algorithm == NATIVE else 2
    style = _FADED if faded else _STYLES[line.side]
    axes.plot(line.sizes, values, color=look.colour, linestyle=look.line, marker=marker, zorder=top, **style)
    disturbed = [i for i, one in enumerate(line.disturbed) if one]
    axes.plot(
        [line.sizes[i] for i in disturbed],
        [values[i] for i in disturbed],
        color=look.colour,
        zorder=top,
        **_DISTURBED,
    )
    return values[-1]


def ticks(sizes: Sequence[int]) -> list[int]:
    """Return sizes to label: as many of the measured ones, which ascend, as have room on a logarithmic axis.

    >>> ticks([8, 64, 512]), ticks([1 << i for i in range(20)])
    ([8, 64, 512], [1, 8, 64, 512, 4096, 32768, 262144])
    """
    found = list(sizes[:1])
    for size in sizes:
        if size >= found[-1] * (sizes[-1] / sizes[0]) ** (1 / _TICKS) > found[-1]:
            found.append(size)
    return found


def _finish(axes: Any, kind: str, sizes: Sequence[int]) -> None:
    """Set scales, ticks and labels of one panel."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log", base=2)
    axes.minorticks_off()
    shown = ticks(sizes)
    axes.set_xticks(
        shown, [format_nbytes(size) for size in shown], rotation=30, ha="right", rotation_mode="anchor"
    )
    axes.set_xlabel("message size")
    axes.set_ylabel(_LABELS[kind])
    axes.grid(visible=True, color="0.9")
    if kind == TIME:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, position: f"{value:,g}"))
    elif kind == BANDWIDTH:
        axes.set_ylim(bottom=0)
    else:
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, _HIDDEN_RANGE[0]), min(high, _HIDDEN_RANGE[1]))
        axes.axhline(0, color="0.6", linewidth=0.8)


def _legend(runs: Sequence[Run], labels: Sequence[str]) -> list[Any]:
    """Return entries for what was disturbed, for the runs when there are several, and for the two sides."""
    from matplotlib.lines import Line2D

    usual, thin = _STYLES.values()
    found = []
    if any(any(line.disturbed) for run in runs for line in run.lines):
        found.append(
            Line2D([], [], color="0.4", label="disturbed: other programs used the cores", **_DISTURBED)
        )
    if len(runs) > 1:
        found += [
            Line2D([], [], color="0.4", linestyle="none", marker=m, label=label)
            for m, label in zip(cycle(_MARKERS), labels)
        ]
    if len({line.side for run in runs for line in run.lines}) > 1:
        names = ("out of place", usual), ("in place", thin)
        found += [
            Line2D([], [], color="0.4", linewidth=style["linewidth"], label=label) for label, style in names
        ]
    return found
