"""Writes findings: the columns of nccl-tests or of the OSU benchmarks, JSON, or CSV, so that existing readers work. No MPI.

nccl-tests' columns come first and unchanged; the native time over the row's time follows for either side.
"""

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

from hpcoll.base.text import LINE, printable
from hpcoll.base.units import format_nbytes
from hpcoll.cli.bench.results import Measured, ResultRow, average_bus_bandwidth, total_wrong
from hpcoll.selection.config import NATIVE

_NCCL = "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}"
_NCCL_SIDE = "  {:>7}  {:>6}  {:>6}  {:>6}"
_NCCL_RATIOS = "  {:>7}  {:>7}"
_NCCL_TRAFFIC = (("moved / size", "moved"), ("of copying (%)", "share"))  # titles over two columns, and of each
_NCCL_HIDDEN = (("hidden (%)", "hidden"), ("native (%)", "hidden"))  # in overlap mode, for either side
_OSU = "{:<12} {:>18} {:>18} {:>18} {:>12}"
_OSU_LATENCY = ("# Size", "Avg Latency(us)", "Min Latency(us)", "Max Latency(us)", "Iterations")
_OSU_OVERLAP = ("# Size", "Overall(us)", "Compute(us)", "Pure Comm.(us)", "Overlap(%)")
_CASE = ("algorithm", "ran", "size", "count", "type", "redop", "root")
_DETAILS = (
    *("ratio", "min_us", "max_us", "avg_us", "p50_us", "p95_us", "p99_us", "stdev_us", "iterations", "batch"),
    *("work_us", "both_us", "hidden", "moved", "copy_share"),
)
_CSV = ("collective", "nranks", *_CASE, "side", "time_us", "alg_bw", "bus_bw", "nwrong", *_DETAILS)
_METHOD = (
    "time is the median over iterations of the time per call of the slowest rank; ratio is native time / time",
    "all algorithms take turns in one run, in random order; small calls are timed in batches; calls in place are timed on zeros",
)


@dataclass(frozen=True)
class Report:
    """Everything that is written.

    Attributes:
        collective, nranks: What ran on how many ranks.
        heading: Lines about software and machine.
        rows: Results.
        notes: What the reader should know.
        facts: Further JSON members: version, args, env, config, devices, start_time, end_time.
    """

    collective: str
    nranks: int
    heading: Sequence[str]
    rows: Sequence[ResultRow]
    notes: Sequence[str] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    def blocks(self) -> Iterable[tuple[str, list[ResultRow]]]:
        """Rows of each algorithm, in the order of their first appearance."""
        names = list(dict.fromkeys(row.algorithm for row in self.rows))
        return [(name, [row for row in self.rows if row.algorithm == name]) for name in names]


def as_nccl(report: Report) -> str:
    """One table per algorithm with the columns of nccl-tests."""
    lines = [f"# {printable(text, LINE)}" for text in (*report.heading, *_METHOD, *report.notes)]
    natives = {row.size: row for row in report.rows if row.algorithm == NATIVE}
    titles: Sequence[tuple[str, str]] = ()
    more: Callable[[ResultRow], str] = _nothing
    if _is_overlap(report.rows):
        titles, more = _NCCL_HIDDEN, partial(_nccl_hidden, natives)
    elif any(side.moved is not None for row in report.rows for side in row.sides):
        titles, more = _NCCL_TRAFFIC, _nccl_traffic
    for name, rows in report.blocks():
        lines += ["#", f"# {report.collective}/{name}{_picks(rows)}", *_nccl_header(titles)]
        lines += [_nccl_row(row) + more(row) for row in rows]
        wrong = total_wrong(rows)
        lines += [
            f"# {'Out of bounds values':<20} : {wrong} {'FAILED' if wrong else 'OK'}",
            f"# {'Avg bus bandwidth':<20} : {average_bus_bandwidth(rows):g}",
        ]
    return "\n".join([*lines, "#"]) + "\n"


def _nccl_header(more: Sequence[tuple[str, str]]) -> list[str]:
    """Three lines of titles; ``more``: of further pairs of columns."""
    titles = [f"{'out-of-place':^33}", f"{'in-place':^33}", f"{'native / time':^18}"]
    names, units = ("time", "algbw", "busbw", "#wrong"), ("(us)", "(GB/s)", "(GB/s)", "")
    lines = [
        _NCCL.format("", "", "", "", "") + "".join(titles),
        _NCCL.format("size", "count", "type", "redop", "root") + 2 * _NCCL_SIDE.format(*names) + _NCCL_RATIOS.format("ratio", "ratio"),
        _NCCL.format("(B)", "(elements)", "", "", "") + 2 * _NCCL_SIDE.format(*units) + _NCCL_RATIOS.format("(out)", "(in)"),
    ]
    if more:
        words = "".join(_NCCL_RATIOS.format(word, word) for _, word in more)
        under = len(more) * _NCCL_RATIOS.format("(out)", "(in)")
        lines = [line + text for line, text in zip(lines, ("".join(f"{title:^18}" for title, _ in more), words, under))]
    return [f"#{line[1:]}".rstrip() for line in lines]


