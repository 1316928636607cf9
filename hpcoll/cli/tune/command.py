"""``hpcoll tune``: measures all algorithms and the cost model's constants under mpirun, and writes them as a tuning table."""

import argparse
import math
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from mpi4py import MPI

import hpcoll
from hpcoll.analysis.cost import NEVER
from hpcoll.base.busy import MARK, verdict
from hpcoll.base.dtypes import check_op, type_class, working_dtype
from hpcoll.base.errors import ArgumentError
from hpcoll.base.ops import SUM
from hpcoll.base.text import LINE, format_nbytes, printable, quoted, table
from hpcoll.cli import ERROR, output
from hpcoll.cli.all_ranks import ending_all_ranks, on_rank_0
from hpcoll.cli.bench.messages import find_dtype, sizes_of
from hpcoll.cli.bench.request import check_memory
from hpcoll.cli.bench.watch import Watch
from hpcoll.cli.options import option
from hpcoll.cli.tune.exchange import Fit
from hpcoll.cli.tune.fit import LARGE_NBYTES
from hpcoll.cli.tune.search import TuneFindings, TuneRequest, TuneStep, tune
from hpcoll.comm.arguments.methods import BY_COLLECTIVE
from hpcoll.schedules.catalogue import algorithms
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.selection import tuning
from hpcoll.selection.config import TUNING, Entry, read_config
from hpcoll.selection.tuning import Document

OUTPUT, TYPES = Path("hpcoll-tuning.json"), "float32,float64"
MINBYTES, MAXBYTES, FACTOR, SECONDS, MODEL_SECONDS = "8", "16M", 4, 120.0, 5.0
_TUNED = tuple(name for name in BY_COLLECTIVE if not COLLECTIVES[name].neighbours)  # those are for some graph
QUIET_S = 10.0  # from one line of progress to the next in a file
BAR = 20  # columns of the bar
_LINE = "{:<14}  {:<5}  {:>8}  {:<21}  {:>8}  {:>8}  {:>9}  {:>6}  {}"
MODEL_HEADER = [
    "level",
    "ranks",
    "alpha us",
    "overhead us",
    "GB/s",
    "combined GB/s",
    "eager",
    "handshake us",
    "cache",
    "spill",
]
MODEL_WIDTH = 140  # columns; none of it is ever cut


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = partial(option, parser)
    parser.epilog = f"Programs use the table with {TUNING}=FILE. Exit code 1 means that an answer was wrong."
    add("--collectives LIST", f"all, or names with commas: {', '.join(_TUNED)}", "all")
    add("-b --minbytes SIZE", "least size", MINBYTES)
    add("-e --maxbytes SIZE", "greatest size", MAXBYTES)
    add("-f --stepfactor N", "multiply by N from size to size", FACTOR)
    add("--types LIST", "element types of reductions, with commas", TYPES)
    model = "only fit the cost model's constants, by which hpcoll picks algorithms without a table"
    add("--model", model)
    add("--seconds S", f"time for everything; default {SECONDS:g}, with --model {MODEL_SECONDS:g}")
    add("--busy", "measure and write although other programs use the cores")
    add("--output FILE", "table to write or to add to, after each collective", OUTPUT)


def run(arguments: argparse.Namespace) -> int:
    """Measure, write the table on rank 0, and return 1 on every rank if an answer was wrong anywhere."""
    world = MPI.COMM_WORLD
    try:
        wanted = request(arguments, world.size)
        check_memory(wanted.sizes[-1], world)
        old = on_rank_0(world, partial(_old_document, arguments.output))
    except ArgumentError:  # all ranks have the same: rank 0 says so
        if world.rank:
            return ERROR
        raise
    outer = os.environ.pop(TUNING, None)  # it may name the very file that is to be written
    problem = ""
    try:
        with ending_all_ranks(world):
            watch = Watch(world)
            if old is None:
                findings = tune(wanted, world, watch, lambda step: None)
            else:
                report = _Report(arguments.output, old, watch.notes)
                findings = tune(wanted, world, watch, TuningProgress(), report.so_far)
                problem = report.ends(findings, wanted)
    finally:
        os.environ.update({TUNING: outer} if outer is not None else {})
    problem = world.bcast(problem)
    if problem and world.rank == 0:
        raise ArgumentError(problem)
    return ERROR if problem else 1 if findings.wrong else 0


