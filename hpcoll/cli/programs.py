"""Programs of files in commands: ``hpcoll verify FILE`` proves them, others draw and simulate them as rows of the catalogue."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from hpcoll.analysis.prove import modes
from hpcoll.analysis.verify import Proof
from hpcoll.base.errors import ArgumentError, HpcollError, ScheduleError
from hpcoll.base.text import LINE, counted, printable
from hpcoll.cli import ERROR, line_of, output
from hpcoll.cli.options import option
from hpcoll.formats.advice import advice
from hpcoll.formats.conditions import NO_CONDITIONS, Conditions, read_conditions
from hpcoll.formats.program import FileProgram
from hpcoll.formats.reading import prove_program, read_program, slots_of
from hpcoll.formats.rows import row_of, runnable
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.ir import RING_SLOTS
from hpcoll.schedules.row import Algorithm

PROVEN, REFUSED = 0, 1  # exit codes
MAX_SLOTS = 64


def add_conditions(parser: argparse.ArgumentParser) -> None:
    """Declare ``--conditions``."""
    option(parser, "--conditions FILE", "JSON: what a file's program must do, where it does not say so")


def row_of_file(arguments: argparse.Namespace, name: str) -> Algorithm:
    """Return the row of a file's program, proven; ``arguments`` get its number of ranks and its root, which may not differ.

    Raises:
        ArgumentError: The file is not understood, or arguments say something else.
        ScheduleError: The program is wrong.
    """
    program, proof = read_proven(arguments, name)
    row = row_of(program, proof)
    for argument, its in (("nranks", program.nranks), ("root", program.root)):
        if getattr(arguments, argument) not in (None, 0, its):
            raise ArgumentError(
                f"{program.path} has {argument} {its}, got {argument} {getattr(arguments, argument)}"
            )
        setattr(arguments, argument, its)
    return row


def read_proven(arguments: argparse.Namespace, name: str) -> tuple[FileProgram, Proof]:
    """Return the program of a file, and its proof; raises as `read_program` and `prove_program`."""
    program = read_program(Path(name), _conditions(arguments))
    return program, prove_program(program)


def _conditions(arguments: argparse.Namespace) -> Conditions:
    return read_conditions(arguments.conditions) if arguments.conditions else NO_CONDITIONS


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    slots = f"of files: messages of a channel that may wait; default {RING_SLOTS}"
    option(parser, "--slots N", slots).default = 0
    add_conditions(parser)
    option(parser, "--advice", "of files: also say what is right, but slower than it could be")


def run(arguments: argparse.Namespace) -> int:
    """Prove each file, print a verdict of each, an error of each that is not understood, and return the worst exit code."""
    if not 0 <= arguments.slots <= MAX_SLOTS:
        raise ArgumentError(f"verify needs 1 to {MAX_SLOTS} slots, got {arguments.slots}")
    conditions = _conditions(arguments)
    worst = PROVEN
    for name in arguments.patterns:
        try:
            program = read_program(Path(name), conditions)
            lines = list(_verdict(program, prove_program(program, arguments.slots), arguments))
        except ScheduleError as error:
            worst, lines = max(worst, REFUSED), [f"refused: {error}"]
        except ArgumentError as error:
            worst, lines = ERROR, []
            print(line_of(error), file=sys.stderr)
        output.print_lines(printable(line, LINE) if line[0] != " " else line for line in lines)
    return worst


def _verdict(program: FileProgram, proof: Proof, arguments: argparse.Namespace) -> Iterable[str]:
    """Return what was proven, in lines."""
    calls = " and ".join("in place" if in_place else "out of place" for in_place in program.modes)
    cells = max(len(s.scratch) for s in program.schedules)
    yield f"proven: {program.path}: {program.collective} of {counted(program.nranks, 'gpu')}, {calls}"
    yield (
        f"  {counted(proof.messages, 'message')}, {counted(proof.rounds, 'round')}; the busiest gpu sends "
        f"{proof.chunks_sent / program.schedules[0].nchunks:.4g} m; {counted(cells, 'chunk')} of scratch"
    )
    slots = slots_of(program, arguments.slots)
    yield f"  no race; no deadlock with {counted(slots, 'message')} waiting on a channel; each contribution exactly once"
    if program.meaning.reduces:
        operators = "any operator" if proof.ordered else "operators that are commutative"
        canonical = ', those of order="rank"' * proof.canonical
        yield f"  {operators}; {'the same' if proof.reproducible else 'not the same'} bits on all gpus{canonical}"
    yield f"  {_in_hpcoll(program, arguments)}"
    if arguments.advice:
        yield from (f"  advice: {line}" for line in advice(program, proof))


def _in_hpcoll(program: FileProgram, arguments: argparse.Namespace) -> str:
    """Say whether hpcoll can run a program that was proven, and in which calls."""
    if program.collective not in COLLECTIVES:
        return f"does not run in hpcoll, which has no such collective as {program.collective}"
    try:
        if slots_of(program) < slots_of(program, arguments.slots):
            prove_program(program)
        schedules, besides = runnable(program)
    except HpcollError as error:
        return f"does not run in hpcoll: {error}"
    calls = (
        "in place and out of place"
        if len(modes(program.collective)) > 1 or schedules[0].meaning.aliases is None
        else "in place"
    )
    how = (
        "; this needs its conditions: show --write makes a file that says them"
        if arguments.conditions
        else ""
    )
    return (
        f"runs in hpcoll on {counted(program.nranks, 'rank')}, {calls}"
        + (f": {besides}" if besides else "")
        + how
    )
