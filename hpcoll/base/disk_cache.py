"""The disk cache: machine code and findings that later processes of the user find again. One process of a node makes a file at a time.

A site may offer folders of its own, which are searched first and only read. A file or folder that another user may have written is not
used (`hpcoll.base.files.OwnedFolder`). Locks are files of the node and not messages, so that ranks of unrelated programs meet.
"""

import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from hpcoll.base.files import OwnedFolder, UntrustedError
from hpcoll.base.launchers import local_rank
from hpcoll.base.text import LINE, printable

SITE = "HPCOLL_CACHE"  # variable that names a site's folders
_MODE, _SHARED_MODE = 0o700, 0o755  # of new folders
_SAID_AFTER_S, _WAIT_SAID_AFTER_S = 1.0, 30.0
_PATIENCE_S = 120.0  # with another process that makes the file
_TEXT = "hpcoll: compiling for this machine, once"
_WAITS = f"hpcoll: waiting for another process of this node that compiles, for {_PATIENCE_S:.0f} s at most"
_spoken: list[str] = []  # texts that this process, or one that it found at work, has printed
_chosen: list[Path] = []  # the folder that `keep_in` was given


def folder() -> Path:
    """Return the folder of this user's files; for a user without a home the node's."""
    above = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    if _chosen or above:
        return _chosen[0] if _chosen else Path(above or "", "hpcoll")
    try:
        return Path.home() / ".cache" / "hpcoll"
    except RuntimeError:
        return node_folder()


def node_folder() -> Path:
    """Return the folder of this user on this node."""
    return Path(tempfile.gettempdir(), f"hpcoll-{os.geteuid()}")


def own_folder() -> OwnedFolder:
    """Open the folder of this user's files, and make it where it is missing; else raise OSError, whose text says why."""
    return OwnedFolder(folder(), _SHARED_MODE if _chosen else _MODE)


def lock_folder() -> OwnedFolder:
    """Open the folder of this user's locks on this node, as `own_folder`."""
    return OwnedFolder(node_folder(), _MODE)


def keep_in(path: Path) -> None:
    """Use one folder alone from now on, whose files other users can read."""
    _chosen[:] = [path]


def kept(name: str, make: Callable[[], bytes], text: str = _TEXT) -> bytes:
    """Return a file's content; where there is no such file, one process of the node makes it.

    The name has a digest of all that the content depends on. ``text`` is printed to stderr when ``make`` takes longer than a second.
    """
    return _kept(name, make, text, waits=True) or b""


def kept_all(makers: Mapping[str, Callable[[], bytes]]) -> list[bytes]:
    """Return the content of several files, by name, as `kept`; each process leaves for last what others are making."""
    found = {name: _kept(name, make, _TEXT, waits=False) for name, make in makers.items()}
    return [kept(name, makers[name]) if content is None else content for name, content in found.items()]


def _kept(name: str, make: Callable[[], bytes], text: str, *, waits: bool) -> bytes | None:
    """Return a file as `kept`; None where another process is making it and this one does not wait."""
    content = _found(name)
    if content is not None:
        return content
    with ExitStack() as stack:
        keeper = None
        with suppress(OSError):  # no folder: every process compiles
            keeper = stack.enter_context(closing(own_folder()))
        if keeper is not None:
            lock = stack.enter_context(ExitStack())
            held = lock.enter_context(_lock(name, 0.0))
            if not (held or waits):
                _spoken.append(text)
                return None
            if not held:
                with _said(_WAITS, _WAIT_SAID_AFTER_S, among=2):  # at most one of a node's first two is compiling
                    lock.enter_context(_lock(name, _PATIENCE_S))
            content = _found(name)  # another process may have made it meanwhile
            if content is not None:
                return content
            if not held:  # the other process could not keep its result: all compile now, without waiting
                lock.close()
        with _said(text):
            content = make()
        if keeper is not None:
            with suppress(OSError):  # the disk is full
                keeper.write(name, content)
    return content


def _found(name: str) -> bytes | None:
    """Return a file of the site's folders or the user's, if it is whole and from a trusted user."""
    site = () if _chosen else (Path(one) for one in os.environ.get(SITE, "").split(os.pathsep) if one)
    for path in (*site, folder()):
        try:
            with closing(OwnedFolder(path)) as one:
                return one.read(name)
        except UntrustedError as error:
            _say(f"hpcoll: {error}; it is not used, and what it should hold is compiled again", among=1)
        except OSError:
            continue
    return None


@contextmanager
def _lock(name: str, patience_s: float) -> Iterator[bool]:
    """Hold the node's lock of a file; yield False where another process has it, True where there is no folder for locks."""
    with ExitStack() as stack:
        try:
            node = stack.enter_context(closing(lock_folder()))
            held = stack.enter_context(node.lock(name, patience_s))
        except OSError as error:
            if isinstance(error, UntrustedError):
                _say(f"hpcoll: {error}; the processes of this node do not share the work of compiling", among=1)
            held = True
        yield held


@contextmanager
def _said(text: str, after_s: float | None = None, among: int | None = None) -> Iterator[None]:
    """Print a text to stderr when the block takes longer than ``after_s``, a second by default."""
    timer = threading.Timer(_SAID_AFTER_S if after_s is None else after_s, _say, (text, among))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _say(text: str, among: int | None = None) -> None:
    """Print a text to stderr once, on the first ``among`` processes of a node only, as far as a launcher numbers them."""
    if text not in _spoken and (among is None or (local_rank(os.environ) or 0) < among):
        _spoken.append(text)
        print(printable(text, LINE), file=sys.stderr, flush=True)