def request(arguments: argparse.Namespace, nranks: int) -> TuneRequest:
    """Check the arguments for so many ranks; an ArgumentError is the same on all of them."""
    if nranks < 2:
        raise ArgumentError("tune needs at least 2 ranks, got 1: mpirun -n 4 hpcoll tune")
    read_config()
    time_s = (
        arguments.seconds if arguments.seconds is not None else MODEL_SECONDS if arguments.model else SECONDS
    )
    names = (
        _TUNED if arguments.collectives == "all" else tuple(dict.fromkeys(arguments.collectives.split(",")))
    )
    for name in names:
        algorithms(name)
        if name not in _TUNED:
            raise ArgumentError(f"tune has no graph for a neighbourhood collective, got {quoted(name)}")
    sizes = sizes_of(arguments.minbytes, arguments.maxbytes, None, arguments.stepfactor)
    if not 0 < time_s < math.inf:
        raise ArgumentError(f"seconds must be above 0, got {time_s:g}")
    dtypes: dict[str, np.dtype] = {}
    for dtype in map(find_dtype, arguments.types.split(",")):
        check_op(SUM, dtype, 0)
        if working_dtype(dtype) != dtype:
            raise ArgumentError(f"types: {dtype.name} is combined as float32, which is what to tune")
        dtypes.setdefault(type_class(dtype), dtype)
    return TuneRequest(
        () if arguments.model else names, sizes, tuple(dtypes.values()), time_s, arguments.busy
    )


def _old_document(path: Path) -> Document:
    """Return the document of the file, if it is there; refuses before the measurement a file that cannot be replaced."""
    output.check(path)
    if not path.exists():
        return Document(tuning.FORMAT, "", ())
    if not path.is_file():
        raise ArgumentError(f"cannot write {path}: not a regular file")
    document = tuning.read(path)
    if document.format != tuning.FORMAT:
        raise ArgumentError(
            f"cannot add to {path}: its format is {document.format}, this hpcoll writes {tuning.FORMAT}"
        )
    return document


def _write(path: Path, old: Document, findings: TuneFindings) -> str:
    """Write the table, if anything in it is new; return why that failed."""
    if not findings.sections and not findings.fits:
        return f"nothing was measured in the time given, so {path} is left as it is"
    constants = tuning.merge_constants(old.constants, [fit.constants for fit in findings.fits])
    try:
        tuning.write(
            path,
            Document(
                tuning.FORMAT, hpcoll.__version__, tuning.merge(old.sections, findings.sections), constants
            ),
        )
    except OSError as error:
        return f"cannot write {path}: {error.strerror}"
    return ""


class TuningProgress:
    """Shows how far a run is: a bar on a terminal, elsewhere a line now and then."""

    def __init__(self) -> None:
        self._quiet_until = 0.0

    def __call__(self, step: TuneStep) -> None:
        """Show a step."""
        text, filled = (
            f"{step.done}/{step.total} {step.cell}, {step.left_s:.0f} s left",
            BAR * step.done // step.total,
        )
        due = time.monotonic() >= self._quiet_until
        output.progress(
            f"[{'#' * filled}{'-' * (BAR - filled)}] {text}", f"hpcoll tune: {text}" if due else ""
        )
        if due:
            self._quiet_until = time.monotonic() + QUIET_S


