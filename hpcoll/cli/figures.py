"""Figures with matplotlib: files that can be written, colours of curves, and labels at their ends."""

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcoll.base.errors import ArgumentError
from hpcoll.base.text import quoted
from hpcoll.cli import output

SUFFIXES = (".svg", ".png", ".pdf")
SIZE = 12, 5  # inches
_DPI = 150  # of a PNG
_COLOURS = (*(f"C{i}" for i in range(10)), "navy", "gold", "limegreen", "maroon", "magenta", "darkslategrey")
_FONT, _GAP = 8, 9  # points: size of a label, and from one to the next


def check(path: Path) -> None:
    """Check that a figure can be drawn and its file written, before the work whose result it is to show; else raise ArgumentError."""
    if path.suffix.lower() not in SUFFIXES:
        raise ArgumentError(f"plot file must end in {', '.join(SUFFIXES)}, got {quoted(str(path))}")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ArgumentError(f"plot needs matplotlib ({error}): pip install 'hpcoll[plot]'") from None
    output.check(path)


def write(path: Path, figure: Any) -> None:
    """Write a figure in the format that the file's suffix names; raises as `hpcoll.cli.output.write`."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix[1:].lower(), dpi=_DPI)
    output.write(path, drawn.getvalue())


def colours(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each name; up to 16 names have distinct ones."""
    return {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(names)}


def label_ends(axes: Any, ends: Mapping[str, tuple[float, str]]) -> None:
    """Write names right of the axes where curves end, apart from each other: last y and colour by name; after everything is drawn."""
    axes.figure.draw_without_rendering()
    low, high = axes.get_ylim()
    inside = {name: min(max(y, low), high) for name, (y, _) in ends.items()}
    names = sorted(inside, key=lambda name: inside[name])
    *exact, top = (axes.transData.transform((axes.get_xlim()[0], y))[1] * 72 / axes.figure.dpi for y in (*map(inside.get, names), high))
    for name, there, height in zip(names, exact, spread(exact, top)):
        style = {"color": ends[name][1], "fontsize": _FONT, "va": "center", "annotation_clip": False}
        where = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        axes.annotate(name, (1, inside[name]), (4, height - there), **style, **where)


def spread(heights: Sequence[float], top: float) -> list[float]:
    """Return heights of labels, ascending and at least a line apart: near the given ones, but not above the top.

    >>> spread([0, 1, 100], 100), spread([99, 100], 100)
    ([0, 9, 100], [91, 100])
    """
    found = list(heights)
    for i in range(1, len(found)):
        found[i] = max(found[i], found[i - 1] + _GAP)
    for i in reversed(range(len(found))):
        found[i] = min(found[i], top - _GAP * (len(found) - 1 - i))
    return found
