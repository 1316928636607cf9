"""The disk cache: machine code and findings that later processes of the user find again. One process of a node makes a file at a time.

A site may offer folders of its own, which are searched first and only read. A file or folder that another user may have written is not
used (`hpcoll.base.files.OwnedFolder`). Where the user's own folder cannot be written, the node's takes its place, until the node clears
it. Locks are files of the node and not messages, so that ranks of unrelated programs meet.
"""

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from itertools import product
from pathlib import Path

from hpcoll.base.files import OwnedFolder, UntrustedError
from hpcoll.base.launchers import local_rank
from hpcoll.base.text import LINE, printable

SITE = "HPCOLL_CACHE"  # variable that names a site's folders
_MODE, _SHARED_MODE = 0o700, 0o755  # of new folders
_SAID_AFTER_S, _WAIT_SAID_AFTER_S = 1.0, 120.0
_PROGRESS_S = 10.0  # from one line that says how far it is to the next
_PATIENCE_S = 300.0  # with another process that makes the file: on a busy machine it takes minutes
_BEGINS = "hpcoll: process {} on {} compiles for this kind of machine, once: 10 to 30 s as a rule"
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


def kept(name: str, make: Callable[[], bytes], text: str = "") -> bytes:
    """Return a file's content; where there is no such file, one process of the node makes it.

    The name has a digest of all that the content depends on. ``text`` is printed to stderr when ``make`` takes longer than a second, in
    place of what is said of compiling.
    """
    if text:
        return _kept(name, make, text, waits=True) or b""
    return kept_all({name: make})[0]


def kept_all(makers: Mapping[str, Callable[[], bytes]]) -> list[bytes]:
    """Return the content of several files, by name, as `kept`; each process leaves for last what others are making."""
    contents = {name: found(name) for name in makers}
    missing = [name for name, content in contents.items() if content is None]
    if missing:
        with _reported(missing) as ready:
            for waits, name in product((False, True), missing):
                if contents[name] is None:
                    contents[name] = _kept(name, makers[name], waits=waits)
                    ready.update({name} if contents[name] is not None else ())
    return [content or b"" for content in contents.values()]


def _kept(name: str, make: Callable[[], bytes], text: str = "", *, waits: bool) -> bytes | None:
    """Return a file as `kept`; None where another process is making it and this one does not wait."""
    content = found(name)
    if content is not None:
        return content
    with ExitStack() as lock:
        held = lock.enter_context(_lock(name, 0.0))
        if not (held or waits):
            return None
        if not held:
            with _said(_WAITS, _WAIT_SAID_AFTER_S, among=2):  # at most one of a node's first two is compiling
                lock.enter_context(_lock(name, _PATIENCE_S))
        content = found(name)  # another process may have made it meanwhile
        if content is not None:
            return content
        if not held:  # the other process could not keep its result: all compile now, without waiting
            lock.close()
        with _said(text) if text else nullcontext():
            content = make()
        keep(name, content)
    return content


def keep(name: str, content: bytes) -> None:
    """Write a file, of a name that stays the same, into the first folder that takes it."""
    for opened in (own_folder,) if _chosen else (own_folder, lock_folder):
        # it cannot be made, belongs to another user, or its disk is full
        with (
            suppress(OSError),
            closing(opened()) as one,
        ):
            one.write(name, content)
            return


def _own_folders() -> tuple[Path, ...]:
    return (folder(),) if _chosen else (folder(), node_folder())


def found(name: str) -> bytes | None:
    """Return a file of the site's folders or the user's, if it is whole and from a trusted user."""
    site = () if _chosen else (Path(one) for one in os.environ.get(SITE, "").split(os.pathsep) if one)
    for path in (*site, *_own_folders()):
        try:
            with closing(OwnedFolder(path)) as one:
                return one.read(name)
        except UntrustedError as error:
            _say(f"hpcoll: {error}; it is not used, and what it should hold is compiled again", among=1)
        except OSError:
            continue
    return None


@contextmanager
def _lock(name: str, patience_s: float, without: bool = True) -> Iterator[bool]:
    """Hold the node's lock of a file; yield False where another process has it, ``without`` where there is no folder for locks."""
    with ExitStack() as stack:
        try:
            node = stack.enter_context(closing(lock_folder()))
            held = stack.enter_context(node.lock(name, patience_s))
        except OSError as error:
            if isinstance(error, UntrustedError):
                _say(
                    f"hpcoll: {error}; the processes of this node do not share the work of compiling", among=1
                )
            held = without
        yield held


@contextmanager
def _reported(names: Sequence[str]) -> Iterator[set[str]]:
    """Let one process of the node say that these files are made, how far that is, and when it is done.

    Yields a set for the names of those that are ready.
    """
    ready, done, begun = set[str](), threading.Event(), time.monotonic()
    with _lock(f"{names[0]}.said", 0.0, without=not local_rank(os.environ)) as speaks:
        thread = threading.Thread(target=_report, args=(names, ready, done, begun), daemon=True)
        if speaks:
            thread.start()
        else:
            _spoken.append(_BEGINS)
        try:
            yield ready
        finally:
            done.set()
            if speaks:
                thread.join()


def _report(names: Sequence[str], ready: set[str], done: threading.Event, begun: float) -> None:
    """Print lines for work that takes long, until it is done; of work that follows, only where that takes very long."""
    if done.wait(_PROGRESS_S if _BEGINS in _spoken else _SAID_AFTER_S):
        return
    if _BEGINS not in _spoken:
        _spoken.append(_BEGINS)
        _say(_BEGINS.format(os.getpid(), os.uname().nodename))
    while not done.wait(_PROGRESS_S):
        nready = sum(name in ready or found(name) is not None for name in names)
        _say(
            f"hpcoll: still compiling after {time.monotonic() - begun:.0f} s: {nready} of {len(names)} parts are ready"
        )
    if ready.issuperset(names):
        _say(f"hpcoll: compiled in {time.monotonic() - begun:.0f} s, {_place_of(names[0])}")


def _place_of(name: str) -> str:
    """Return where a file is kept, in words."""
    first, *_ = places = _own_folders()
    file = next((path for path in places if (path / name).is_file() and (path / name).stat().st_size), None)
    if file is None:
        return "and not kept, since no folder takes it: every process compiles"
    return f"and kept in {file}" + (
        f", as long as the node keeps that: {first} cannot be used" if file != first else ""
    )


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
