"""Programs of files, by the suffix of their names: read, and proven for the calls that they are meant for."""

from collections.abc import Callable
from pathlib import Path

from hpcoll.analysis.programs.proof import verify_program
from hpcoll.analysis.verify import Proof, in_all
from hpcoll.base.errors import ArgumentError, ScheduleError
from hpcoll.base.json_fields import read_json
from hpcoll.base.text import LINE, printable, quoted
from hpcoll.formats.conditions import NO_CONDITIONS, Conditions
from hpcoll.formats.msccl_steps import read_msccl_xml
from hpcoll.formats.mscclpp.plans import program_of_plan
from hpcoll.formats.program import FileProgram
from hpcoll.schedules.ir import RING_SLOTS


def _read_plan(path: Path, conditions: Conditions) -> FileProgram:
    content = read_json(path, str(path))
    if isinstance(content, dict) and "hpcoll_schedule" in content:
        raise ArgumentError(
            f"{printable(str(path), LINE)}: expected MSCCL XML or an MSCCL++ plan, got JSON of an earlier hpcoll, "
            "which is not read any more; write the schedule again, as .xml"
        )
    return program_of_plan(content, path, conditions)


READERS: dict[str, Callable[[Path, Conditions], FileProgram]] = {".xml": read_msccl_xml, ".json": _read_plan}


def is_program(name: str) -> bool:
    """Say whether a name is one of a file that `read_program` reads, by its suffix."""
    return Path(name).suffix.lower() in READERS


def read_program(path: Path, conditions: Conditions = NO_CONDITIONS) -> FileProgram:
    """Return the program of a file; raises as its reader, and ArgumentError where there is none for the suffix."""
    if not is_program(path.name):
        raise ArgumentError(
            f"programs are read from files that end in {', '.join(READERS)}, got {quoted(str(path))}"
        )
    return READERS[path.suffix.lower()](path, conditions)


def slots_of(program: FileProgram, slots: int = 0) -> int:
    """Return the messages on one link that may wait: ``slots``, or if that is 0 what the file says, or `RING_SLOTS`."""
    return slots or program.slots or RING_SLOTS


def prove_program(program: FileProgram, slots: int = 0) -> Proof:
    """Prove a program for the calls that it is meant for, with so many `slots_of`.

    Returns:
        The properties that hold in all of these calls.

    Raises:
        ArgumentError: The proof would take more than the budget of a file.
        ScheduleError: The program is wrong; the text names file, line, gpu, thread block and step.
    """
    proofs = []
    for in_place in program.modes:
        try:
            proof = verify_program(
                program.schedules,
                program.meaning,
                in_place=in_place,
                slots=slots_of(program, slots),
                where=program.where,
            )
            proofs.append(proof)
        except ArgumentError as error:
            raise ArgumentError(f"{program.path}: {error}") from None
        except ScheduleError as error:
            call = "in place" if in_place else "out of place"
            raise ScheduleError(
                f"{program.path}, {error}" + (f", in a call {call}" if len(program.modes) > 1 else "")
            ) from None
    return in_all([*proofs[1:], proofs[0]])
