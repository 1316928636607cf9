"""Drawings with matplotlib: panels of curves over sizes or ranks, with the name of each at its end.

Each name has a colour and dashes; the MPI library's own curve is black. matplotlib's objects draw: no display, no state of pyplot.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, product
from pathlib import Path
from typing import Any, NamedTuple

from hpcoll.base.errors import ArgumentError
from hpcoll.base.text import LINE, format_nbytes, printable, quoted
from hpcoll.cli import output
from hpcoll.selection.config import NATIVE

SUFFIXES = (".svg", ".png", ".pdf")
GAP = 0.033  # from one label to the next, of the height of the axes
_SIZE, _DPI = (12, 5), 150  # inches; of a PNG
_COLOURS = [f"C{i}" for i in range(6)]  # of matplotlib: as many as can be told apart at a glance
_DASHES = "-", (0, (7, 2)), (0, (1, 1.5))
_NATIVE = (0, (4, 2)), "black"
_MOST_TICKS = 9
_LABEL: dict[str, Any] = {
    "xycoords": "axes fraction",
    "fontsize": 8,
    "va": "center",
    "annotation_clip": False,
}
CROSS = {"linestyle": "none", "marker": "x", "markersize": 9, "markeredgewidth": 1.0}


class Curve(NamedTuple):
    """A curve; those of one name have one look and one label."""

    name: str
    points: Sequence[tuple[float, float]]
    width: float = 1.8
    marker: str = "o"
    opacity: float = 1.0
    crossed: Sequence[int] = ()  # positions of points that are crossed out


class Panel(NamedTuple):
    """The axes of some curves; the one to the right is of powers of two."""

    xlabel: str
    ylabel: str
    curves: Sequence[Curve]
    logarithmic: bool = True  # the axis upwards; else it begins at 0 or below
    in_bytes: bool = True  # the axis to the right


def check(path: Path) -> None:
    """Check that a drawing can be made and its file written, before the work whose result it is to show; else raise ArgumentError."""
    if path.suffix.lower() not in SUFFIXES:
        raise ArgumentError(f"plot file must end in {', '.join(SUFFIXES)}, got {quoted(str(path))}")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ArgumentError(f"plot needs matplotlib ({error}): pip install 'hpcoll[plot]'") from None
    output.check(path)


def draw(
    path: Path, title: str, panels: Sequence[Panel], legend: Mapping[str, Mapping[str, Any]] | None = None
) -> None:
    """Draw panels side by side into a file; the suffix names its format. Raises as `hpcoll.cli.output.write`.

    ``legend`` has matplotlib's style of a sample for each text below the panels.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    styles = looks(curve.name for panel in panels for curve in panel.curves)
    with rc_context({"text.parse_math": False}):  # names may have dollar signs
        figure = Figure(figsize=_SIZE, layout="constrained")
        figure.suptitle(printable(title, LINE))
        for axes, panel in zip(figure.subplots(1, len(panels)), panels):
            _draw_panel(axes, panel, styles)
        samples = [Line2D([], [], color="0.4", label=text, **style) for text, style in (legend or {}).items()]
        figure.legend(handles=samples, loc="outside lower center", ncols=4, frameon=False)
        write(path, figure)


def write(path: Path, figure: Any) -> None:
    """Write a figure in the format that the file's suffix names; raises as `hpcoll.cli.output.write`."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix[1:].lower(), dpi=_DPI)
    output.write(path, drawn.getvalue())


def looks(names: Iterable[str]) -> dict[str, tuple[Any, str]]:
    """Return dashes and colour of each name; up to 18 names have distinct ones."""
    others = dict.fromkeys(name for name in names if name != NATIVE)
    return dict(zip(others, cycle(product(_DASHES, _COLOURS)))) | {NATIVE: _NATIVE}


def _draw_panel(axes: Any, panel: Panel, styles: Mapping[str, tuple[Any, str]]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    for name, points, width, marker, opacity, crossed in panel.curves:
        dashes, colour = styles[name]
        top = {"color": colour, "alpha": opacity, "zorder": 3 if name == NATIVE else 2}
        axes.plot(
            *zip(*points), linestyle=dashes, linewidth=width, marker=marker, markersize=2.5 * width, **top
        )
        axes.plot(*zip(*(points[i] for i in crossed)), **CROSS, **top) if crossed else None
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(2, numticks=_MOST_TICKS))
    axes.xaxis.set_major_formatter(lambda x, _: format_nbytes(x) if panel.in_bytes else f"{x:g}")
    axes.tick_params(axis="x", rotation=30)
    axes.set(xlabel=panel.xlabel, ylabel=panel.ylabel)
    axes.grid(visible=True, color="0.9")
    if panel.logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:,g}")
    else:
        axes.axhline(0, color="0.6", linewidth=0.8)
    _label_ends(axes, {curve.name: curve.points[-1] for curve in reversed(panel.curves)}, styles)


def _label_ends(
    axes: Any, ends: Mapping[str, tuple[float, float]], styles: Mapping[str, tuple[Any, str]]
) -> None:
    """Write the names of curves right of the axes, each with a line to the end of the curve."""
    axes.get_ylim()  # the limits are set when they are asked for
    shown = axes.transScale + axes.transLimits
    places = sorted((min(max(shown.transform(end)[1], 0.0), 1.0), name) for name, end in ends.items())
    for (place, name), height in zip(places, spread([place for place, _ in places])):
        line = {"arrowstyle": "-", "color": styles[name][1], "linewidth": 0.6, "relpos": (0, 0.5)}
        axes.annotate(name, (1, place), (1.04, height), color=styles[name][1], arrowprops=line, **_LABEL)


def spread(places: Sequence[float]) -> list[float]:
    """Return heights of labels, from 0 to 1: those of ascending places, moved up until they are a `GAP` apart, and down below 1."""
    heights: list[float] = []
    for place in places:
        heights.append(max(place, heights[-1] + GAP) if heights else place)
    top = 1.0
    for i in reversed(range(len(heights))):
        heights[i] = min(heights[i], top)
        top = heights[i] - GAP
    return heights
