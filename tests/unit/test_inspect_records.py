"""What ``hpcoll inspect`` refuses: files that are no records, and records that are not of one program; and what it does not import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from flight_cases import WORLD, call, part, world, write

from hpcoll.cli import main


def broken(**changed: Any) -> list[Any]:
    good = world([call(1)], [call(1)])
    return [good[0], good[1] | changed]


@pytest.mark.parametrize(
    ("records", "text"),
    [
        (["{"], "0.json: expected JSON, got Expecting property name"),
        (["[" * 100000], "0.json: expected JSON, got "),
        (["[]"], "0.json: the whole: expected an object, got []"),
        (broken(format=2), "1.json: field format: expected 1, got 2"),
        (broken(world_rank=0, communicators=[]), "1.json: expected a rank that no other file is of, got rank 0, as in "),
        (broken(program=["b.py"]), "1.json: program: expected ['train.py', '--x'] as in "),
        (broken(world_size=3), "1.json: world_size: expected 2 as in "),
        (broken(world_rank=2), "1.json: field world_rank: expected less than 2, got 2"),
        (broken(communicators=[part(0, [0, 1], [])]), "1.json: field communicators[0].rank: expected where world rank 1 is in [0, 1]"),
        (broken(communicators=[part(1, [0, 1], [call(1, "lost")])]), "calls[0].state: expected ended, waiting or failed, got 'lost'"),
        (broken(communicators=[part(1, [0, 1], [call(1), call(1)])]), "calls[1].seq: expected one that lane 'blocking' has not had, got 1"),
        (broken(communicators=[part(1, [0, 1], [call(1, awaits=[2])])]), "calls[0].awaits: expected ranks below 2, got 2"),
        (broken(communicators=[part(1, [0, 1], [])] * 2), "field communicators[1].id: expected one that no other has, got '0,1/MPI"),
        (broken(communicators=[part(1, [1, 0], []) | {"id": f"0,1/{WORLD}"}]), "expected [0, 1] as in "),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str], records: list[Any], text: str) -> None:
    assert main(["inspect", *write(tmp_path, records)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("hpcoll: error: ")
    assert captured.err.count("\n") == 1
    assert text in captured.err


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "/nowhere/0.json"]) == 2
    assert capsys.readouterr().err == "hpcoll: error: cannot read /nowhere/0.json: No such file or directory\n"


def test_it_needs_no_mpi_and_no_compiler() -> None:
    program = "import sys, hpcoll.cli.inspect.command; print(*sorted(set(sys.modules) & {'mpi4py', 'numba', 'hpcoll.cli.show'}))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "\n"
