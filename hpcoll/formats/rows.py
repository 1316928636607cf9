"""A row of the catalogue that runs the program of a file."""

from collections.abc import Sequence
from pathlib import Path

from hpcoll.analysis.one_lane import one_lane
from hpcoll.analysis.verify import Proof, verify_schedules
from hpcoll.base.errors import ArgumentError
from hpcoll.formats.program import FileProgram
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.ir import Schedule, Writer
from hpcoll.schedules.row import Algorithm


def row_of(program: FileProgram, proof: Proof) -> Algorithm:
    """Return the row of a proven program, for the ranks and the root of the file; its name is that of the file.

    Raises:
        ArgumentError: The program's collective is none of hpcoll's.
        ScheduleError: The program cannot run on messages of any count.
    """
    if program.collective not in COLLECTIVES:
        raise ArgumentError(f"{program.path}: its collective is {program.collective}, which can be proven, but not run or drawn")
    schedules = _independent(program)
    nchunks = schedules[0].nchunks
    blocks = COLLECTIVES[program.collective].blocks

    def builder(writer: Writer) -> None:
        own = schedules[writer.rank]
        writer.channels, writer.extents = [list(steps) for steps in own.channels], list(own.scratch)

    sent = f"{proof.chunks_sent}/{nchunks}"
    return Algorithm(
        program.collective, Path(program.path).stem, f"of a file: {program.name}", program.path, str(proof.rounds), sent, sent,
        chunks=str(nchunks), ordered=proof.ordered, reproducible=proof.reproducible, uniform=program.uniform or blocks,
        parts=nchunks // program.nranks if blocks else 1, serves=(program.nranks,), builder=builder,
        graph=schedules[0].graph,
    )  # fmt: skip


def _independent(program: FileProgram) -> Sequence[Schedule]:
    """Return schedules whose channels do not depend on one another: those of the program, or where it says links, one lane."""
    if any(s.links for s in program.schedules):
        return one_lane(program.schedules, program.meaning, in_place=not program.out_of_place)
    for in_place in program.modes:
        verify_schedules(program.schedules, in_place=in_place, uniform=program.uniform)
    return program.schedules
