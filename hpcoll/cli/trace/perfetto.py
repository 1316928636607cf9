"""A trace as ui.perfetto.dev and chrome://tracing open it, in the Trace Event Format: an event in JSON on each line."""

import json
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

from hpcoll.cli.trace.owners import SliceWaits
from hpcoll.cli.trace.reading import CALL, IN_WAIT, OTHER, REGION, SERVICE, STEP, CallKind, RunTrace

_ARROW_US = 10.0  # shorter waits have no arrow
_TICK_US, _LEAST_SLICE_US = (
    0.016,
    0.05,
)  # begins are rounded to the first; a call is at least as long, so that arrows meet it
_CATEGORIES = {
    CALL: "call",
    IN_WAIT: "in wait",
    REGION: "region",
    OTHER: "other",
    STEP: "step",
    SERVICE: "service",
}
_NAMES = {"nbytes": "bytes", "nelements": "count"}  # of arguments
_POINTS = 4096  # at most, of a counter

Event: TypeAlias = dict[str, Any]


def text(trace: RunTrace, waits: SliceWaits) -> str:
    """Return the file."""
    lines = (json.dumps(event, separators=(",", ":")) for event in _events(trace, waits))
    return "[\n" + ",\n".join(lines) + "\n]\n"


def _events(trace: RunTrace, waits: SliceWaits) -> Iterator[Event]:
    places = _places(trace)
    yield from _names(trace, places)
    turn = _turns(trace)
    args = [_arguments(kind) for kind in trace.kinds]
    columns = (trace.row, trace.category, trace.kind, trace.number, trace.start, trace.length, turn)
    for row, category, kind, number, start, length, from_turn in zip(
        *(column.tolist() for column in columns)
    ):
        name, told = trace.kinds[kind].name, args[kind] | ({"call": number} if number >= 0 else {})
        if category == STEP:
            told = {"kind" if key == "type" else key: value for key, value in told.items()}
        place = places[row] if category != STEP else places[row] | {"tid": places[row]["tid"] + 1}
        end = start + (length if category in (REGION, STEP) else max(length, _LEAST_SLICE_US))
        issued = {"issued": round(start, 3)} if from_turn > start else {}
        yield _slice(_CATEGORIES[category], name, place, max(start, from_turn), end, told) | issued
    yield from _waits(trace, waits, places)
    for row, start, what in trace.lost_at:
        yield {"ph": "i", "s": "t", "cat": "missing", "name": what, **places[row], "ts": round(start, 3)}
    yield from _counters(trace, places)


def _slice(category: str, name: str, place: Event, start: float, end: float, args: Event) -> Event:
    times = {"ts": round(start, 3), "dur": round(max(end - start, 0.0), 3)}
    return {"ph": "X", "cat": category, "name": name, **place, "args": args, **times}


def _places(trace: RunTrace) -> list[Event]:
    """Return where each row is: a host is a process, a row one of its threads, with that of its steps below it."""
    lanes = 1 + max((row.lane for row in trace.rows), default=0)
    most = 1 + max((row.rank for row in trace.rows), default=0)
    places = []
    for at, row in enumerate(trace.rows):
        number = row.rank * lanes + row.lane if row.rank >= 0 else most * lanes + at
        places.append({"pid": row.host, "tid": 2 * number})
    return places


def _names(trace: RunTrace, places: list[Event]) -> Iterator[Event]:
    for number, host in enumerate(trace.hosts):
        for name, args in (("process_name", {"name": host}), ("process_sort_index", {"sort_index": number})):
            yield {"ph": "M", "name": name, "pid": number, "args": args}
    with_steps = set(trace.row[trace.category == STEP].tolist())
    for at, (row, place) in enumerate(zip(trace.rows, places)):
        rows = [(place, row.name), (place | {"tid": place["tid"] + 1}, f"{row.name} steps")]
        for where, name in rows[: 1 + (at in with_steps)]:
            yield {"ph": "M", "name": "thread_name", **where, "args": {"name": name}}
            yield {"ph": "M", "name": "thread_sort_index", **where, "args": {"sort_index": where["tid"]}}
        if row.lane == 0:
            yield {"ph": "M", "name": "hpcoll", **place, "args": trace.about[row.rank]}


