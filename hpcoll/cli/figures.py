"""Figures with matplotlib: files that can be written, colours of curves, and labels at their ends."""

import io
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from hpcoll.base.errors import ArgumentError
from hpcoll.base.text import quoted
from hpcoll.cli import output

SUFFIXES = (".svg", ".png", ".pdf")
SIZE = 12, 5  # inches
_DPI = 150  # of a PNG
_COLOURS = tuple(f"C{i}" for i in range(6))  # of matplotlib: as many as can be told apart at a glance
# dashes and markers
_PATTERNS: tuple[tuple[Any, str], ...] = (
    ("-", "o"),
    ((0, (7, 2)), "s"),
    ((0, (1, 1.5)), "^"),
)
# points: size of a label, from one to the next, from the axes, and of a dash
_FONT, _GAP, _AWAY, _DASH = (
    8,
    9,
    14,
    4,
)

Point = tuple[float, float]


GLYPHS = {"o": "●", "s": "■", "^": "▲"}  # of markers, for labels


class Look(NamedTuple):
    """The look of a curve: its colour, line style and marker, as matplotlib names them."""

    colour: str
    line: Any
    marker: str


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


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Return a look for each name: other colours first, then other dashes and markers; up to 18 names have distinct ones."""
    every = [Look(colour, *pattern) for pattern in _PATTERNS for colour in _COLOURS]
    return dict(zip(names, cycle(every)))


def dashes(curve: Sequence[Point], drawn: Iterable[Sequence[Point]], usual: Any = "-") -> Any:
    """Return the line style of a curve, of which those that were drawn before can be seen where it covers them; else the usual one."""
    covered = sum(any(pair in set(pairwise(one)) for pair in pairwise(curve)) for one in drawn)
    return (0, (_DASH, _DASH * min(covered, 3))) if covered else usual


def label_ends(axes: Any, ends: Mapping[str, tuple[float, str]]) -> None:
    """Write names right of the axes where curves end, apart from each other and with a line to the end: last y and colour by name.

    After everything is drawn.
    """
    axes.figure.draw_without_rendering()
    low, high = axes.get_ylim()
    inside = {name: min(max(y, low), high) for name, (y, _) in ends.items()}
    names = sorted(inside, key=lambda name: inside[name])
    *exact, top = (
        axes.transData.transform((axes.get_xlim()[0], y))[1] * 72 / axes.figure.dpi
        for y in (*map(inside.get, names), high)
    )
    for name, there, height in zip(names, exact, spread(exact, top)):
        style = {"color": ends[name][1], "fontsize": _FONT, "va": "center", "annotation_clip": False}
        where = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        line = {
            "arrowstyle": "-",
            "color": ends[name][1],
            "linewidth": 0.6,
            "shrinkA": 1,
            "shrinkB": 0,
            "relpos": (0, 0.5),
        }
        axes.annotate(name, (1, inside[name]), (_AWAY, height - there), arrowprops=line, **style, **where)


def spread(heights: Sequence[float], top: float) -> list[float]:
    """Return heights of labels, ascending and at least a line apart: about the given ones, but not above the top.

    Labels that are too close are a group, which stays in the middle of where its labels should be.

    >>> spread([0, 1, 100], 100), spread([99, 100], 100)
    ([-4.0, 5.0, 100.0], [91.0, 100.0])
    """
    groups: list[list[float]] = []
    for height in heights:
        groups.append([height])
        while len(groups) > 1 and _lowest(groups[-1], top) - _lowest(groups[-2], top) < _GAP * len(
            groups[-2]
        ):
            last = groups.pop()
            groups[-1] += last
    return [_lowest(group, top) + _GAP * i for group in groups for i in range(len(group))]


def _lowest(group: Sequence[float], top: float) -> float:
    """Return the height of the lowest label of a group."""
    above = _GAP * (len(group) - 1)
    return min(sum(group) / len(group) - above / 2, float(top) - above)
