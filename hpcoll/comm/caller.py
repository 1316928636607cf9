"""Where a program called hpcoll: noted at little cost, and put into words when somebody asks."""

import sys
from types import CodeType, FrameType
from typing import TypeAlias

Place: TypeAlias = tuple[CodeType, int] | None  # and the offset of an instruction in it

_PACKAGE = __name__.partition(".")[0]


def place_of_caller() -> Place:
    """The innermost place that is not hpcoll's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        frame = frame.f_back
    return None if frame is None else (frame.f_code, frame.f_lasti)


def in_words(place: Place) -> str:
    """File and line of a place."""
    if place is None:
        return "an unknown place"
    code, at = place
    line = next((line for first, end, line in code.co_lines() if first <= at < end and line), code.co_firstlineno)
    return f"{code.co_filename}:{line}"
