"""``hpcoll inspect`` refuses files that are no records, and records of several programs; and it imports neither MPI nor Numba."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from flight_cases import WORLD, call, part, record, world, write

from hpcoll.base.json_fields import MAX_MARKS
from hpcoll.base.text import MAX_RANKS
from hpcoll.cli import main

Capture = pytest.CaptureFixture[str]


def broken(**changed: Any) -> list[Any]:
    good = world([call(1)], [call(1)])
    return [good[0], good[1] | changed]


@pytest.mark.parametrize(
    ("records", "text"),
    [
        (["{"], "0.json, line 1: expected JSON, got Expecting property name"),
        (["[" * 100000], "0.json: expected JSON, got "),
        (["[]"], "0.json: the whole: expected an object, got []"),
        (broken(format=2), "1.json: field format: expected 1, got 2"),
        (
            broken(world_rank=0, communicators=[]),
            "1.json: expected a rank that no other file is of, got rank 0, as in ",
        ),
        (broken(program=["b.py"]), "1.json: program: expected ['train.py', '--x'] as in "),
        (broken(world_size=3), "1.json: world_size: expected 2 as in "),
        (broken(world_rank=2), "1.json: field world_rank: expected an integer from 0 to 1, got 2"),
        (
            broken(communicators=[part(0, [0, 1], [])]),
            "1.json: field communicators[0].rank: expected where world rank 1 is in [0, 1]",
        ),
        (
            broken(communicators=[part(1, [0, 1], [call(1, "lost")])]),
            "calls[0].state: expected ended, waiting or failed, got 'lost'",
        ),
        (
            broken(communicators=[part(1, [0, 1], [call(1), call(1)])]),
            "calls[1].seq: expected one that lane 'blocking' has not had, got 1",
        ),
        (
            broken(communicators=[part(1, [0, 1], [call(1, awaits=[2])])]),
            "calls[0].awaits: expected ranks below 2, got 2",
        ),
        (
            broken(communicators=[part(1, [0, 1], [])] * 2),
            "field communicators[1].id: expected one that no other has, got '0,1/MPI",
        ),
        (broken(communicators=[part(1, [1, 0], []) | {"id": f"0,1/{WORLD}"}]), "expected [0, 1] as in "),
        (
            broken(communicators=[part(1, [0, 1, 1], [])]),
            "field communicators[0].ranks: expected each rank once, got [0, 1, 1]",
        ),
        (broken(program=[["a.py"]]), '1.json: field program: expected a list of texts, got [["a.py"]]'),
        (
            broken(world_size=1 << 31),
            "1.json: field world_size: expected an integer from 1 to 2147483647, got 2147483648",
        ),
        (
            broken(world_size=10**4000),
            f"field world_size: expected an integer from 1 to 2147483647, got 1{'0' * 98}…",
        ),
        (broken(written=1e12), "1.json: field written: expected seconds since 1970, got 1000000000000.0"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: Capture, records: list[Any], text: str
) -> None:
    assert main(["inspect", *write(tmp_path, records)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("hpcoll: error: ")
    assert captured.err.count("\n") == 1
    assert text in captured.err


def test_a_world_of_very_many_ranks(tmp_path: Path, capsys: Capture) -> None:
    """Those without a record are told as ranges, whatever one record claims that there are."""
    waits = [call(1, "waiting", awaits=[1, 2, 7, 8, 9])]
    files = write(
        tmp_path, [record(0, MAX_RANKS, part(0, [0, *range(2, 30, 3), 5_000_000], waits) | {"name": "some"})]
    )
    assert main(["inspect", "--json", *files]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["missing"] == [[1, MAX_RANKS - 1]]
    found = {finding["kind"]: finding["ranks"] for finding in document["findings"]}
    assert found["left no record"] == [[2, 2], [5, 5], [20, 20], [23, 23], [26, 26]]
    assert found["record missing"] == [[1, 1], [3, 4], [6, 19], [21, 22], [24, 25], [27, MAX_RANKS - 1]]
    assert main(["inspect", *files]) == 1
    assert f"ranks 1, 3-4, 6-19, 21-22, 24-25, 27-{MAX_RANKS - 1} left no record" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.parametrize("depth", [*range(880, 1000, 8), 100_000])
@pytest.mark.parametrize("key", ["world_rank", "program", "communicators", "why"])
def test_values_that_are_nested_deeply(key: str, depth: int, tmp_path: Path, capsys: Capture) -> None:
    """At each depth that can be read, the error can be written, too."""
    text = json.dumps(record(0, 1) | {key: "deep"}).replace('"deep"', "[" * depth + "]" * depth)
    assert main(["inspect", *write(tmp_path, [text])]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert len(error) < len(str(tmp_path)) + 250


def test_texts_that_would_drive_a_terminal(tmp_path: Path, capsys: Capture) -> None:
    """Wherever they stand in a record, and in the name of a file."""
    evil = "\x1b]0;mine\x07\x1b[2J\u202e\x9b31m\x7f"
    texts = dict.fromkeys(("collective", "element", "op", "algorithm", "step", "caller", "lane"), evil)
    ours = part(0, [0, 1], [call(1, "waiting", awaits=[1], **texts)], name=evil)
    files = write(tmp_path, [record(0, 2, ours, doing=evil, why=evil, host=evil, program=[evil])])
    assert main(["inspect", *files]) == 1
    assert main(["inspect", f"/nowhere/{evil}"]) == 2
    said = "".join(capsys.readouterr())
    assert said.replace("\n", "").isprintable()
    assert "?]0;mine??[2J??31m?" in said


def test_files_that_are_too_large(tmp_path: Path, capsys: Capture) -> None:
    """Are not read to their end, nor made objects of."""
    large, many = tmp_path / "large", tmp_path / "many"
    with large.open("wb") as file:
        file.truncate(1 << 40)
    many.write_text("0," * (MAX_MARKS + 1))
    assert [main(["inspect", str(file)]) for file in (large, many, "/dev/zero")] == [2] * 3
    assert capsys.readouterr().err == (
        f"hpcoll: error: {large}: expected at most 64 MiB, got more\n"
        f"hpcoll: error: {many}: expected at most 8,000,000 commas, colons and brackets, got more\n"
        "hpcoll: error: /dev/zero: expected at most 64 MiB, got more\n"
    )


def test_calls_that_await_very_many_ranks(tmp_path: Path, capsys: Capture) -> None:
    ranks = list(range(1000))
    calls = [call(i, "waiting", awaits=ranks) for i in range(1100)]
    assert main(["inspect", *write(tmp_path, [record(0, 1000, part(0, ranks, calls))])]) == 2
    assert "expected calls that await at most 1048576 ranks together, got 1100000" in capsys.readouterr().err


def test_a_file_that_is_not_there(capsys: Capture) -> None:
    assert main(["inspect", "/nowhere/0.json"]) == 2
    assert (
        capsys.readouterr().err == "hpcoll: error: cannot read /nowhere/0.json: No such file or directory\n"
    )


def test_it_needs_no_mpi_and_no_compiler() -> None:
    program = "import sys, hpcoll.cli.inspect.command; print(*sorted(set(sys.modules) & {'mpi4py', 'numba', 'hpcoll.cli.show'}))"
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        == "\n"
    )