def _arguments(kind: CallKind) -> Event:
    named = kind._asdict()
    named.pop("name")
    named["lane"] = named["lane"] or -1
    return {_NAMES.get(name, name): value for name, value in named.items() if value not in ("", -1)}


def _turns(trace: RunTrace) -> np.ndarray:
    """Return from when on each slice is drawn: a call in flight that waits for its turn from then on, so that none overlap in a row."""
    turn = trace.start.copy()
    in_flight = np.flatnonzero((trace.category == CALL) & (trace.lane > 0))
    order = in_flight[np.lexsort((trace.number[in_flight], trace.row[in_flight]))]
    ends = trace.start[order] + np.maximum(trace.length[order], _LEAST_SLICE_US)
    same = np.diff(trace.row[order]) == 0
    turn[order[1:]] = np.where(same, np.maximum(trace.start[order[1:]], ends[:-1]), trace.start[order[1:]])
    return turn


def _waits(trace: RunTrace, waits: SliceWaits, places: list[Event]) -> Iterator[Event]:
    """Yield the waits in calls, and arrows from the calls of the ranks that came last.

    Perfetto has an arrow lead to the slice that begins later. So it is neither that of the call nor that of the wait, but one of moving
    data, once the last rank has come.
    """
    place_of = {(row.rank, row.lane): place for row, place in zip(trace.rows, places)}
    lane, calls = np.zeros(len(trace.records), np.int64), trace.category == CALL
    lane[trace.record[calls]] = trace.lane[calls]
    for arrow, at in enumerate(np.flatnonzero(waits.length > 0).tolist()):
        owner, here, call = int(waits.owner[at]), places[trace.row[at]], {"call": int(trace.number[at])}
        start, length = float(trace.start[at]), float(waits.length[at])
        came, end = start + length, start + float(trace.length[at])
        yield _slice("wait", f"waits for rank {owner}", here, start, came, {"for": owner} | call) | {
            "cname": "terrible"
        }
        if length < _ARROW_US or end - came < 5 * _TICK_US:
            continue
        moving = _slice("moves", "moves data", here, came + 2 * _TICK_US, end - _TICK_US, call)
        yield moving | {"cname": "good"}
        late = {"cat": "late", "name": "late", "id": arrow}
        yield {
            "ph": "s",
            **late,
            **place_of[owner, int(lane[trace.record[at]])],
            "ts": round(came + _TICK_US, 3),
        }
        yield {"ph": "f", "bp": "e", **late, **here, "ts": round(came + 3 * _TICK_US, 3)}


def _counters(trace: RunTrace, places: list[Event]) -> Iterator[Event]:
    """Yield the bytes of calls so far, and the calls in flight, of each rank."""
    nbytes = np.array([max(kind.nbytes, 0) for kind in trace.kinds], np.int64)[trace.kind]
    ends = trace.start + trace.length
    is_call = (trace.category == CALL) | (trace.category == SERVICE)
    order = np.flatnonzero(is_call)
    order = order[np.argsort(trace.rank[order], kind="stable")]
    bounds = np.flatnonzero(np.diff(trace.rank[order], prepend=-1, append=-1))
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist()):
        calls = order[low:high]
        rank, pid = int(trace.rank[calls[0]]), places[trace.row[calls[0]]]["pid"]
        flying = calls[trace.lane[calls] > 0]
        ones = np.ones(len(flying), np.int64)
        times = np.concatenate([trace.start[flying], ends[flying]])
        for name, series, when, change in (
            ("total", "bytes", ends[calls], nbytes[calls]),
            ("in flight", "calls", times, np.concatenate([ones, -ones])),
        ):
            sort = np.argsort(when, kind="stable")
            when, values = when[sort], np.cumsum(change[sort])
            chosen = np.unique(np.linspace(0, len(when) - 1, min(len(when), _POINTS)).astype(np.int64))
            for time, value in zip(when[chosen].tolist(), values[chosen].tolist()):
                event = {"ph": "C", "name": f"rank {rank} {name}", "pid": pid, "ts": round(time, 3)}
                yield event | {"args": {series: value}}
