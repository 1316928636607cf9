"""Results of a benchmark, and reports: the table of nccl-tests, or JSON with its keys, so that existing readers work. No MPI.

algbw is the message's bytes over the time. busbw is algbw times a factor that makes it comparable with the bandwidth of a link, whatever
the collective and the number of ranks. nccl-tests' columns come first and unchanged; for either side, the native time over the row's time
follows.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from hpcoll.base.busy import MARK, CoreUse, verdict
from hpcoll.base.text import LINE, format_nbytes, printable
from hpcoll.selection.config import NATIVE

AUTO = "auto"  # the algorithm that hpcoll chooses
_ROW = "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}"
_SIDE = "  {:>7}  {:>6}  {:>6}  {:>6}"
_PAIR = "  {:>7}  {:>7}"
_NCCL_TESTS_JSON = 3  # the version of its JSON format
_CASE = ("algorithm", "ran", "size", "count", "type", "redop")
_PER_ITERATION = ("min_us", "max_us", "avg_us", "p50_us", "p95_us", "p99_us", "stdev_us")
_METHOD = (
    "time is the median over iterations, P50, of the time per call of the slowest rank; ratio is native time / time",
    "all algorithms take turns in one run, in random order; small calls are timed in batches; calls in place are timed on zeros",
)


@dataclass(frozen=True)
class Measured:
    """The result of one side (out of place, in place) of an algorithm at one size; times in microseconds, bandwidths in GB/s (1e9)."""

    p50_us: float  # the median over rounds, which counts as "the" time; the other percentiles are over rounds, too
    p90_us: float
    p95_us: float
    p99_us: float
    min_us: float
    max_us: float
    avg_us: float
    stdev_us: float
    alg_bw: float
    bus_bw: float
    nwrong: int | None  # wrong elements on all ranks; None if answers were not checked
    ratio: float | None  # native time over this time
    iterations: int  # rounds
    batch: int  # calls timed together in each round
    work_us: float | None = None  # in overlap mode: of the work alone
    both_us: float | None = None  # in overlap mode: of the call with the work inside
    hidden: float | None = None  # in overlap mode: `hpcoll.cli.bench.modes.hidden_share`
    moved: int | None = (
        None  # bytes that the busiest rank reads and writes, where they are asked for and known
    )
    times_us: Sequence[float] = ()  # of each round, where asked for
    rank_times_us: Sequence[Sequence[float]] = ()  # and of each rank in each round
    copy_share: float | None = (
        None  # rate of ``moved`` over the rate at which all ranks at once copy arrays of the size
    )


@dataclass(frozen=True)
class ResultRow:
    """The result of an algorithm at one size; a side that the collective does not have is None."""

    algorithm: str  # name asked for: of the catalogue, ``native``, or ``auto``
    ran: str  # name of the algorithm that ran
    size: int  # bytes of the message; of all ranks' blocks together
    count: int  # elements of the vector, or of one block
    type: str  # element type as nccl-tests prints it
    redop: str  # or ``none``
    root: int  # or -1
    out_of_place: Measured | None
    in_place: Measured | None
    beside: CoreUse | None = None  # the use of the cores meanwhile

    @property
    def disturbed(self) -> bool:
        """Others disturbed the measurement."""
        return self.beside is not None and self.beside.disturbed

    @property
    def both(self) -> tuple[Measured | None, Measured | None]:
        """Both sides."""
        return self.out_of_place, self.in_place

    @property
    def sides(self) -> tuple[Measured, ...]:
        """The sides that the collective has."""
        return tuple(filter(None, self.both))


def bus_factor(collective: str, nranks: int) -> float:
    """Return busbw over algbw.

    >>> bus_factor("allreduce", 4), bus_factor("allgather", 4), bus_factor("bcast", 4)
    (1.5, 0.75, 1.0)
    """
    if collective == "allreduce":
        return 2 * (nranks - 1) / nranks
    if collective in ("reduce_scatter", "allgather", "gather", "scatter", "alltoall"):
        return (nranks - 1) / nranks
    return 1.0


def summarise(
    seconds: np.ndarray,
    nbytes: int,
    factor: float,
    *,
    nwrong: int | None,
    native: np.ndarray | None,
    batch: int,
) -> Measured:
    """Return the result of one side from seconds per call in each round, and those of the native algorithm; ``factor``: busbw / algbw."""
    us = seconds * 1e6
    p50, p90, p95, p99 = np.percentile(us, [50, 90, 95, 99]).tolist()
    least, most, mean, stdev = (float(number) for number in (us.min(), us.max(), us.mean(), us.std()))
    alg_bw = nbytes / (p50 * 1e3)
    ratio = None if native is None else float(np.median(native * 1e6)) / p50
    times = (p50, p90, p95, p99, least, most, mean, stdev)
    return Measured(*times, alg_bw, alg_bw * factor, nwrong, ratio, us.size, batch)


def average_bus_bandwidth(rows: Iterable[ResultRow]) -> float:
    """Return the mean busbw over all sizes and sides, in GB/s; 0 of nothing."""
    bandwidths = [side.bus_bw for row in rows for side in row.sides]
    return sum(bandwidths) / len(bandwidths) if bandwidths else 0.0


def uses_of(rows: Iterable[ResultRow]) -> list[CoreUse]:
    """Return the uses of the cores while rows were measured, where they are known."""
    return [row.beside for row in rows if row.beside is not None]


def total_wrong(rows: Iterable[ResultRow]) -> int:
    """Return the number of wrong elements of all rows."""
    return sum(side.nwrong or 0 for row in rows for side in row.sides)


@dataclass(frozen=True)
class Report:
    """A benchmark's results."""

    collective: str
    nranks: int
    heading: Sequence[str]  # lines about software and machine
    rows: Sequence[ResultRow]
    notes: Sequence[str] = ()  # remarks for the reader
    # further JSON members: args, env, config, start_time, end_time
    facts: dict[str, Any] = field(default_factory=dict)

    def blocks(self) -> Iterable[tuple[str, list[ResultRow]]]:
        """Return the rows of each algorithm, in the order of their first appearance."""
        names = list(dict.fromkeys(row.algorithm for row in self.rows))
        return [(name, [row for row in self.rows if row.algorithm == name]) for name in names]


