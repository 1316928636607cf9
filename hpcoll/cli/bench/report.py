"""Reports of a benchmark: the table of nccl-tests, or JSON with its keys, so that existing readers work. No MPI.

nccl-tests' columns come first and unchanged; for either side, the native time over the row's time follows.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from hpcoll.base.text import LINE, printable
from hpcoll.base.units import format_nbytes
from hpcoll.cli.bench.results import Measured, ResultRow, average_bus_bandwidth, total_wrong
from hpcoll.selection.config import NATIVE

_ROW = "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}"
_SIDE = "  {:>7}  {:>6}  {:>6}  {:>6}"
_PAIR = "  {:>7}  {:>7}"
_CASE = ("algorithm", "ran", "size", "count", "type", "redop", "root")
_SIDE_KEYS = (
    *("alg_bw", "bus_bw", "nwrong", "ratio", "min_us", "max_us", "avg_us", "p50_us", "p95_us", "p99_us", "stdev_us"),
    *("iterations", "batch", "work_us", "both_us", "hidden", "moved", "copy_share"),
)
_METHOD = (
    "time is the median over iterations of the time per call of the slowest rank; ratio is native time / time",
    "all algorithms take turns in one run, in random order; small calls are timed in batches; calls in place are timed on zeros",
)


@dataclass(frozen=True)
class Report:
    """A benchmark's results."""

    collective: str
    nranks: int
    heading: Sequence[str]  # lines about software and machine
    rows: Sequence[ResultRow]
    notes: Sequence[str] = ()  # remarks for the reader
    facts: dict[str, Any] = field(default_factory=dict)  # further JSON members: version, args, env, config, devices, start_time, end_time

    def blocks(self) -> Iterable[tuple[str, list[ResultRow]]]:
        """Return the rows of each algorithm, in the order of their first appearance."""
        names = list(dict.fromkeys(row.algorithm for row in self.rows))
        return [(name, [row for row in self.rows if row.algorithm == name]) for name in names]


class _Pair(NamedTuple):
    """Two columns beyond those of nccl-tests: a cell for each side of a row."""

    title: str
    name: str
    cells: Callable[[ResultRow], list[str]]


def as_nccl(report: Report) -> str:
    """Return one table per algorithm with the columns of nccl-tests."""
    lines = [f"# {printable(text, LINE)}" for text in (*report.heading, *_METHOD, *report.notes)]
    pairs = _pairs(report.rows)
    for name, rows in report.blocks():
        lines += ["#", f"# {report.collective}/{name}{_picks(rows)}", *_header(pairs), *(_row(row, pairs) for row in rows)]
        wrong = total_wrong(rows)
        lines += [
            f"# {'Out of bounds values':<20} : {wrong} {'FAILED' if wrong else 'OK'}",
            f"# {'Avg bus bandwidth':<20} : {average_bus_bandwidth(rows):g}",
        ]
    return "\n".join([*lines, "#"]) + "\n"


def _pairs(rows: Iterable[ResultRow]) -> list[_Pair]:
    """Return the further columns: of overlap mode its hidden shares, else the memory traffic where it was counted."""
    sides = [side for row in rows for side in row.sides]
    natives = {row.size: row for row in rows if row.algorithm == NATIVE}

    def hidden(row: ResultRow | None) -> list[str]:
        return _cells(row, lambda side: side.hidden and 100 * side.hidden, ".0f")

    pairs = [_Pair("native / time", "ratio", lambda row: _cells(row, lambda side: side.ratio, ".2f"))]
    if any(side.hidden is not None for side in sides):
        pairs += [_Pair("hidden (%)", "hidden", hidden), _Pair("native (%)", "hidden", lambda row: hidden(natives.get(row.size)))]
    elif any(side.moved is not None for side in sides):
        pairs += [
            _Pair("moved / size", "moved", lambda row: _cells(row, lambda side: side.moved and side.moved / max(1, row.size), ".2f")),
            _Pair("of copying (%)", "share", lambda row: _cells(row, lambda side: side.copy_share and 100 * side.copy_share, ".0f")),
        ]
    return pairs


def _cells(row: ResultRow | None, value: Callable[[Measured], float | None], form: str) -> list[str]:
    found = [None if side is None else value(side) for side in (row.both if row else (None, None))]
    return ["-" if one is None else format(one, form) for one in found]


def _header(pairs: Sequence[_Pair]) -> list[str]:
    names, units = ("time", "algbw", "busbw", "#wrong"), ("(us)", "(GB/s)", "(GB/s)", "")
    lines = [
        _ROW.format(*5 * [""]) + f"{'out-of-place':^33}{'in-place':^33}" + "".join(f"{pair.title:^18}" for pair in pairs),
        _ROW.format("size", "count", "type", "redop", "root") + 2 * _SIDE.format(*names),
        _ROW.format("(B)", "(elements)", "", "", "") + 2 * _SIDE.format(*units) + len(pairs) * _PAIR.format("(out)", "(in)"),
    ]
    lines[1] += "".join(_PAIR.format(pair.name, pair.name) for pair in pairs)
    return [f"#{line[1:]}".rstrip() for line in lines]


def _row(row: ResultRow, pairs: Sequence[_Pair]) -> str:
    line = _ROW.format(row.size, row.count, row.type, row.redop, row.root)
    for side in row.both:
        cells = ["N/A"] * 4
        if side is not None:
            wrong = "N/A" if side.nwrong is None else str(side.nwrong)
            cells = [_fitted(side.p50_us, 7), _fitted(side.alg_bw, 6), _fitted(side.bus_bw, 6), wrong]
        line += _SIDE.format(*cells)
    return line + "".join(_PAIR.format(*pair.cells(row)) for pair in pairs)


def _fitted(value: float, width: int) -> str:
    """Return a number with two decimals, or with as many as leave it within ``width`` columns."""
    for decimals in (2, 1, 0):
        text = f"{value:.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:.1e}"


def _picks(rows: Sequence[ResultRow]) -> str:
    """Say what ran where that is not what the block is named after: ``: direct from 8 B, ring from 64 KiB``."""
    runs = [(ran, next(group).size) for ran, group in groupby(rows, key=lambda row: row.ran)]
    if all(ran == rows[0].algorithm for ran, _ in runs):
        return ""
    return ": " + ", ".join(f"{ran} from {format_nbytes(size)}" for ran, size in runs)


def document(report: Report) -> dict[str, Any]:
    """Return one JSON document with the keys of nccl-tests; results carry the algorithm's name."""
    wrong = total_wrong(report.rows)
    ours = {name: average_bus_bandwidth(rows) for name, rows in report.blocks()}
    return {
        **report.facts,
        "collective": report.collective,
        "nranks": report.nranks,
        "results": [_json_row(row) for row in report.rows],
        "out_of_bounds": {"count": wrong, "okay": wrong == 0},
        "average_bus_bandwidth": {"bandwidth": average_bus_bandwidth(report.rows), "okay": "unchecked", "algorithms": ours},
        "notes": list(report.notes),
        "errors": [f"{wrong} wrong elements"] if wrong else [],
    }


def as_json(report: Report) -> str:
    """Return the `document` as text."""
    return json.dumps(document(report), indent=1) + "\n"


def _json_row(row: ResultRow) -> dict[str, Any]:
    sides = [None if side is None else {"time": side.p50_us, **{key: getattr(side, key) for key in _SIDE_KEYS}} for side in row.both]
    return {**{key: getattr(row, key) for key in _CASE}, **dict(zip(("out_of_place", "in_place"), sides))}


FORMATS = {"nccl": as_nccl, "json": as_json}
