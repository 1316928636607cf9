"""Drawing of a simulation: time against size, and against the number of ranks; needs matplotlib."""

from pathlib import Path
from typing import Any

from hpcoll.base.text import format_nbytes, printable
from hpcoll.cli.figures import GLYPHS, SIZE, Point, dashes, label_ends, looks, write


def draw(
    path: Path, title: str, cells: list[Any], against_nranks: dict[str, list[tuple[int, float]]]
) -> None:
    """Draw cells of `hpcoll.cli.simulate.command`, and by algorithm ``(ranks, seconds)`` at the smallest size, into a file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="constrained")
    figure.suptitle(printable(title), parse_math=False)
    left, right = figure.subplots(1, 2)
    ends: list[dict[str, tuple[float, str]]] = [{}, {}]
    drawn: tuple[list[list[Point]], list[list[Point]]] = [], []
    for name, look in looks(dict.fromkeys(cell.algorithm for cell in cells)).items():
        mine = [cell for cell in cells if cell.algorithm == name]
        curves = [(cell.nbytes, cell.seconds) for cell in mine], against_nranks.get(name, [])
        for axes, found, before, curve in zip((left, right), ends, drawn, curves):
            # what the eye cannot tell apart is equal
            points = [(x, float(f"{seconds:.3g}")) for x, seconds in curve]
            xs, us = [x for x, _ in curve], [seconds * 1e6 for _, seconds in curve]
            axes.plot(
                xs,
                us,
                color=look.colour,
                linestyle=dashes(points, before, look.line),
                marker=look.marker,
                markersize=4,
            )
            before.append(points)
            if curve:
                found[f"{GLYPHS[look.marker]} {name}"] = (curve[-1][1] * 1e6, look.colour)
    smallest = format_nbytes(min((cell.nbytes for cell in cells), default=0))
    for axes, label in ((left, "bytes"), (right, f"ranks, at {smallest}")):
        axes.set_xscale("log", base=2)
        axes.set(yscale="log", xlabel=label, ylabel="predicted time (µs)")
        axes.grid(alpha=0.3)
    for axes, found in zip((left, right), ends):
        label_ends(axes, found)
    write(path, figure)
