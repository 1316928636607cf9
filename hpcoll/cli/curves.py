"""Colours of curves and labels at their ends, for drawings with matplotlib."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_COLOURS = (*(f"C{i}" for i in range(10)), "navy", "gold", "limegreen", "maroon", "magenta", "darkslategrey")
_FONT, _GAP = 8, 9  # points: size of a label, and from one to the next


def colours(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name; 16 names have distinct ones."""
    return {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(names)}


def label_ends(axes: Any, ends: Mapping[str, tuple[float, str]]) -> None:
    """Write names right of the axes where curves end, one above the other where they would overlap; after everything is drawn.

    Args:
        axes: Where the curves are.
        ends: By name the last y of a curve, and its colour.
    """
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
    """Heights of labels, ascending and at least a line apart: near what is given, but not above the top.

    >>> spread([0, 1, 100], 100), spread([99, 100], 100)
    ([0, 9, 100], [91, 100])
    """
    found = list(heights)
    for i in range(1, len(found)):
        found[i] = max(found[i], found[i - 1] + _GAP)
    for i in reversed(range(len(found))):
        found[i] = min(found[i], top - _GAP * (len(found) - 1 - i))
    return found
