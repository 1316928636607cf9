"""Rows of text in aligned columns, and sentences in lines."""

import sys
import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 100  # columns of what is no terminal's
NARROWEST = 12  # columns that a cell of a `grid` keeps


def table(header: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, numbers: Sequence[int] = ()) -> list[str]:
    """Lines of at most ``width`` columns: a header, then the rows; what does not fit in the last column is cut.

    Args:
        header, rows: Texts; as many in every row as in the header.
        width: Columns of the terminal.
        numbers: Indices of columns that are aligned to the right.

    >>> table(["key", "n"], [["ring", "4"], ["tree", "12"]], 40, numbers=[1])
    ['key    n', 'ring   4', 'tree  12']
    """
    everything = [header, *rows]
    widths = [max(len(row[i]) for row in everything) for i in range(len(header))]
    lines = []
    for row in everything:
        cells = [f"{text:>{w}}" if i in numbers else f"{text:{w}}" for i, (text, w) in enumerate(zip(row, widths))]
        line = "  ".join(cells).rstrip()
        lines.append(line if len(line) <= width else line[: width - 1] + "…")
    return lines


def wrapped(text: str, indent: str = "", width: int = WIDTH) -> list[str]:
    """A sentence in lines of at most ``width`` columns."""
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False)


def grid(rows: Sequence[Sequence[str]], width: int = WIDTH) -> list[str]:
    """Rows in aligned columns, indented by two; no column without content, and where all are too wide, the widest are cut.

    >>> grid([["", "call"], ["rank 3", "Barrier()"]])
    ['          call', '  rank 3  Barrier()']
    """
    filled = [i for i in range(len(rows[0])) if any(row[i] for row in rows[1:])] if rows else []
    rows = [[row[i] for i in filled] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows)]
    while 2 * len(widths) + sum(widths) > width and max(widths) > NARROWEST:
        widths[widths.index(max(widths))] -= 1
    cut = [[text if len(text) <= room else f"{text[: room - 1]}…" for text, room in zip(row, widths)] for row in rows]
    return [f"  {line}" for line in table(cut[0], cut[1:], width - 2)] if cut else []


def print_lines(lines: Iterable[str]) -> None:
    """Print; what this terminal's encoding lacks becomes a question mark."""
    encoding = sys.stdout.encoding or "utf-8"
    for line in lines:
        print(line.encode(encoding, "replace").decode(encoding))
