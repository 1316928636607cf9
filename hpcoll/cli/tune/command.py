"""``hpcoll tune``: measures all algorithms and the model's constants under mpirun, and writes what hpcoll then picks from."""

import argparse
import math
import os
import shutil
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import hpcoll
from hpcoll.analysis.network import NEVER
from hpcoll.base.dtypes import check_op, type_class, working_dtype
from hpcoll.base.errors import ArgumentError
from hpcoll.base.ops import SUM
from hpcoll.base.text import LINE, printable
from hpcoll.base.units import format_nbytes, parse_nbytes
from hpcoll.cli import ERROR, output
from hpcoll.cli.abort import ending_all_ranks
from hpcoll.cli.bench.messages import find_dtype, sizes
from hpcoll.cli.bench.request import check_memory
from hpcoll.cli.table import table
from hpcoll.cli.tune.exchange import Fit
from hpcoll.cli.tune.fit import LARGE_NBYTES
from hpcoll.cli.tune.search import TuneFindings, TuneRequest, TuneStep
from hpcoll.cli.tune.search import run as measure
from hpcoll.comm.arguments.methods import BY_COLLECTIVE
from hpcoll.schedules.catalogue import algorithms
from hpcoll.selection import tuning
from hpcoll.selection.config import TUNING, read_config
from hpcoll.selection.tuning import Document, Section

OUTPUT, TYPES = Path("hpcoll-tuning.json"), "float32,float64"
MINBYTES, MAXBYTES, FACTOR, SECONDS, MODEL_SECONDS = "8", "16M", 4, 120.0, 5.0
QUIET_S = 10.0  # from one line of progress to the next in a file
BAR, WIDTH = 20, 100  # columns of the bar, and at least of the report
MODEL_HEADER = ["level", "ranks", "alpha us", "overhead us", "GB/s", "combined GB/s", "eager", "handshake us", "cache", "spill"]
MODEL_WIDTH = 140  # columns; none of it is ever cut


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    parser.epilog = f"Programs use the table with {TUNING}=FILE. Exit code 1 means that an answer was wrong."
    add("--collectives", default="all", metavar="LIST", help=f"all, or names with commas: {', '.join(BY_COLLECTIVE)}; default all")
    add("-b", "--minbytes", default=MINBYTES, metavar="SIZE", help=f"least size; default {MINBYTES}")
    add("-e", "--maxbytes", default=MAXBYTES, metavar="SIZE", help=f"greatest size; default {MAXBYTES}")
    add("-f", "--stepfactor", type=int, default=FACTOR, metavar="N", help=f"multiply by N from size to size; default {FACTOR}")
    add("--types", default=TYPES, metavar="LIST", help=f"element types of what is combined, with commas; default {TYPES}")
    add("--model", action="store_true", help="only fit the constants by which hpcoll picks where it has no table")
    seconds = f"time for everything; default {SECONDS:g}, with --model {MODEL_SECONDS:g}"
    add("--seconds", type=float, metavar="S", help=seconds)
    add("--output", type=Path, default=OUTPUT, metavar="FILE", help=f"table to write or to add to, after each collective; default {OUTPUT}")


def run(arguments: argparse.Namespace) -> int:
    """Measure, write the table on rank 0, and return 1 on every rank if an answer was wrong anywhere."""
    world = MPI.COMM_WORLD
    try:
        wanted = request(arguments, world.size)
        check_memory(wanted.sizes[-1], world)
        old = _old_document(arguments.output, world)
    except ArgumentError:  # alike on all ranks: one of them says so
        if world.rank:
            return ERROR
        raise
    outer = os.environ.pop(TUNING, None)  # it may name the very file that is to be written
    try:
        with ending_all_ranks(world):
            findings, problem = _measure(wanted, world, arguments.output, old)
    finally:
        os.environ.update({TUNING: outer} if outer is not None else {})
    problem = world.bcast(problem)
    if problem and world.rank == 0:
        raise ArgumentError(problem)
    if world.rank == 0:
        _report(findings, wanted, arguments.output)
    return ERROR if problem else 1 if findings.wrong else 0


def _measure(wanted: TuneRequest, world: MPI.Intracomm, path: Path, old: Document) -> tuple[TuneFindings, str]:
    """What was found, and on rank 0 why the table could not be written, which is done after each collective."""
    if world.rank:
        return measure(wanted, world, lambda step: None), ""
    problems: list[str] = []

    def keep(findings: TuneFindings) -> None:
        problems[:] = [_write(path, old, findings)]

    findings = measure(wanted, world, Progress(), keep)
    keep(findings)
    _clear()
    return findings, problems[0]


def request(arguments: argparse.Namespace, nranks: int) -> TuneRequest:
    """Arguments, checked: what is wrong is wrong on all ranks.

    Raises:
        ArgumentError: names the argument, or says that one rank is too few.
    """
    if nranks < 2:
        raise ArgumentError("tune needs at least 2 ranks, got 1: mpirun -n 4 hpcoll tune")
    read_config()
    time_s = arguments.seconds if arguments.seconds is not None else MODEL_SECONDS if arguments.model else SECONDS
    names = tuple(BY_COLLECTIVE) if arguments.collectives == "all" else tuple(dict.fromkeys(arguments.collectives.split(",")))
    for name in names:
        algorithms(name)
    least, greatest = parse_nbytes(arguments.minbytes), parse_nbytes(arguments.maxbytes)
    if not 1 <= least <= greatest:
        raise ArgumentError(f"sizes need 1 <= minbytes <= maxbytes, got {least} and {greatest}")
    if arguments.stepfactor < 2:
        raise ArgumentError(f"stepfactor must be at least 2, got {arguments.stepfactor}")
    if not 0 < time_s < math.inf:
        raise ArgumentError(f"seconds must be above 0, got {time_s:g}")
    dtypes: dict[str, np.dtype] = {}
    for dtype in map(find_dtype, arguments.types.split(",")):
        check_op(SUM, dtype, 0)
        if working_dtype(dtype) != dtype:
            raise ArgumentError(f"types: {dtype.name} is combined as float32, which is what to tune")
        dtypes.setdefault(type_class(dtype), dtype)
    if arguments.model:
        names = ()
    return TuneRequest(names, tuple(sizes(least, greatest, factor=arguments.stepfactor)), tuple(dtypes.values()), time_s)