class _Report:
    """Writes the table on rank 0, and prints its rows, while they come."""

    def __init__(self, path: Path, old: Document, notes: Sequence[str]) -> None:
        self._path, self._old, self._notes = path, old, notes
        self._told = set[tuple[str, str]]()  # classes of types, and collectives

    def so_far(self, findings: TuneFindings) -> str:
        """Write the table with what was found, and print what is new; return why the table cannot be written."""
        output.progress("")
        if not self._told:
            header = ["collective", "type", "size", "pick", "segment", "us", "native us", "ratio", ""]
            print(*self._notes, _LINE.format(*header).rstrip(), sep="\n", flush=True)
        for section in findings.sections:
            for collective, entries in section.collectives.items():
                if (section.type_class, collective) not in self._told:
                    self._told.add((section.type_class, collective))
                    print(*_rows(section.type_class, collective, entries), sep="\n", flush=True)
        return _write(self._path, self._old, findings)

    def ends(self, findings: TuneFindings, wanted: TuneRequest) -> str:
        """Write the table, and print the constants, what was left out, and how to use the file; return what is wrong."""
        output.progress("")
        problem = _write(self._path, self._old, findings)
        file = printable(str(self._path), LINE)
        if findings.ended:
            kept = (
                f"{file} has what was measured before"
                if findings.sections or findings.fits
                else "nothing is written"
            )
            return f"{findings.ended}: no table is made of such times, {kept}. End other programs, or write nevertheless with --busy"
        if problem:
            return problem
        if self._told:
            print(
                "\nTimes are those of hpcoll bench with this table, out of place where there is that; ratio is native us / us.\n"
            )
        if findings.fits:
            header = [
                *MODEL_HEADER,
                *(f"error {beside} {format_nbytes(LARGE_NBYTES)}" for beside in ("<", ">=")),
            ]
            print(
                "\n".join(
                    table(
                        header,
                        [_model_row(fit) for fit in findings.fits],
                        MODEL_WIDTH,
                        numbers=range(2, len(header)),
                    )
                )
            )
            print(
                "\nConstants of the model for messages on a node and between nodes, and its largest errors for short and long messages."
            )
        for text in verdict(findings.uses):
            print(text)
        if findings.notes:
            print(f"Left out for lack of time ({wanted.seconds:g} s): {', '.join(findings.notes)}")
        for text in findings.wrong:
            print(f"Wrong: {text}")
        print(f"Written to {file}; use it with {TUNING}={file}")
        return ""


def _model_row(fit: Fit) -> list[str]:
    network = fit.constants.network
    us = [f"{1e6 * seconds:.3g}" for seconds in (network.alpha, network.overhead)]
    speeds = [f"{1e-9 / seconds:.3g}" if seconds else "-" for seconds in (network.beta, network.gamma)]
    eager, cache = (
        "-" if nbytes == NEVER else format_nbytes(nbytes) for nbytes in (network.eager, network.cache)
    )
    errors = [f"{100 * error:.0f} %" for error in fit.errors]
    ranks = f"{fit.ranks[0]}, {fit.ranks[1]}"
    return [
        fit.constants.level,
        ranks,
        *us,
        *speeds,
        eager,
        f"{1e6 * network.handshake:.3g}",
        cache,
        f"{network.spill:.3g}",
        *errors,
    ]


def _rows(type_class: str, collective: str, entries: Sequence[Entry]) -> list[str]:
    rows = []
    picks = {entry.nbytes: entry for entry in reversed(entries)}  # of one size the first
    for nbytes, entry in sorted(picks.items()):
        segment = "-" if entry.segment >= nbytes else format_nbytes(entry.segment)
        times = [
            *(f"{us:.2f}" if us < 100 else f"{us:.0f}" for us in (entry.us, entry.native_us)),
            f"{entry.native_us / entry.us:.2f}",
        ]
        mark = MARK if entry.disturbed else ""
        rows.append(
            _LINE.format(
                collective, type_class, format_nbytes(nbytes), entry.algorithm, segment, *times, mark
            ).rstrip()
        )
    return rows
