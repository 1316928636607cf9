"""The requests for which the program waits in the MPI library's `MPI.Request.Waitall`, as far as its source says.

The library's waits know nothing of hpcoll, and tell it nothing. But a thread of Python that waits in one stands at the call, in its
innermost frame, whose source and variables can be read.
"""

import ast
import linecache
import sys
from collections import ChainMap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import CO_OPTIMIZED
from itertools import islice
from types import FrameType
from typing import Any

_FRAMES_AND_OURS = 4  # references to a frame's variables: of the frame, of a local variable here, of the mapping, of an argument


def waited_for() -> list[Any]:
    """Return requests for all of which some thread waits; none where that is not known, as before Python 3.11."""
    # no other frame is kept while sources are read: with it the variables of a function that returns meanwhile would live on
    frames = [frame for frame in sys._current_frames().values() if "waitall" in map(str.lower, frame.f_code.co_names)]
    return [one for frame in frames for one in _requests(frame)]


def _requests(frame: FrameType) -> list[Any]:
    """Return the requests of the call at which a frame is, if it is one of Waitall."""
    try:
        call = ast.parse(_source(frame), mode="eval").body
        if not isinstance(call, ast.Call) or getattr(call.func, "attr", "").lower() != "waitall":
            return []
        given = [*call.args, *(one.value for one in call.keywords if one.arg == "requests")]
        with _variables(frame) as variables:
            return list(_value(given[0], variables))
    except Exception:  # another program than the source that is there, or an expression whose value is not simply to be had
        return []


def _source(frame: FrameType) -> str:
    """Return the source of the instruction that a frame executes, if it is on one line or several whole ones; else the empty string."""
    positions = getattr(frame.f_code, "co_positions", None)
    first, last, begin, end = next(islice(positions(), frame.f_lasti // 2, None), (None,) * 4) if positions else (None,) * 4
    if not first or not last or begin is None or end is None:
        return ""
    lines = [line.encode() for line in linecache.getlines(frame.f_code.co_filename, frame.f_globals)[first - 1 : last]]
    if len(lines) != last - first + 1:
        return ""
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]
    return b"".join(lines).decode(errors="replace")


@contextmanager
def _variables(frame: FrameType) -> Iterator[Mapping[str, Any]]:
    """Give a frame's variables. Before Python 3.13 they are a copy, which stays with a function's frame unless it is emptied."""
    local = frame.f_locals
    try:
        yield ChainMap(local, frame.f_globals)
    finally:
        ours = frame.f_code.co_flags & CO_OPTIMIZED and sys.version_info < (3, 13)
        if ours and sys.getrefcount(local) <= _FRAMES_AND_OURS:  # what `locals()` gave is the same object
            local.clear()


def _value(node: ast.expr, variables: Mapping[str, Any]) -> Any:
    """Return the value of an expression for which nothing needs to run: names, objects' own attributes, and lists of these."""
    if isinstance(node, ast.Name):
        return variables[node.id]
    if isinstance(node, ast.Attribute):
        return vars(_value(node.value, variables))[node.attr]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(one, variables) for one in node.elts]
    raise LookupError
