"""``hpcoll trace``: who waited for whom in a run, from its trace; two runs compared; a page with a timeline."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from hpcoll.analysis.waits import RankWaits, judge
from hpcoll.base.errors import ArgumentError
from hpcoll.base.text import quoted
from hpcoll.cli import output
from hpcoll.cli.output import grid, print_lines, wrapped
from hpcoll.cli.trace import compare
from hpcoll.cli.trace.owners import SliceWaits, find
from hpcoll.cli.trace.reading import OTHER, SERVICE, STEP, RunTrace, read
from hpcoll.cli.trace.summary import facts, missing, operations, rank_waits, slices_by_name

_TRACE = ".trace"  # the suffix of traces


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = "Ranks are those of MPI_COMM_WORLD. Runs write traces with HPCOLL_TRACE=folder; those of other tools name no waits."
    parser.add_argument("files", nargs="+", metavar="FILE", help="the trace of a run: one file, or several")
    parser.add_argument(
        "--against", nargs="+", metavar="FILE", help="compare with the trace of another run, an earlier one"
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write a page with a timeline that needs no network"
    )
    parser.add_argument(
        "--perfetto", type=Path, metavar="FILE", help="write what ui.perfetto.dev and chrome://tracing open"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print who waited for whom, or what differs between two runs."""
    written = {"--html": arguments.html, "--perfetto": arguments.perfetto}
    for option, file in written.items():
        if file and file.suffix == _TRACE:  # of which an option before the files takes the first
            raise ArgumentError(
                f"{option} takes the name of the file to write, got {quoted(str(file))}, which is a trace's"
            )
        if file:
            output.check(file)
    trace = read(arguments.files, SERVICE if arguments.perfetto else STEP if arguments.html else OTHER)
    waits = find(trace)
    ranks = rank_waits(trace, waits)
    if arguments.html:  # first of all: whoever reads the text may stop
        from hpcoll.cli.trace.page import page

        title = ", ".join(Path(file).name for file in arguments.files)
        output.write(arguments.html, page(trace, waits, ranks, facts(trace), title))
    if arguments.perfetto:
        from hpcoll.cli.trace.perfetto import text

        output.write(arguments.perfetto, text(trace, waits))
    if arguments.against:
        print_lines(_comparison(trace, waits, arguments.against))
    else:
        print_lines(_lines(trace, waits, ranks))
    return 0


def _lines(trace: RunTrace, waits: SliceWaits, ranks: list[RankWaits]) -> Iterator[str]:
    yield from wrapped(facts(trace))
    if ranks:
        yield ""
        yield from str(judge(ranks)).splitlines()
    if (trace.category == OTHER).any():
        yield ""
        yield from grid(slices_by_name(trace))
    for remark in missing(trace, waits):
        yield ""
        yield from wrapped(remark)


def _comparison(now: RunTrace, waits: SliceWaits, files: list[str]) -> Iterator[str]:
    then = read(files)
    before = find(then)
    yield from wrapped(f"before: {facts(then)}")
    yield from wrapped(f"now: {facts(now)}")
    yield ""
    changes = compare.changes(operations(then, before), operations(now, waits))
    yield from grid(compare.rows(changes))
    yield ""
    yield from wrapped(compare.sentence(changes))