class _Columns(NamedTuple):
    """Two columns beyond those of nccl-tests: a cell for each side of a row."""

    title: str
    name: str
    cells: Callable[[ResultRow], list[str]]


def as_nccl(report: Report) -> str:
    """Return a table with the columns of nccl-tests, then what it says of each algorithm."""
    return "\n".join([*rows_so_far(report), *_end(report)]) + "\n"


def rows_so_far(report: Report) -> list[str]:
    """Return the lines of the table that are known: those of more rows are added to them."""
    pairs = _pairs(report.rows)
    lines = [f"# {printable(text, LINE)}" for text in (*report.heading, *_METHOD, *report.notes)]
    return [*lines, "#", *_header(pairs), *(_row(row, pairs) for row in report.rows)]


def _end(report: Report) -> list[str]:
    """Return the lines behind the table."""
    lines = [f"# {text}" for text in verdict(uses_of(report.rows))]
    for name, rows in report.blocks():
        wrong = total_wrong(rows)
        lines += [
            "#",
            f"# {report.collective}/{name}{_picks(rows)}",
            f"# {'Out of bounds values':<20} : {wrong} {'FAILED' if wrong else 'OK'}",
            f"# {'Avg bus bandwidth':<20} : {average_bus_bandwidth(rows):g}",
        ]
    return [*lines, "#"]


def _pairs(rows: Iterable[ResultRow]) -> list[_Columns]:
    """Return the further columns: ratio, percentiles; of overlap mode its hidden shares, else the memory traffic where it was counted."""
    sides = [side for row in rows for side in row.sides]
    natives = {row.size: row for row in rows if row.algorithm == NATIVE}

    def hidden(row: ResultRow | None) -> list[str]:
        return _cells(row, lambda side: side.hidden and 100 * side.hidden, 0)

    pairs = [
        _Columns("native / time", "ratio", lambda row: _cells(row, lambda side: side.ratio)),
        _Columns("90 % within (us)", "P90", lambda row: _cells(row, lambda side: side.p90_us)),
        _Columns("99 % within (us)", "P99", lambda row: _cells(row, lambda side: side.p99_us)),
    ]
    if any(side.hidden is not None for side in sides):
        pairs += [
            _Columns("hidden (%)", "hidden", hidden),
            _Columns("native (%)", "hidden", lambda row: hidden(natives.get(row.size))),
        ]
    elif any(side.moved is not None for side in sides):
        pairs += [
            _Columns(
                "moved / size",
                "moved",
                lambda row: _cells(row, lambda side: side.moved and side.moved / max(1, row.size)),
            ),
            _Columns(
                "of copying (%)",
                "share",
                lambda row: _cells(row, lambda side: side.copy_share and 100 * side.copy_share, 0),
            ),
        ]
    return pairs


