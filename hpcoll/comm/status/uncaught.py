"""Errors that a program does not catch, as they are printed: without hpcoll's own frames, and a table of ranks once per node.

The errors themselves keep everything; only ``sys.excepthook`` and ``threading.excepthook`` leave something out. Of an exception that
hpcoll does not raise on purpose they leave out nothing, unless a function of the program's own has raised it, an operator say.
"""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any
from zlib import crc32

from hpcoll.base.errors import ROW, HpcollError, SettingsError
from hpcoll.base.text import LINE, printable
from hpcoll.selection.agreement import first_of_node
from hpcoll.selection.config import FULL, TRACEBACK

_PACKAGE = __name__.partition(".")[0]
# modules above a program that ``python -m mpi4py`` starts
_LAUNCHERS = ("runpy", "mpi4py.run", "mpi4py.__main__")
# that hpcoll calls
_LIBRARIES = {*sys.stdlib_module_names, _PACKAGE, "llvmlite", "mpi4py", "numba", "numpy", "torch"} - {
    "__main__"
}


def install() -> None:
    """Let hooks print what a program does not catch; those of the program's own, set before, are called by them."""
    before = sys.excepthook
    in_threads = threading.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Print an error of the main thread."""
        if isinstance(error, SettingsError) and before is sys.__excepthook__:
            if first_of_node("settings"):
                _print(printable(f"hpcoll: error: {error}", LINE) + "\n")
            return
        with _shortened(error, trace) as shorter:
            if shorter and before is sys.__excepthook__:
                _print_once(error)
            else:
                before(kind, error, error.__traceback__ if shorter else trace)

    def show_in_thread(given: Any) -> None:
        with _shortened(given.exc_value, given.exc_traceback) as shorter:
            trace = given.exc_value.__traceback__ if shorter else given.exc_traceback
            in_threads(threading.ExceptHookArgs((given.exc_type, given.exc_value, trace, given.thread)))

    sys.excepthook = show
    threading.excepthook = show_in_thread


@contextmanager
def _shortened(error: BaseException | None, trace: TracebackType | None) -> Iterator[bool]:
    """Take out of an error, and of those before it, what nobody needs to see, for a while; say whether there was any."""
    kept = list[tuple[BaseException, TracebackType | None, TracebackType | None]]()
    one = error
    refused = False
    while one is not None and not _shows_all() and one not in [before for before, *_ in kept]:
        refused = refused or _on_purpose(one)  # what it was raised from is told, too: its text says why
        kept.append(
            (one, one.__traceback__, shown(trace if one is error else one.__traceback__, on_purpose=refused))
        )
        refused = refused and one.__cause__ is not None
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    try:
        for one, _, shorter in kept:
            one.__traceback__ = shorter
        yield any(shorter is not whole for _, whole, shorter in kept)
    finally:
        for one, whole, _ in kept:
            one.__traceback__ = whole


def briefly(error: BaseException) -> BaseException:
    """Return an error that mpi4py is to print, without its traceback."""
    return error if _shows_all() else error.with_traceback(None)


def _shows_all() -> bool:
    return os.environ.get(TRACEBACK) == FULL


def _on_purpose(error: BaseException) -> bool:
    return isinstance(error, HpcollError) or (
        error.__suppress_context__ and isinstance(error.__context__, HpcollError)
    )


def shown(trace: TracebackType | None, *, on_purpose: bool) -> TracebackType | None:
    """Return what is to be seen of a traceback: all but frames of hpcoll and what it calls, and of what has started the program.

    Args:
        trace: The traceback.
        on_purpose: hpcoll raises the error, and its text says why; else all is to be seen where hpcoll, or what it calls, has raised it.
    """
    places = []
    while trace is not None:
        places.append(trace)
        trace = trace.tb_next
    hidden, ours = list[bool](), False  # the frame before is hpcoll's, or one that it has called
    for place in places:
        package = _module(place.tb_frame).partition(".")[0]
        ours = package == _PACKAGE or (ours and package in _LIBRARIES)
        hidden.append(ours)
    if True not in hidden or (ours and not on_purpose):
        return places[0] if places else None
    seen: TracebackType | None = None
    for place, ours in zip(reversed(places), reversed(hidden)):
        if not ours and _module(place.tb_frame) not in _LAUNCHERS:
            seen = TracebackType(seen, place.tb_frame, place.tb_lasti, place.tb_lineno)
    return seen


def _module(frame: FrameType) -> str:
    """Return the module of a frame, by the name under which it would be imported: of what ``python -m`` runs, too."""
    spec = frame.f_globals.get("__spec__")
    return str(frame.f_globals.get("__name__", "") if spec is None else spec.name)


def _print_once(error: BaseException) -> None:
    """Print an error in one piece; its table where no other rank of the node has printed that."""
    from traceback import format_exception

    whole = "".join(format_exception(error))
    rows = getattr(error, "rows", ())
    if rows:
        sentence = str(error).split(ROW)[0].removesuffix(":")
        given = error.args
        error.args = (f"{sentence}; another rank of this node shows more",)
        part = "".join(format_exception(error))
        error.args = given
        name = getattr(error, "failure", "") or repr(rows)
        whole = whole if first_of_node(f"table-{crc32(name.encode())}") else part
    _print(whole)


def _print(text: str) -> None:
    if sys.stderr is not None:
        print(text, end="", file=sys.stderr, flush=True)
