"""A page of a trace: one file with a timeline, tables and a heat map, which opens in a browser without a network.

Texts of the trace are escaped where the page is made, or set as text by its script. The script is the only one that the page's policy lets
run. Slices are columns of numbers, compressed. What does not change as one zooms is computed here.
"""

import base64
import hashlib
import html
import json
import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from hpcoll.analysis.waits import RankWaits, StragglerPlace, StragglerRow, Stragglers, judge
from hpcoll.base.text import duration, format_nbytes
from hpcoll.cli.trace.owners import SliceWaits
from hpcoll.cli.trace.reading import CALL, IN_WAIT, OTHER, REGION, STEP, CallKind, RunTrace, TraceRow

_SAME_US = 5e-4  # half of what times are told in
_DEEPEST = 8  # tracks of one row for slices that overlap
_LONGEST = 100  # waits to which the page can go
_MOST_PLACES = 30  # of the table
_TOP, _HOST, _GAP = 26, 18, 6  # pixels above the first host, of its heading, and between ranks
_HEIGHTS = {"region": 13, "call": 20, "flight": 14, "other": 16, "step": 13}  # of tracks, from top to bottom
_BINS, _TALL = 1000, 42  # columns of the overview, and its height in pixels
_RANKS, _PLACES = (
    ["rank", "host", "last", "cost", "waited", "moved", "hidden", "why"],
    ["place", "region", "most for", "calls", "waited", "moved"],
)
_NUMBERS = {"last", "cost", "waited", "moved", "hidden", "calls"}
_AVERAGE = "Times are those of one rank, on average. Only calls that took long have a place."
_LEGEND = (
    ("call", "moves data"),
    ("waited", "waits for another rank"),
    ("flight", "in flight"),
    ("step", "step of a call"),
    ("region", "region"),
    ("other", "other tools"),
)