def _cells(row: ResultRow | None, value: Callable[[Measured], float | None], digits: int = 2) -> list[str]:
    numbers = [None if side is None else value(side) for side in (row.both if row else (None, None))]
    return ["-" if number is None else _fitted(number, 7, digits) for number in numbers]


def _header(pairs: Sequence[_Columns]) -> list[str]:
    names, units = ("time", "algbw", "busbw", "#wrong"), ("P50(us)", "(GB/s)", "(GB/s)", "")
    lines = [
        _ROW.format(*5 * [""])
        + f"{'out-of-place':^33}{'in-place':^33}"
        + "".join(f"{pair.title:^18}" for pair in pairs),
        _ROW.format("size", "count", "type", "redop", "root") + 2 * _SIDE.format(*names),
        _ROW.format("(B)", "(elements)", "", "", "")
        + 2 * _SIDE.format(*units)
        + len(pairs) * _PAIR.format("(out)", "(in)"),
    ]
    lines[1] += "".join(_PAIR.format(pair.name, pair.name) for pair in pairs) + "  algorithm"
    return [f"#{line[1:]}".rstrip() for line in lines]


def _row(row: ResultRow, pairs: Sequence[_Columns]) -> str:
    line = _ROW.format(row.size, row.count, row.type, row.redop, row.root)
    for side in row.both:
        cells = ["N/A"] * 4
        if side is not None:
            wrong = "N/A" if side.nwrong is None else str(side.nwrong)
            cells = [_fitted(side.p50_us, 7), _fitted(side.alg_bw, 6), _fitted(side.bus_bw, 6), wrong]
        line += _SIDE.format(*cells)
    return (
        line
        + "".join(_PAIR.format(*pair.cells(row)) for pair in pairs)
        + f"  {row.algorithm}{f' {MARK}' if row.disturbed else ''}"
    )


def _fitted(value: float, width: int, digits: int = 2) -> str:
    """Return a number with so many decimals, or with as many as leave it within ``width`` columns."""
    for decimals in range(digits, -1, -1):
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
    """Return one JSON document as nccl-tests writes it, with further keys; results carry the algorithm's name as that of an experiment."""
    wrong = total_wrong(report.rows)
    ours = {name: average_bus_bandwidth(rows) for name, rows in report.blocks()}
    return {
        "version": _NCCL_TESTS_JSON,
        **report.facts,
        "collective": report.collective,
        "nranks": report.nranks,
        "results": [_json_row(row) for row in report.rows],
        "out_of_bounds": {"count": wrong, "okay": str(wrong == 0).lower()},
        "average_bus_bandwidth": {
            "bandwidth": average_bus_bandwidth(report.rows),
            "okay": "unchecked",
            "algorithms": ours,
        },
        "notes": [*report.notes, *verdict(uses_of(report.rows))],
        "errors": [f"{wrong} wrong elements"] if wrong else [],
    }


def as_json(report: Report) -> str:
    """Return the `document` as text."""
    return json.dumps(document(report), indent=1) + "\n"


def _json_row(row: ResultRow) -> dict[str, Any]:
    sides = [None if side is None else {"time": side.p50_us} | asdict(side) for side in row.both]
    for side in filter(None, sides):
        del side["times_us"], side["rank_times_us"]
    return {
        **{key: getattr(row, key) for key in _CASE},
        "root": f"{row.root:6}",
        **dict(zip(("out_of_place", "in_place"), sides)),
        **_per_iteration(row),
        "disturbed": row.disturbed,
        "others": None if row.beside is None or math.isnan(row.beside.others) else row.beside.others,
        "actual_iterations": max((side.iterations for side in row.sides), default=0),
        "experiment_name": row.algorithm,
    }


def _per_iteration(row: ResultRow) -> dict[str, Any]:
    """Return the times of each iteration, where they were kept: in them the tool of nccl-tests finds slow ranks."""
    times = {}
    for name, side in zip(("out_of_place_per_iter", "in_place_per_iter"), row.both):
        if side is not None and side.times_us:
            times[name] = {
                "skipped_iterations": 0,
                **{key: getattr(side, key) for key in _PER_ITERATION},
                "cv_pct": 100 * side.stdev_us / side.avg_us,
                "times_us": side.times_us,
                "per_process_max_times_us": side.rank_times_us,
            }
    return times


NCCL = "nccl"
FORMATS = {NCCL: as_nccl, "json": as_json}
