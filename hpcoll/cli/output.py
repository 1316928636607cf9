"""Files that commands write for their users: whole or not at all, and problems as errors of one line."""

import io
from pathlib import Path
from typing import Any

from hpcoll.base import files
from hpcoll.base.errors import ArgumentError


def check(path: Path) -> None:
    """Try that a file can be written, before the work whose result it is to hold.

    Raises:
        ArgumentError: It cannot.
    """
    try:
        files.check_writable(path)
    except OSError as error:
        raise ArgumentError(f"cannot write {path}: {error.strerror}") from None


def write(path: Path, content: str | bytes) -> None:
    """Write a file as `hpcoll.base.files.write_file`.

    Raises:
        ArgumentError: The file is as it was.
    """
    try:
        files.write_file(path, content)
    except OSError as error:
        raise ArgumentError(f"cannot write {path}: {error.strerror}") from None


def write_figure(path: Path, figure: Any, dpi: float) -> None:
    """Write a figure of matplotlib, in the format that the file's suffix names; raises as `write`."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix[1:].lower(), dpi=dpi)
    write(path, drawn.getvalue())