def _nccl_row(row: ResultRow) -> str:
    line = _NCCL.format(row.size, row.count, row.type, row.redop, row.root)
    for side in (row.out_of_place, row.in_place):
        cells = ["N/A"] * 4
        if side is not None:
            cells = [_fitted(side.p50_us, 7), _fitted(side.alg_bw, 6), _fitted(side.bus_bw, 6), _or(side.nwrong, "N/A")]
        line += _NCCL_SIDE.format(*cells)
    ratios = ["-" if side is None or side.ratio is None else f"{side.ratio:.2f}" for side in (row.out_of_place, row.in_place)]
    return line + _NCCL_RATIOS.format(*ratios)


def _nothing(row: ResultRow) -> str:
    return ""


def _nccl_traffic(row: ResultRow) -> str:
    """Bytes moved for each of the message, and the share of the rate of copying in percent."""
    sides = row.out_of_place, row.in_place
    moved = ["-" if side is None or side.moved is None else f"{side.moved / max(1, row.size):.2f}" for side in sides]
    share = ["-" if side is None or side.copy_share is None else f"{100 * side.copy_share:.0f}" for side in sides]
    return _NCCL_RATIOS.format(*moved) + _NCCL_RATIOS.format(*share)


def _nccl_hidden(natives: Mapping[int, ResultRow], row: ResultRow) -> str:
    """What overlap hides, in percent: of this row, then of the native one at the same size."""
    cells = []
    for one in (row, natives.get(row.size)):
        sides = (one.out_of_place, one.in_place) if one else (None, None)
        cells += ["-" if side is None or side.hidden is None else f"{100 * side.hidden:.0f}" for side in sides]
    return _NCCL_RATIOS.format(*cells[:2]) + _NCCL_RATIOS.format(*cells[2:])


def _is_overlap(rows: Iterable[ResultRow]) -> bool:
    return any(side.hidden is not None for row in rows for side in row.sides)


def _fitted(value: float, width: int) -> str:
    """A number with two decimals, or as many as leave it within ``width`` columns."""
    for decimals in (2, 1, 0):
        text = f"{value:.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:.1e}"


def _or(value: object, missing: str) -> str:
    return missing if value is None else str(value)


def _picks(rows: Sequence[ResultRow]) -> str:
    """What ran where that is not what the block is named after: ``: direct from 8 B, ring from 64 KiB``."""
    runs = [(ran, next(group).size) for ran, group in groupby(rows, key=lambda row: row.ran)]
    if all(ran == rows[0].algorithm for ran, _ in runs):
        return ""
    return ": " + ", ".join(f"{ran} from {format_nbytes(size)}" for ran, size in runs)


def as_osu(report: Report) -> str:
    """One table per algorithm with the columns of the OSU benchmarks (``-f``; nonblocking ones): out of place, bytes per rank or block."""
    overlap = _is_overlap(report.rows)
    lines = [f"# {printable(text, LINE)}" for text in (*report.heading, *report.notes)]
    for name, rows in report.blocks():
        lines += ["", f"# hpcoll {report.collective}/{name}{_picks(rows)}: {'overlap' if overlap else 'latency'} test, out of place"]
        lines.append(_OSU.format(*(_OSU_OVERLAP if overlap else _OSU_LATENCY)))
        for row in rows:
            size = row.size if report.collective == "reduce_scatter" else row.block_nbytes
            for side in filter(None, (row.out_of_place,)):
                lines.append(_OSU.format(size, *_osu_cells(side)))
        wrong = total_wrong(rows)
        lines += [f"# Wrong elements: {wrong}"] if wrong else []
    return "\n".join(lines) + "\n"


def _osu_cells(side: Measured) -> list[str]:
    if side.hidden is not None:
        assert side.both_us is not None
        assert side.work_us is not None
        return [f"{value:.2f}" for value in (side.both_us, side.work_us, side.p50_us, 100 * side.hidden)]
    return [*(f"{value:.2f}" for value in (side.avg_us, side.min_us, side.max_us)), str(side.iterations * side.batch)]


def document(report: Report) -> dict[str, Any]:
    """One JSON document with the keys of nccl-tests; results carry the algorithm's name."""
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
    """The `document` as text."""
    return json.dumps(document(report), indent=1) + "\n"


def _json_row(row: ResultRow) -> dict[str, Any]:
    texts = {key: getattr(row, key) for key in _CASE}
    return {**texts, "out_of_place": _json_side(row.out_of_place), "in_place": _json_side(row.in_place)}


def _json_side(side: Measured | None) -> dict[str, Any] | None:
    if side is None:
        return None
    return {"time": side.p50_us, **{key: getattr(side, key) for key in ("alg_bw", "bus_bw", "nwrong", *_DETAILS)}}


def as_csv(report: Report) -> str:
    """One line per algorithm, size and form, below one line of names."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _CSV, lineterminator="\n")
    writer.writeheader()
    for row in report.rows:
        flat = _json_row(row)
        sides = {key: flat.pop(key) for key in ("out_of_place", "in_place")}
        for name, side in sides.items():
            if side is not None:
                side["time_us"] = side.pop("time")
                writer.writerow({"collective": report.collective, "nranks": report.nranks, **flat, "side": name, **side})
    return text.getvalue()


FORMATS = {"nccl": as_nccl, "osu": as_osu, "json": as_json, "csv": as_csv}
