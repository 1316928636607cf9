"""Files that commands write for their users, whole or not at all; lines on the terminal that tell how far a command is."""

import shutil
import sys
from pathlib import Path

from hpcoll.base import files
from hpcoll.base.errors import ArgumentError


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


def progress(text: str, elsewhere: str = "") -> None:
    """Show how far a command is: one line of a terminal, overwritten each time; the empty text clears it.

    Where standard error is no terminal, ``elsewhere`` is printed as a line of its own, unless it is empty.
    """
    if sys.stderr.isatty():
        print(f"\r\033[K{text[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)
    elif elsewhere:
        print(elsewhere, file=sys.stderr, flush=True)