def page(trace: RunTrace, waits: SliceWaits, ranks: Sequence[RankWaits], facts: str, title: str) -> str:
    """Return the page; ``facts``: a sentence below the verdict."""
    stragglers = judge(ranks)
    tracks, order = _tracks(trace)
    types, packed = _columns(trace, waits, order)
    about = {
        "span": float((trace.start + trace.length).max() - trace.start.min()),
        **_layout(trace, tracks),
        "kinds": [_kind_texts(kind) for kind in trace.kinds],
        "columns": types,
        "slices": len(order),
        "longest": [
            int(i) for i in np.argsort(-waits.length[order])[:_LONGEST] if waits.length[order[i]] > 0
        ],
        **_heat(ranks),
    }
    script = _text("page.js")
    return Template(_text("page.html")).substitute(
        title=html.escape(title),
        verdict=html.escape(stragglers.verdict if ranks else ""),
        facts=html.escape(facts),
        style=_text("page.css"),
        legend="".join(
            f'<li><i style="background:var(--{name})"></i>{text}</li>' for name, text in _legend(trace)
        ),
        overview=_overview(trace, waits, sum(kind in ("call", "other") for kind, *_ in tracks)),
        height=about["height"],
        sections="\n".join(_sections(stragglers)),
        about=json.dumps(about, separators=(",", ":"))
        .replace("<", "\\u003c")
        .replace(">", "\\u003e")
        .replace("&", "\\u0026"),
        columns=packed,
        script=script,
        hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text()


def _legend(trace: RunTrace) -> Iterator[tuple[str, str]]:
    there = {"call": CALL, "waited": CALL, "step": STEP, "region": REGION, "other": OTHER}
    for name, text in _LEGEND:
        is_there = trace.category == there.get(name, CALL)
        if (is_there & (trace.lane > 0) if name == "flight" else is_there).any():
            yield name, text


def _kind_texts(kind: CallKind) -> list[str]:
    """Return the name, the communicator, and lines about calls of a kind."""
    nelements = "" if kind.nelements < 0 else f"[{kind.nelements}]"
    data = (
        "" if kind.nbytes < 0 else format_nbytes(kind.nbytes),
        kind.type + nelements,
        kind.op,
        "" if kind.root < 0 else f"root {kind.root}",
        kind.algorithm and f"by {kind.algorithm}",
    )
    lines = (
        ", ".join(filter(None, texts)) for texts in (data, (kind.at, kind.region and f"in {kind.region}"))
    )
    return [kind.name, kind.comm and f" on {kind.comm}", *filter(None, lines)]


def _layout(trace: RunTrace, tracks: Sequence[tuple[str, int, int, int]]) -> dict[str, Any]:
    """Return tracks with their places and texts, headings of hosts, the height, and the track that stands for each rank."""
    hosts: list[tuple[str, int]] = []
    placed: list[dict[str, Any]] = []
    main: dict[int, int] = {}
    bottom, before = _TOP, TraceRow(-1, -1, 0, "")
    for kind, number, first, end in tracks:
        row = trace.rows[number]
        name, host = f"rank {row.rank}" if row.rank >= 0 else row.name, trace.hosts[row.host]
        is_first = (row.host, row.rank) != (before.host, before.rank) or (row.rank < 0 and row != before)
        if row.host != before.host:
            bottom += _HOST + _GAP * bool(hosts)
            hosts.append((host, bottom - _HOST))
        elif is_first:
            bottom += _GAP
        if row.rank >= 0 and (is_first or kind == "call"):
            main[row.rank] = len(placed)
        is_named = kind == "call" or (is_first and row.rank < 0)
        label = name if is_named else "in flight" if is_first and kind == "flight" else ""
        place = {"top": bottom, "height": _HEIGHTS[kind], "label": label, "who": f"{name} on {host}"}
        placed.append({"kind": kind, "first": first, "end": end, **place})
        bottom, before = bottom + _HEIGHTS[kind] + 1, row
    return {"hosts": hosts, "tracks": placed, "main": main, "height": bottom + 4}


def _tracks(trace: RunTrace) -> tuple[list[tuple[str, int, int, int]], np.ndarray]:
    """Return what kind a track is of, its row, first slice and end; and the order of the slices. Those of a track do not overlap."""
    sorts = np.array([1, 1, 0, 3, 4, 1], np.int8)[trace.category]  # regions above calls
    sorts[(trace.category == CALL) & (trace.lane > 0)] = 2
    rows = sorted(
        range(len(trace.rows)),
        key=lambda row: (trace.rows[row].host, trace.rows[row].rank, trace.rows[row].lane),
    )
    position = np.empty(len(rows), np.int64)
    position[rows] = np.arange(len(rows))
    depth = np.zeros(len(trace.start), np.int8)
    order = np.lexsort((-trace.length, trace.start, sorts, position[trace.row]))
    family = position[trace.row[order]] * 5 + sorts[order]
    bounds = np.flatnonzero(np.diff(family, prepend=-1, append=-1))
    for low, high in pairwise(bounds):
        _stack(trace, order[low:high], depth)
    order = order[np.lexsort((trace.start[order], depth[order], family))]
    whole = (position[trace.row[order]] * 5 + sorts[order]) * _DEEPEST + depth[order]
    bounds = np.flatnonzero(np.diff(whole, prepend=-1, append=-1))
    names = list(_HEIGHTS)
    slices = [(order[low], int(low), int(high)) for low, high in pairwise(bounds)]
    return [(names[sorts[first]], int(trace.row[first]), low, high) for first, low, high in slices], order


def _stack(trace: RunTrace, slices: np.ndarray, depth: np.ndarray) -> None:
    """Give slices that overlap others, sorted by their start, a depth at which they overlap none; below the deepest they share one."""
    start, end = trace.start[slices], trace.start[slices] + trace.length[slices]
    end -= _SAME_US  # steps that follow each other at once do not overlap
    if (start[1:] >= end[:-1]).all():
        return
    ends: list[float] = []
    for index, begin, until in zip(slices.tolist(), start.tolist(), end.tolist()):
        at = next((i for i, last in enumerate(ends) if last <= begin), len(ends))
        if at == len(ends) and at < _DEEPEST:
            ends.append(until)
        at = min(at, _DEEPEST - 1)
        ends[at] = max(ends[at], until)
        depth[index] = at


def _columns(trace: RunTrace, waits: SliceWaits, order: np.ndarray) -> tuple[list[tuple[str, str]], str]:
    """Return names of the columns and of their types in the browser, and all of them as text."""
    steps_that_wait = (trace.category == STEP) & np.array(
        [kind.name.startswith("wait") for kind in trace.kinds]
    )[trace.kind]
    waited = np.where(steps_that_wait, trace.length, waits.length)
    columns = {
        "start": (trace.start - trace.start.min(), "Float64Array"),
        "length": (trace.length, "Float32Array"),
        "waited": (waited, "Float32Array"),
        "owner": (waits.owner, "Int32Array"),
        "kind": (trace.kind, "Int32Array"),
        "number": (np.minimum(trace.number, 2**31 - 1), "Int32Array"),
    }
    packed = zlib.compressobj(6)
    types = {"Float64Array": "<f8", "Float32Array": "<f4", "Int32Array": "<i4"}
    parts = [
        packed.compress(values[order].astype(types[name]).tobytes()) for values, name in columns.values()
    ]
    text = base64.b64encode(b"".join([*parts, packed.flush()])).decode()
    return [(name, kind) for name, (_, kind) in columns.items()], text


def _overview(trace: RunTrace, waits: SliceWaits, tracks: int) -> str:
    """Return paths of which part of their time ranks spent in calls, and waited, over the whole run."""
    shown = (trace.category == CALL) & (trace.lane == 0) | np.isin(trace.category, (IN_WAIT, OTHER))
    begin = trace.start[shown] - trace.start.min()
    edges = np.linspace(0, (trace.start + trace.length).max() - trace.start.min(), _BINS + 1)
    paths = ""
    for name, length in (("call", trace.length), ("waited", waits.length)):
        within = np.diff(_since(begin, edges) - _since(begin + length[shown], edges))
        tall = np.rint(within / max(edges[1], 1e-12) / max(1, tracks) * _TALL).astype(int)
        ups = "".join(f"v{-up}h1" if up else "h1" for up in np.diff(tall, prepend=0))
        paths += f'<path style="fill:var(--{name})" d="M0 {_TALL}{ups}V{_TALL}"/>'
    return f'<svg viewBox="0 0 {_BINS} {_TALL}" preserveAspectRatio="none">{paths}</svg>'


def _since(times: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the sum of what has gone by at each edge since those of the times that are before it."""
    times = np.sort(times)
    before = np.searchsorted(times, edges)
    return before * edges - np.concatenate([[0.0], np.cumsum(times)])[before]


def _heat(ranks: Sequence[RankWaits]) -> dict[str, Any]:
    """Return ranks, and how long each waited for each, by their positions."""
    names = sorted({rank.rank for rank in ranks} | {owner for rank in ranks for owner in rank.waited_for})
    at = {rank: i for i, rank in enumerate(names)}
    waited = [
        (at[rank.rank], at[owner], round(seconds, 9))
        for rank in ranks
        for owner, seconds in rank.waited_for.items()
    ]
    return {"ranks": names, "heat": waited}


def _sections(stragglers: Stragglers) -> Iterator[str]:
    if not stragglers.rows:
        return
    ranks = [_RANKS, *map(_rank_cells, sorted(stragglers.rows, key=lambda row: (-row.caused_s, row.rank)))]
    yield '<div class="two">'
    yield _section("Ranks", _table(ranks, marked="" if stragglers.worst is None else str(stragglers.worst)))
    heat = '<canvas id="heat" role="img" aria-label="who waits for whom"></canvas>'
    note = '<p class="note">A row for each rank that waits, a column for each that is awaited. <span id="heat-told"></span></p>'
    yield _section("Who waits for whom", heat + note)
    yield "</div>"
    yield _section(
        "Places",
        _table([_PLACES, *map(_place_cells, stragglers.places[:_MOST_PLACES])])
        + f'<p class="note">{_AVERAGE}</p>',
    )


def _section(title: str, content: str) -> str:
    return f'<section><h2>{title}</h2><div class="scrolls">{content}</div></section>'


def _table(rows: Sequence[Sequence[str]], marked: str = "") -> str:
    """Return a table, its header first, in which `_NUMBERS` are to the right; the row that begins with ``marked`` stands out."""
    made, numbers = [], [name in _NUMBERS for name in rows[0]]
    for row in rows:
        tag = "th" if row is rows[0] else "td"
        cells = (
            f"<{tag}{' class=number' * number}>{html.escape(cell)}</{tag}>"
            for cell, number in zip(row, numbers)
        )
        made.append(f"<tr{' class=worst' * (row[0] == marked != '')}>{''.join(cells)}</tr>")
    return f"<table>{''.join(made)}</table>"


def _rank_cells(row: StragglerRow) -> list[str]:
    times = map(duration, (row.caused_s, row.waited_s, row.moved_s, row.hidden_s))
    return [str(row.rank), row.host, f"{row.last:.0%}", *times, row.why]


def _place_cells(row: StragglerPlace) -> list[str]:
    most_for = "" if row.most_for is None else f"rank {row.most_for}"
    return [
        row.place or "unknown",
        row.region,
        most_for,
        f"{row.calls:,}",
        duration(row.waited_s),
        duration(row.moved_s),
    ]
