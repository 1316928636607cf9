"""Rows of text in aligned columns."""

from collections.abc import Sequence


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
