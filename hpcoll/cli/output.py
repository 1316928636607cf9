"""The output of commands: rows in aligned columns, sentences in lines, progress on the terminal, and files, whole or not at all."""

import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

from hpcoll.base import files
from hpcoll.base.errors import ArgumentError
from hpcoll.base.text import LINE, printable, table

WIDTH, UNCUT = 100, 1000  # columns of sentences and of tables where there is no terminal
NARROWEST = 12  # columns that a cell of a `grid` keeps
written: dict[Path, None] = {}  # files and folders, by the command that runs


def columns(elsewhere: int = UNCUT) -> int:
    """Return the columns of the terminal, or ``elsewhere`` where there is none."""
    return shutil.get_terminal_size((elsewhere, 0)).columns


def wrapped(text: str, indent: str = "", width: int = WIDTH) -> list[str]:
    """Return a sentence in lines of at most ``width`` columns."""
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False
    )


def grid(rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """Return rows in aligned columns, indented by two; empty columns are left out, and the widest are cut to fit the width.

    Without a width it is that of the terminal.

    >>> grid([["", "call"], ["rank 3", "Barrier()"]])
    ['          call', '  rank 3  Barrier()']
    """
    width = columns() if width is None else width
    filled = [i for i in range(len(rows[0])) if any(row[i] for row in rows[1:])] if rows else []
    rows = [[row[i] for i in filled] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows)]
    while 2 * len(widths) + sum(widths) > width and max(widths) > NARROWEST:
        widths[widths.index(max(widths))] -= 1
    cut = [
        [text if len(text) <= room else f"{text[: room - 1]}…" for text, room in zip(row, widths)]
        for row in rows
    ]
    return [f"  {line}" for line in table(cut[0], cut[1:], width - 2)] if cut else []


def print_lines(lines: Iterable[str]) -> None:
    """Print lines."""
    for line in lines:
        print(line)


def check(path: Path) -> None:
    """Check that a file can be written, before the work whose result it is to hold; else raise ArgumentError."""
    try:
        files.check_writable(path)
    except OSError as error:
        raise ArgumentError(f"cannot write {path}: {error.strerror}") from None


def write(path: Path, content: str | bytes) -> None:
    """Write a file as `hpcoll.base.files.write_file`; where that fails, raise ArgumentError."""
    try:
        files.write_file(path, content)
    except OSError as error:
        raise ArgumentError(f"cannot write {path}: {error.strerror}") from None
    written[path] = None


def say_what_was_written() -> None:
    """Name each file that was written, however often: on stderr, for stdout may be data."""
    for path in written:
        print(printable(f"hpcoll: wrote {path}", LINE), file=sys.stderr, flush=True)


def progress(text: str, elsewhere: str = "") -> None:
    """Show how far a command is: one line of a terminal, overwritten each time; the empty text clears it.

    Where standard error is no terminal, ``elsewhere`` is printed as a line of its own, unless it is empty.
    """
    if sys.stderr.isatty():
        print(f"\r\033[K{text[: columns() - 1]}", end="", file=sys.stderr, flush=True)
    elif elsewhere:
        print(elsewhere, file=sys.stderr, flush=True)
