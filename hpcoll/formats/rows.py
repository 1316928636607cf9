"""A row of the catalogue that runs the program of a file."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

from hpcoll.analysis.programs.lanes import in_lanes
from hpcoll.analysis.prove import modes
from hpcoll.analysis.verify import Proof, verify_schedules
from hpcoll.base.errors import ArgumentError, ScheduleError
from hpcoll.formats.private_input import on_private_input
from hpcoll.formats.program import FileProgram
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.ir import Schedule, Writer
from hpcoll.schedules.row import DERIVED, Algorithm


def row_of(program: FileProgram, proof: Proof) -> Algorithm:
    """Return the row of a proven program, for the ranks and the root of the file; its name is that of the file.

    Its costs are derived from its schedules, whose channels are put in one lane when they are first asked for: the builder raises
    ScheduleError where the program cannot run on messages of any count.

    Raises:
        ArgumentError: The program's collective is none of hpcoll's.
    """
    if program.collective not in COLLECTIVES:
        raise ArgumentError(
            f"{program.path}: its collective is {program.collective}, which can be proven, but not run or drawn"
        )
    nchunks, collective = program.schedules[0].nchunks, COLLECTIVES[program.collective]

    @cache
    def schedules() -> Sequence[Schedule]:
        return runnable(program)[0]

    def builder(writer: Writer) -> None:
        own = schedules()[writer.rank]
        writer.channels, writer.extents = [list(steps) for steps in own.channels], list(own.scratch)

    return Algorithm(
        program.collective,
        Path(program.path).stem,
        f"of a file: {program.name}",
        program.path,
        **dict.fromkeys(DERIVED, ""),  # type: ignore[arg-type]
        chunks=str(nchunks),
        ordered=proof.ordered,
        reproducible=proof.reproducible,
        canonical="1" * proof.canonical,
        uniform=program.uniform or collective.blocks,
        parts=nchunks // program.nranks if collective.blocks else 1,
        serves=(program.nranks,),
        roots=(program.root,) if collective.rooted else (),
        least=program.min_bytes,
        most=program.max_bytes,
        builder=builder,
    )


def runnable(program: FileProgram) -> tuple[Sequence[Schedule], str]:
    """Return schedules of a proven program that run in all calls of its collective, and in words what they do besides.

    Raises:
        ArgumentError: It would take more than the budget of a file.
        ScheduleError: The program cannot run.
    """
    uniform, first = program.uniform or COLLECTIVES[program.collective].blocks, None
    for make, besides in _ways(program):
        try:
            schedules = make()
            for in_place in modes(program.collective):
                verify_schedules(schedules, in_place=in_place, uniform=uniform)
            return schedules, besides
        except ScheduleError as error:
            first = first or error
    assert first
    raise first


def _ways(program: FileProgram) -> Iterator[tuple[Callable[[], Sequence[Schedule]], str]]:
    """Return ways to make a program run, from the cheapest on, and what is done besides."""
    schedules, meaning = program.schedules, program.meaning
    if not any(s.links for s in schedules):
        yield lambda: schedules, ""
    yield lambda: in_lanes(schedules, meaning, in_place=not program.out_of_place), ""
    if program.out_of_place:
        yield (
            lambda: in_lanes(schedules, meaning, shared=True),
            "messages are sent from copies where results would overwrite them in place",
        )
        yield (
            lambda: _on_copies(program),
            "the input is copied first, because results in place would overwrite it",
        )


def _on_copies(program: FileProgram) -> Sequence[Schedule]:
    """Return schedules of any call, of a program that is of calls out of place: each rank with inputs copies them first."""
    copies = []
    for s, places in zip(program.schedules, program.places, strict=True):
        ninputs = program.meaning.ninputs(s.rank, s.nranks, s.root, s.nchunks)
        copies.append(on_private_input(s, places, ninputs, ())[0] if ninputs else s)
    return in_lanes(copies, program.meaning)
