"""What was compiled, kept on disk for the user's later processes."""

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hpcoll.base.compile_once import once_per_node


def folder() -> Path:
    """Where files are kept; no folder can be made there for a user without a home."""
    chosen = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    if chosen:
        return Path(chosen, "hpcoll")
    try:
        return Path.home() / ".cache" / "hpcoll"
    except RuntimeError:
        return Path(os.devnull, "hpcoll")


def kept(name: str, source: str, make: Callable[[], bytes]) -> bytes:
    """A kept file; made where there is none, by one process of a node at a time.

    Args:
        name: Of the file; holds a digest of all that it is made from.
        source: File that it is compiled from.
        make: What makes its content.
    """
    path = folder() / name
    with suppress(OSError):
        return path.read_bytes()
    with once_per_node(name, source):
        with suppress(OSError):  # another process wrote it while this one waited
            return path.read_bytes()
        content = make()
        with suppress(OSError):  # nowhere to keep it: everybody compiles
            _write(path, content)
    return content


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all, whoever else writes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).replace(path)
