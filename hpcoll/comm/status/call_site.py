"""The call site: where a program called hpcoll, noted at little cost, and put into words when somebody asks."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_stack
from types import CodeType, FrameType
from typing import TypeAlias

from hpcoll.base.text import LINE, printable

Place: TypeAlias = tuple[CodeType, int] | None  # and the offset of an instruction in it

# what cannot call anything before a call has ended in which a thread waits
PROCESS = "process"
COMMUNICATOR = "communicator"

_PACKAGE = __name__.partition(".")[0]
_PASSED_OVER = (_PACKAGE, "contextlib", "torch")
_OUR_THREADS = f"{_PACKAGE}-"  # how their names begin
_METHODS = "hpcoll.comm.methods.blocking"  # how their modules begin; their variable ``context`` tells the communicator
_here = threading.local()


@contextmanager
def standing_in(place: Place) -> Iterator[None]:
    """Let this thread stand in for a call that the program made elsewhere."""
    before = getattr(_here, "place", None)
    _here.place = place
    try:
        yield
    finally:
        _here.place = before


def place_of_caller() -> Place:
    """Return the innermost place that is neither hpcoll's nor torch's, nor of a context manager that hpcoll has entered."""
    elsewhere: Place = getattr(_here, "place", None)
    if elsewhere is not None:
        return elsewhere
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _PASSED_OVER:
        frame = frame.f_back
    return None if frame is None else (frame.f_code, frame.f_lasti)


def left_alone(context: object) -> bool:
    """Say whether nobody but the caller is inside a blocking collective of a context: no other thread, and no call further up."""
    frames = [frame for top in sys._current_frames().values() for frame, _ in walk_stack(top)]
    inside = [frame for frame in frames if frame.f_globals.get("__name__", "").startswith(_METHODS)]
    return sum(frame.f_locals.get("context") is context for frame in inside) == 1


def holds() -> str:
    """Return what this thread holds up while it waits in a collective: the whole process, where it is the program's only thread."""
    main = threading.main_thread()
    only = all(thread is main or thread.name.startswith(_OUR_THREADS) for thread in threading.enumerate())
    return PROCESS if only and threading.current_thread() is main else COMMUNICATOR


def in_words(place: Place) -> str:
    """Return file and line of a place."""
    if place is None:
        return "an unknown place"
    code, at = place
    line = next(
        (line for first, end, line in code.co_lines() if first <= at < end and line), code.co_firstlineno
    )
    return f"{printable(code.co_filename, LINE)}:{line}"
