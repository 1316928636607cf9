"""Slices of traces that other tools write, in Chrome's JSON: an array of events, or an object with ``traceEvents``."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from hpcoll.base.errors import ArgumentError
from hpcoll.base.json_fields import read_json
from hpcoll.base.text import LINE, printable, quoted

FARTHEST_US = 1e17  # of times, some 3000 years


class ForeignSlice(NamedTuple):
    """A slice; times are microseconds."""

    host: str
    row: str
    name: str
    start: float
    length: float


def slices(file: str) -> Iterator[ForeignSlice]:
    """Yield the slices of a file; ArgumentError names the event of what is none."""
    content = read_json(file, file)
    events = content.get("traceEvents") if isinstance(content, dict) else content
    if not isinstance(events, list):
        raise ArgumentError(
            f"{printable(file, LINE)}: expected a trace of hpcoll's, or a list of events, or an object with traceEvents"
        )
    names, begun = dict[tuple[str, ...], str](), dict[tuple[str, ...], list[Any]]()
    for event in _names(events):
        if event.get("ph") == "M":
            kind, named = event.get("name"), str((event.get("args") or {}).get("name", ""))
            names[_place(event)[: 2 if kind == "thread_name" else 1]] = printable(named)
    for i, event in enumerate(events):
        try:
            phase, place = event.get("ph"), _place(event)
            if phase == "B":
                begun.setdefault(place, []).append(event)
            if phase == "E" and begun.get(place):
                first = begun[place].pop()
                event = {**event, **first, "ph": "X", "dur": max(0, event["ts"] - first["ts"])}
            if event.get("ph") == "X":
                start, length = float(event["ts"]), float(event.get("dur", 0))
                if not (abs(start) <= FARTHEST_US and 0 <= length <= FARTHEST_US):
                    raise ArgumentError(
                        f"expected finite times and a duration of at least 0, got ts {quoted(start)}, dur {quoted(length)}"
                    )
                host, row = names.get(place[:1], f"node {place[0]}"), names.get(place, place[1])
                yield ForeignSlice(host, row, printable(str(event.get("name", ""))), start, length)
        except ArgumentError as error:
            raise ArgumentError(f"{printable(file, LINE)}, event {i + 1}: {error}") from None
        except (ValueError, TypeError, AttributeError, LookupError, OverflowError):
            raise ArgumentError(
                f"{printable(file, LINE)}, event {i + 1}: expected an object with ts, dur, pid, tid and args, got another one"
            ) from None


def _names(events: list[Any]) -> Iterator[dict[str, Any]]:
    """Yield those events that may be names."""
    return (
        event for event in events if isinstance(event, dict) and isinstance(event.get("args") or {}, dict)
    )


def _place(event: dict[str, Any]) -> tuple[str, str]:
    return printable(str(event.get("pid", 0))), printable(str(event.get("tid", 0)))
