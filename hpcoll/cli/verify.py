"""``hpcoll verify``: proves algorithms for every number of ranks up to a limit and every root, or the programs of files."""

import argparse
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from hpcoll.analysis.prove import Summary, prove_catalogue
from hpcoll.base.errors import ArgumentError, ScheduleError
from hpcoll.base.text import MAX_BUILT, meant, quoted, table
from hpcoll.cli import programs
from hpcoll.cli.options import option
from hpcoll.cli.output import columns, progress
from hpcoll.formats.reading import is_program
from hpcoll.registry.sources import READERS, read_all, read_file
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.ir import RING_SLOTS
from hpcoll.schedules.row import Algorithm

MAX_NRANKS, MAX_JOBS = 64, 1024


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    patterns = '"allreduce", "ring", "allreduce/ring", "*/ring", or files; default: all'
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help=patterns)
    option(parser, "--max-nranks N", "prove 1 to N ranks", MAX_NRANKS)
    extra = "also prove these numbers of ranks, with some roots"
    option(parser, "--extra N,N,...", extra, type=_numbers).default = []
    option(parser, "--jobs N", "processes; default: one per core")
    programs.configure(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prove, print the table, and return 1 if a schedule is refused."""
    if any(map(is_program, arguments.patterns)):
        return programs.run(arguments)
    if arguments.advice or arguments.conditions or arguments.slots:
        raise ArgumentError("--advice, --conditions and --slots are for files")
    jobs = 1 if arguments.jobs is None else arguments.jobs
    if (
        not all(1 <= nranks <= MAX_BUILT for nranks in (arguments.max_nranks, *arguments.extra))
        or not 1 <= jobs <= MAX_JOBS
    ):
        raise ArgumentError(f"verify needs numbers of ranks from 1 to {MAX_BUILT} and 1 to {MAX_JOBS} jobs")
    read_all()
    rows = _matching(arguments.patterns)
    start = time.perf_counter()

    def shown(done: int, total: int) -> None:
        progress(f"proven {done} of {total} parts" if done < total else "")

    try:
        summaries = prove_catalogue(
            arguments.max_nranks, arguments.jobs, arguments.extra, rows=rows, progress=shown
        )
    except ScheduleError as error:
        progress("")
        print(f"refused: {error}")
        return 1
    header = ["algorithm", "instances", "messages", "any op", "same bits", 'order="rank"', "CPU s"]
    print("\n".join(table(header, [_texts(summary) for summary in summaries], columns(), numbers=[1, 2, 6])))
    print(_conclusion(summaries, arguments, time.perf_counter() - start))
    return 0


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected numbers of ranks with commas, such as 96,128, got {quoted(text)}"
        ) from None


def _matching(patterns: Sequence[str]) -> list[Algorithm]:
    """Return the rows whose key, collective or name matches a pattern, and those of files; all rows if there is no pattern."""
    chosen = dict.fromkeys(CATALOGUE, not patterns)
    for pattern in patterns:
        if Path(pattern).suffix in READERS:
            matching = [row.key for row in read_file(Path(pattern))]
        else:
            matching = [
                key
                for key, row in CATALOGUE.items()
                if fnmatchcase(key, pattern) or pattern in (row.collective, row.name)
            ]
        if not matching:
            names = {name for key, row in CATALOGUE.items() for name in (key, row.collective, row.name)}
            raise ArgumentError(
                f"no algorithm matches {quoted(pattern)}"
                + (meant(names, pattern) or "; 'hpcoll show' lists them")
            )
        chosen.update(dict.fromkeys(matching, True))
    return [CATALOGUE[key] for key, wanted in chosen.items() if wanted]


def _texts(summary: Summary) -> list[str]:
    collective = COLLECTIVES[CATALOGUE[summary.key].collective]
    reduces = collective.reduces and not collective.idempotent
    facts = (
        ["yes" if fact else "no" for fact in (summary.ordered, summary.reproducible)] if reduces else ["", ""]
    )
    some = f"in {summary.canonical:,} of {summary.instances:,}" if summary.canonical else "no"
    facts.append(("yes" if summary.canonical == summary.instances else some) if reduces else "")
    return [summary.key, f"{summary.instances:,}", f"{summary.messages:,}", *facts, f"{summary.seconds:.1f}"]


def _conclusion(summaries: Sequence[Summary], arguments: argparse.Namespace, seconds: float) -> str:
    instances, messages = sum(s.instances for s in summaries), sum(s.messages for s in summaries)
    ranks = f"1 to {arguments.max_nranks}" + "".join(f", {nranks}" for nranks in arguments.extra)
    return (
        f"\n{len(summaries)} algorithms on {ranks} ranks: {instances:,} instances, {messages:,} messages, all correct ({seconds:.1f} s).\n"
        "Every message meets its receive, nothing deadlocks, and every result holds every contribution exactly once.\n"
        f"This holds on one node, too, where at most {RING_SLOTS} messages between two ranks may wait to be used."
    )
