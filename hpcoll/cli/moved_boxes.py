"""The drawing of a redistribution for ``hpcoll show redistribute``: which boxes of the array each rank sends to whom."""

import ast
from collections.abc import Sequence
from itertools import islice, product
from math import prod

import numpy as np

from hpcoll.analysis.svg_canvas import MARGIN, NODE, Canvas
from hpcoll.base.errors import ArgumentError
from hpcoll.base.text import counted, quoted
from hpcoll.grids.distribution import Distribution
from hpcoll.grids.moves import Move, sent

MOST_RANKS, MOST_BOXES = 64, 3  # that are drawn; of a move that are written out


def distribution_of(name: str, text: str, shape: Sequence[int], nranks: int) -> Distribution:
    """Return the distribution that an option describes by arguments as in Python, such as ``grid=(2, 2), block=64``."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise SyntaxError
        options = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
        return Distribution(shape, nranks, **options)
    except ArgumentError as error:
        raise ArgumentError(f"--{name}: {error}") from None
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError):
        expected = "arguments of a Distribution, such as split=0"
        raise ArgumentError(f"--{name} needs {expected}, got {quoted(text)}") from None


def lines(source: Distribution, target: Distribution) -> list[str]:
    """Return the drawing as text: a line for each pair of ranks, and for the elements that stay on one."""
    return [
        f"rank {f'{rank} → {move.peer}' if rank != move.peer else f'{rank} keeps':10}"
        f"{counted(move.nelements, 'element'):>16}  {_boxes(source, rank, move)}"
        for rank, move in _moves(source, target)
    ]


def picture(title: str, source: Distribution, target: Distribution) -> str:
    """Return the drawing as SVG: an arrow from each sender, on the left, to each receiver, on the right; and the text."""
    canvas = Canvas()
    canvas.text(MARGIN, MARGIN + 8, title, size=14, bold=True)
    left, right = (
        [(x, MARGIN + 50 + 3 * NODE * rank) for rank in range(source.nranks)] for x in (40.0, 240.0)
    )
    for rank, move in _moves(source, target):
        if rank != move.peer:
            canvas.edge(left[rank], right[move.peer], "#1f6fb2")
    for rank, (a, b) in enumerate(zip(left, right)):
        canvas.node(a, rank, "#1f6fb2", "#cfe3f4")
        canvas.node(b, rank, "#1f6fb2", "#cfe3f4")
    for i, line in enumerate(lines(source, target)):
        canvas.text(280.0, MARGIN + 50 + 15 * i, line, size=10)
    return canvas.svg()


def _moves(source: Distribution, target: Distribution) -> list[tuple[int, Move]]:
    """Return senders with what each sends."""
    if source.nranks > MOST_RANKS:
        raise ArgumentError(f"show redistribute needs 1 to {MOST_RANKS} ranks, got {source.nranks}")
    ranks = range(source.nranks)
    return [(rank, move) for rank in ranks for move in sent(source.parts, target.parts, rank)]


def _boxes(source: Distribution, rank: int, move: Move) -> str:
    """Return the boxes of a move as slices of the whole array."""
    along = list[list[str]]()
    for axis, (starts, lengths) in enumerate(move.pieces):
        own = source.parts.own(rank, axis)
        before = np.cumsum(own[:, 1] - own[:, 0]) - (own[:, 1] - own[:, 0])
        which = np.searchsorted(before, starts, "right") - 1
        first = own[which, 0] + starts - before[which]
        along.append([f"{low}:{high}" for low, high in zip(first.tolist(), (first + lengths).tolist())])
    more = prod(map(len, along)) - MOST_BOXES
    shown = " ".join(f"[{', '.join(box)}]" for box in islice(product(*along), MOST_BOXES))
    return shown + f" and {more} more" * (more > 0)
