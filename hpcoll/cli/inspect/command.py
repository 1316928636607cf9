"""``hpcoll inspect``: reads the records that ranks wrote when they hung or failed, and says what happened."""

import argparse
import json
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hpcoll.cli.inspect.flight_records import FORMAT, Flight, read
from hpcoll.cli.inspect.judgement import judge, summary, well
from hpcoll.cli.inspect.wording import MAX_ROWS, Finding, cut, duration, ranges

WIDTH = 100  # columns
NARROWEST = 12  # columns that a cell keeps when a table is too wide


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = "Ranks are those of MPI_COMM_WORLD. Exit code 1: calls differ or have not ended, or a rank left no record."
    parser.add_argument("files", nargs="+", metavar="FILE", help="a record; one for each rank of one program")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print what was found, and return 1 if that is more than how late ranks were."""
    flight = read(arguments.files)
    findings = judge(flight)
    if arguments.json:
        print(json.dumps(_document(flight, findings), indent=1))
    else:
        encoding = sys.stdout.encoding or "utf-8"
        for line in _lines(flight, findings):
            print(line.encode(encoding, "replace").decode(encoding))
    return 0 if well(findings) else 1


def _document(flight: Flight, findings: Sequence[Finding]) -> dict[str, Any]:
    first = next(iter(flight.records.values()))
    told = [{**vars(finding), "rows": finding.rows[1:], "columns": finding.rows[0] if finding.rows else []} for finding in findings]
    return {
        "format": FORMAT,
        "program": list(first.program),
        "world_size": first.nranks,
        "missing": list(flight.missing),
        "findings": told,
        "summary": summary(flight, findings),
    }


def _lines(flight: Flight, findings: Sequence[Finding]) -> Iterator[str]:
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
    """What was read: the program, how many ranks, and what made them write."""
    records = flight.records.values()
    first = next(iter(records))
    written = [record.written for record in records]
    hosts = len({record.host for record in records})
    nouns = ((len(records), "record"), (first.nranks, "rank"), (hosts, "host"))
    held, of, on = (f"{number} {noun}{'s' * (number > 1)}" for number, noun in nouns)
    yield from wrapped(f"{held} of {of} on {on}, written within {duration(max(written) - min(written))}: {cut(' '.join(first.program))}")
    reasons: dict[str, list[int]] = {}
    for record in records:
        reasons.setdefault(cut(record.why), []).append(record.rank)
    for why, ranks in list(reasons.items())[:MAX_ROWS]:
        yield from wrapped(f"{ranges(ranks)}: {why or 'no reason given'}", "  ")
    if len(reasons) > MAX_ROWS:
        yield f"  and {len(reasons) - MAX_ROWS} more reasons"


def wrapped(text: str, indent: str = "") -> list[str]:
    """A sentence in lines of at most `WIDTH` columns."""
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False)


def grid(rows: Sequence[Sequence[str]], width: int = WIDTH) -> Iterable[str]:
    """Rows in aligned columns, indented by two; no column without content, and where all are too wide, the widest are cut.

    >>> list(grid([["", "call"], ["rank 3", "Barrier()"]]))
    ['          call', '  rank 3  Barrier()']
    """
    filled = [i for i in range(len(rows[0])) if any(row[i] for row in rows[1:])] if rows else []
    rows = [[row[i] for i in filled] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows)]
    while 2 * len(widths) + sum(widths) > width and max(widths) > NARROWEST:
        widths[widths.index(max(widths))] -= 1
    for row in rows:
        cells = [text if len(text) <= room else f"{text[: room - 1]}…" for text, room in zip(row, widths)]
        yield "".join(f"  {text:{room}}" for text, room in zip(cells, widths)).rstrip()[:width]
