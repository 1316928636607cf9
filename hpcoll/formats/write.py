"""A program as text for other tools: the file's suffix says the format."""

from collections.abc import Sequence

from hpcoll.analysis.programs.lanes import in_lanes
from hpcoll.analysis.prove import modes
from hpcoll.base.errors import ArgumentError
from hpcoll.base.text import quoted
from hpcoll.formats.goal import goal_text
from hpcoll.formats.msccl_write import Written, msccl_text
from hpcoll.formats.program import FileProgram
from hpcoll.schedules.ir import Schedule
from hpcoll.schedules.row import Algorithm

SUFFIXES = (".xml", ".goal")


def program_of(row: Algorithm, schedules: Sequence[Schedule]) -> FileProgram:
    """Return the schedules of all ranks of a catalogue row as a program."""
    first, ways = schedules[0], modes(row.collective)
    return FileProgram(
        row.key,
        row.name,
        row.collective,
        first.meaning,
        first.nranks,
        first.root,
        tuple(schedules),
        (),
        True in ways,
        False in ways,
        row.uniform,
    )


def check_suffix(suffix: str) -> None:
    """Check that a format has the suffix; else raise ArgumentError."""
    if suffix not in SUFFIXES:
        raise ArgumentError(
            f"schedules are written to a file that ends in {', '.join(SUFFIXES)}, got {quoted(suffix)}"
        )


def written_for(suffix: str, program: FileProgram, nbytes: int, calc: float) -> Written:
    """Return a program in the format of a suffix; for GOAL, ``nbytes`` and ``calc`` as in `hpcoll.formats.goal.goal_text`.

    Raises:
        ArgumentError: no format has the suffix, or the format lacks what the program needs.
    """
    check_suffix(suffix)
    if suffix == ".xml":
        if _has_signals(program):
            program = program._replace(
                schedules=in_lanes(program.schedules, program.meaning, in_place=not program.out_of_place)
            )
        return msccl_text(program)
    return Written(goal_text(program.schedules, nbytes, calc))


def _has_signals(program: FileProgram) -> bool:
    """Say whether messages without data order steps, which MSCCL XML lacks."""
    return any(
        run.n < 1 for s in program.schedules for steps in s.channels for step in steps for run in step.srcs
    )
