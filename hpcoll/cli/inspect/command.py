"""``hpcoll inspect``: reads the records of ranks that hung or failed, and says what happened; or shows who waits for whom now."""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hpcoll.base.errors import ArgumentError
from hpcoll.base.text import Runs, counted, duration, printable, ranks_by
from hpcoll.base.text import ranks_in_words as ranges
from hpcoll.cli.inspect import fr_trace
from hpcoll.cli.inspect.flight_records import Flight, read
from hpcoll.cli.inspect.judgement import judge, summary, well
from hpcoll.cli.inspect.wording import FlightFinding, first_few
from hpcoll.cli.options import option
from hpcoll.cli.output import grid, print_lines, wrapped, written

FORMAT = 2  # of the document that --json prints


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = (
        "Ranks are those of MPI_COMM_WORLD. "
        "Exit code 1: calls differ or have not ended, a rank left no record; with --live: none is seen."
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="a record; one for each rank of one program")
    option(parser, "--live", "show who waits for whom now, among the ranks that run on this node")
    option(parser, "--once", "show it once, not each second until Ctrl-C")
    option(parser, "--fr-trace FOLDER", "also write the records as files that torch's fr_trace reads")
    option(parser, "--json", "print the findings as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print findings, and return 1 if there are others than lateness; or show the ranks that run."""
    if arguments.live == bool(arguments.files):
        raise ArgumentError("inspect needs either records, FILE, or --live")
    if arguments.live:
        from hpcoll.cli.inspect.live import watch_ranks  # with NumPy

        return watch_ranks(once=arguments.once, as_json=arguments.json)
    if arguments.once:
        raise ArgumentError("--once goes with --live")
    flight = read(arguments.files)
    if arguments.fr_trace is not None:
        _write_fr_trace(flight, arguments.fr_trace)
    findings = judge(flight)
    if arguments.json:
        print(json.dumps(_document(flight, findings), indent=1))
    else:
        print_lines(_lines(flight, findings))
    return 0 if well(findings) else 1


def _write_fr_trace(flight: Flight, folder: Path) -> None:
    try:
        fr_trace.write(flight, folder)
        written[folder] = None
    except OSError as error:
        raise ArgumentError(f"--fr-trace {folder}: {error.strerror or error}") from None


def _document(flight: Flight, findings: Sequence[FlightFinding]) -> dict[str, Any]:
    first = next(iter(flight.records.values()))
    told = [
        {
            **vars(finding),
            "ranks": _ends(finding.ranks),
            "rows": finding.rows[1:],
            "columns": finding.rows[0] if finding.rows else [],
        }
        for finding in findings
    ]
    return {
        "format": FORMAT,
        "program": list(first.program),
        "world_size": flight.nranks,
        "missing": _ends(flight.missing),
        "findings": told,
        "summary": summary(flight, findings),
    }


def _ends(runs: Runs) -> list[list[int]]:
    """Return the first and the last rank of each run: short however many ranks there are."""
    return [[run[0], run[-1]] for run in runs]


def _lines(flight: Flight, findings: Sequence[FlightFinding]) -> Iterator[str]:
    yield from _head(flight)
    for finding in findings:
        yield ""
        yield from wrapped(finding.heading)
        yield from grid(finding.rows)
        for remark in finding.remarks:
            yield from wrapped(remark, "  ")
    yield ""
    yield from wrapped(summary(flight, findings))


def _head(flight: Flight) -> Iterator[str]:
    """Yield lines about the records: the program, how many ranks, and why they were written."""
    records = flight.records.values()
    first = next(iter(records))
    written = [record.written for record in records]
    hosts = len({record.host for record in records})
    held = (
        f"{counted(len(records), 'record')} of {counted(flight.nranks, 'rank')} on {counted(hosts, 'host')}"
    )
    program = printable(" ".join(first.program))
    yield from wrapped(f"{held}, written within {duration(max(written) - min(written))}: {program}")
    reasons = ranks_by((record.why or "no reason given", record.rank) for record in records)
    for text in first_few([f"{ranges(ranks)}: {why}" for why, ranks in reasons.items()], "more reasons"):
        yield from wrapped(text, "  ")
