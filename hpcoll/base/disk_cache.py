"""What was compiled or found out, kept on disk for the user's later processes."""

import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from hpcoll.base.compile_once import once_per_node

_PATIENCE_S = 1.0
_TEXT = "hpcoll: compiling for this machine, once"
_spoken: list[str] = []  # what was said, by this process or by one that it found at work


def folder() -> Path:
    """Where files are kept; no folder can be made there for a user without a home."""
    chosen = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    if chosen:
        return Path(chosen, "hpcoll")
    try:
        return Path.home() / ".cache" / "hpcoll"
    except RuntimeError:
        return Path(os.devnull, "hpcoll")


def kept(name: str, source: str, make: Callable[[], bytes], text: str = _TEXT) -> bytes:
    """A kept file; made where there is none, by one process of a node at a time.

    Args:
        name: Of the file; holds a digest of all that it is made from.
        source: File that it is compiled from.
        make: What makes its content.
        text: Said when that takes longer than a second.
    """
    return _kept(name, source, make, text, waits=True)


def kept_all(makers: Mapping[str, Callable[[], bytes]], source: str) -> list[bytes]:
    """Several files as `kept`, by name. Processes of a node share the work: each leaves those that others are making for last."""
    found = {name: _kept(name, source, make, _TEXT, waits=False) for name, make in makers.items()}
    return [found[name] or _kept(name, source, make, _TEXT, waits=True) for name, make in makers.items()]


def _kept(name: str, source: str, make: Callable[[], bytes], text: str, *, waits: bool) -> bytes:
    path = folder() / name
    with suppress(OSError):
        return path.read_bytes()
    with once_per_node(name, source, waits=waits) as mine:
        if not mine:
            _spoken.append(text)
            return b""
        with suppress(OSError):  # another process wrote it while this one waited
            return path.read_bytes()
        with _said(text):
            content = make()
        with suppress(OSError):  # nowhere to keep it: everybody compiles
            _write(path, content)
    return content


@contextmanager
def _said(text: str) -> Iterator[None]:
    """Say something on stderr when what happens within takes longer than a second; once per process."""
    timer = threading.Timer(_PATIENCE_S, _say, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _say(text: str) -> None:
    if text not in _spoken:
        _spoken.append(text)
        print(text, file=sys.stderr, flush=True)


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all, whoever else writes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).replace(path)
