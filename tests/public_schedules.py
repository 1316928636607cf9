"""The table of public files on docs/evidence/public_schedules.md: verdict, rounds and bytes beside their bounds, simulated time.

Files of other projects are not part of this one. Give folders, each of a repository, with their files in it:

  python tests/public_schedules.py FOLDER... > table.md

Files with the same content as an earlier one are left out. Conditions of a file ``X.xml`` may stand beside it, in ``X.conditions``.
"""

import contextlib
import hashlib
import io
import json
import sys
import tempfile
import time
from pathlib import Path

from hpcoll.base.errors import ArgumentError, ScheduleError
from hpcoll.cli import main
from hpcoll.formats.advice import least_rounds, least_sent
from hpcoll.formats.conditions import NO_CONDITIONS, read_conditions
from hpcoll.formats.reading import is_program, prove_program, read_program

SIZE = "1M"
HEADER = "| file | collective | gpus | verdict | s | rounds | sent / m | us | best row | us |\n|---|---|---|---|---|---|---|---|---|---|"


def line_of_table(path: Path) -> str:
    """Return the line of a file; its reason where it is refused."""
    start, cells = time.process_time(), [path.name]
    try:
        beside = path.with_suffix(".conditions")
        program = read_program(path, read_conditions(beside) if beside.exists() else NO_CONDITIONS)
        cells += [program.collective + " in place" * (not program.out_of_place), str(program.nranks)]
        proof = prove_program(program)
    except (ArgumentError, ScheduleError) as error:
        reason = str(error).replace(str(path), "").lstrip(":, ")
        cells += [""] * (3 - len(cells))
        return " | ".join(
            [*cells, "refused" if isinstance(error, ScheduleError) else "not understood", reason]
        )
    took = time.process_time() - start
    sent, fewest = least_sent(program.collective, program.nranks), least_rounds(program)
    rounds = f"{proof.rounds}" + (f" ({fewest})" if fewest else "")
    m = f"{proof.chunks_sent / program.schedules[0].nchunks:.3g}" + (f" ({sent:.3g})" if sent else "")
    return " | ".join([*cells, "proven", f"{took:.1f}", rounds, m, *simulated(path, program.nranks)])


def simulated(path: Path, nranks: int) -> list[str]:
    """Return microseconds on one node of GPUs, the best row of the catalogue, and its microseconds."""
    with (
        tempfile.NamedTemporaryFile(suffix=".json") as file,
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        command = [
            "simulate",
            str(path),
            "--bytes",
            SIZE,
            "--network",
            "gpus",
            "--ranks-per-node",
            str(nranks),
            "--json",
            file.name,
        ]
        if main(command):
            return ["-", "", ""]
        mine, *others = json.loads(Path(file.name).read_text())["cells"]
    best = min(others, key=lambda cell: cell["seconds"])
    return [f"{1e6 * mine['seconds']:,.0f}", best["algorithm"], f"{1e6 * best['seconds']:,.0f}"]


def run(folders: list[str]) -> None:
    """Print a table for each folder."""
    seen = set[str]()
    for folder in map(Path, folders):
        print(f"\n## {folder.name}\n\n{HEADER}")
        for path in sorted(path for path in folder.iterdir() if is_program(path.name)):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            if content not in seen:
                seen.add(content)
                print(f"| {line_of_table(path)} |", flush=True)


if __name__ == "__main__":
    run(sys.argv[1:])
