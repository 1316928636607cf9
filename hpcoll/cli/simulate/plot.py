"""Draws what ``hpcoll simulate`` found: time against size, and against the number of ranks; needs matplotlib."""

from pathlib import Path
from typing import Any

from hpcoll.base.units import format_nbytes

_SIZE, _DPI = (12, 5), 150  # inches; dots per inch of a PNG


def draw(path: Path, title: str, cells: list[Any], against_nranks: dict[str, list[tuple[int, float]]]) -> None:
    """Write a picture.

    Args:
        path: File; `hpcoll.cli.bench.plot.check_target` has been called.
        title: Of the picture.
        cells: As `hpcoll.cli.simulate.command.Cell`.
        against_nranks: Per algorithm ``(ranks, seconds)`` at the smallest size.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, layout="constrained")
    figure.suptitle(title)
    left, right = figure.subplots(1, 2)
    for i, name in enumerate(dict.fromkeys(cell.algorithm for cell in cells)):
        mine = [cell for cell in cells if cell.algorithm == name]
        style = {"label": name, "color": f"C{i % 10}", "marker": "o", "markersize": 3}
        left.plot([cell.nbytes for cell in mine], [cell.seconds * 1e6 for cell in mine], **style)
        ranks = against_nranks.get(name, [])
        right.plot([nranks for nranks, _ in ranks], [seconds * 1e6 for _, seconds in ranks], **style)
    smallest = format_nbytes(min((cell.nbytes for cell in cells), default=0))
    for axes, label in ((left, "bytes"), (right, f"ranks, at {smallest}")):
        axes.set(xscale="log", yscale="log", xlabel=label, ylabel="predicted time (µs)")
        axes.grid(alpha=0.3)
    left.legend(fontsize="small")
    figure.savefig(path, dpi=_DPI)