def _old_document(path: Path, world: MPI.Intracomm) -> Document:
    """What is in the file already, on rank 0; finds out before the measurement that the file can be replaced."""
    problem = ""
    old = Document(tuning.FORMAT, "", ())
    if world.rank == 0:
        try:
            output.check(path)
            old = _read(path) if path.exists() else old
        except ArgumentError as error:
            problem = str(error)
    problem = world.bcast(problem)
    if problem:
        raise ArgumentError(problem)
    return old


def _read(path: Path) -> Document:
    if not path.is_file():
        raise ArgumentError(f"cannot write {path}: not a regular file")
    document = tuning.read(path)
    if document.format != tuning.FORMAT:
        raise ArgumentError(f"cannot add to {path}: its format is {document.format}, this hpcoll writes {tuning.FORMAT}")
    return document


def _write(path: Path, old: Document, findings: TuneFindings) -> str:
    """Write the table, if there is anything new; what went wrong."""
    if not findings.sections and not findings.fits:
        return f"nothing was measured in the time given, so {path} is left as it is"
    constants = tuning.merge_constants(old.constants, [one.constants for one in findings.fits])
    try:
        tuning.write(path, Document(tuning.FORMAT, hpcoll.__version__, tuning.merge(old.sections, findings.sections), constants))
    except OSError as error:
        return f"cannot write {path}: {error.strerror}"
    return ""


class Progress:
    """A bar that a terminal overwrites; elsewhere a line now and then."""

    def __init__(self) -> None:
        self._quiet_until = 0.0

    def __call__(self, step: TuneStep) -> None:
        """Say how far a run is."""
        text = f"{step.done}/{step.total} {step.cell}, {step.left_s:.0f} s left"
        if sys.stderr.isatty():
            filled = BAR * step.done // step.total
            line = f"[{'#' * filled}{'-' * (BAR - filled)}] {text}"
            print(f"\r\033[K{line[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() >= self._quiet_until:
            print(f"hpcoll tune: {text}", file=sys.stderr, flush=True)
            self._quiet_until = time.monotonic() + QUIET_S


def _clear() -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def _report(findings: TuneFindings, wanted: TuneRequest, path: Path) -> None:
    """Print the picks, the constants, what was left out, and how to use the file."""
    rows = [row for section in findings.sections for row in _rows(section)]
    if rows:
        header = ["collective", "type", "size", "pick", "segment", "us", "native us", "ratio"]
        print("\n".join(table(header, rows, max(WIDTH, shutil.get_terminal_size().columns), numbers=[2, 4, 5, 6, 7])))
        print("\nTimes are those of the pick's worst case: out of place or in place, alone or back to back; ratio is native us / us.\n")
    if findings.fits:
        header = [*MODEL_HEADER, *(f"error {beside} {format_nbytes(LARGE_NBYTES)}" for beside in ("<", ">="))]
        print("\n".join(table(header, [_model_row(one) for one in findings.fits], MODEL_WIDTH, numbers=range(2, len(header)))))
        print("\nConstants of the model for messages on a node and between nodes, and its largest errors for short and long messages.")
    if findings.notes:
        print(f"Left out for lack of time ({wanted.seconds:g} s): {', '.join(findings.notes)}")
    for text in findings.wrong:
        print(f"Wrong: {text}")
    file = printable(str(path), LINE)
    print(f"Written to {file}; use it with {TUNING}={file}")


def _model_row(one: Fit) -> list[str]:
    network = one.constants.network
    us = [f"{1e6 * seconds:.3g}" for seconds in (network.alpha, network.overhead)]
    speeds = [f"{1e-9 / seconds:.3g}" if seconds else "-" for seconds in (network.beta, network.gamma)]
    eager, cache = ("-" if nbytes == NEVER else format_nbytes(nbytes) for nbytes in (network.eager, network.cache))
    errors = [f"{100 * error:.0f} %" for error in one.errors]
    ranks = f"{one.ranks[0]}, {one.ranks[1]}"
    return [one.constants.level, ranks, *us, *speeds, eager, f"{1e6 * network.handshake:.3g}", cache, f"{network.spill:.3g}", *errors]


def _rows(section: Section) -> list[list[str]]:
    rows: list[list[str]] = []
    for collective, entries in section.collectives.items():
        picks = {entry.nbytes: entry for entry in reversed(entries)}  # of one size the first
        for nbytes, entry in sorted(picks.items()):
            segment = "-" if entry.segment >= nbytes else format_nbytes(entry.segment)
            times = [*(f"{us:.2f}" if us < 100 else f"{us:.0f}" for us in (entry.us, entry.native_us)), f"{entry.native_us / entry.us:.2f}"]
            rows.append([collective, section.type_class, format_nbytes(nbytes), entry.algorithm, segment, *times])
    return rows


