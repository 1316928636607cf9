"""``hpcoll bench`` under mpirun: it measures, its reports parse, and a wrong answer anywhere is found everywhere."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from spoiled import spoiled
from tuned import others

from hpcoll.base.errors import ArgumentError
from hpcoll.base.ops import SUM
from hpcoll.cli import main
from hpcoll.cli.bench import beside
from hpcoll.cli.bench.cases import Case, bind, calm, fill, make_buffers, wrong_elements
from hpcoll.cli.bench.measure import Pace, over_ranks
from hpcoll.cli.bench.messages import find_dtype, sizes_of
from hpcoll.cli.bench.modes import CALLS
from hpcoll.cli.bench.request import BenchRequest, cases_of
from hpcoll.comm.arguments.methods import BY_COLLECTIVE
from hpcoll.schedules.catalogue import algorithms

Capture = pytest.CaptureFixture[str]

WORLD = MPI.COMM_WORLD
QUICK = "-b 4 -e 8K -f 40 -n 2 -w 1 -m 1".split()
pytestmark = [pytest.mark.mpi, pytest.mark.once]


def bench(*arguments: str) -> int:
    """Exit code; equal on all ranks, or the test fails on all."""
    code = main(["bench", *arguments])
    codes = WORLD.allgather(code)
    assert codes == codes[:1] * WORLD.size
    return code


def document(capsys: Capture, *arguments: str) -> Any:
    """The JSON document that rank 0 printed, on all ranks."""
    assert bench(*arguments, "--format", "json") == 0
    out = capsys.readouterr().out
    assert bool(out) is (WORLD.rank == 0)
    return WORLD.bcast(json.loads(out) if WORLD.rank == 0 else None)


@pytest.mark.parametrize("collective", list(BY_COLLECTIVE))
def test_every_algorithm_of_every_collective(collective: str, capsys: Capture) -> None:
    found = document(capsys, collective, *QUICK, "--algorithms", "all,auto", "-r", str(WORLD.size - 1))
    names = list(dict.fromkeys(result["algorithm"] for result in found["results"]))
    assert names == ["native", *algorithms(collective), "auto"]
    assert found["out_of_bounds"] == {"count": 0, "okay": "true"}
    one_form = collective in ("bcast", "barrier", "neighbor_allgather", "neighbor_alltoall")
    assert all((result["in_place"] is None) is one_form for result in found["results"])
    assert all(result["ran"] in (*names[:-1],) for result in found["results"])
    assert {
        result["out_of_place"]["ratio"] for result in found["results"] if result["algorithm"] == "native"
    } == {1.0}


def test_the_report_is_written_after_every_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, seen = tmp_path / "result.json", []

    def progress(text: str, elsewhere: str) -> None:
        results = json.loads(file.read_text())["results"] if file.exists() else []
        seen.append((text, bool(elsewhere), sorted({result["size"] for result in results})))

    monkeypatch.setattr("hpcoll.cli.output.progress", progress)
    assert (
        bench(
            "bcast",
            *QUICK,
            "--format",
            "json",
            "--output",
            str(file),
            "-J",
            str(tmp_path / "also.json"),
            "-I",
            "1",
        )
        == 0
    )
    if WORLD.rank == 0:
        also = json.loads((tmp_path / "also.json").read_text())
        assert also["results"] == json.loads(file.read_text())["results"]
        for result in also["results"]:
            kept = result["out_of_place_per_iter"]
            assert [max(column) for column in zip(*kept["per_process_max_times_us"], strict=True)] == kept[
                "times_us"
            ]
            assert len(kept["times_us"]) == result["actual_iterations"]
            assert len(kept["per_process_max_times_us"]) == WORLD.size
        assert [device["rank"] for device in also["config"]["devices"]] == list(range(WORLD.size))
        assert [line for _, *line in seen] == [[True, []], [True, [4]], [True, [4, 160]], [False, [4, 160]]]
        assert "size 1 of 3" in seen[0][0]
        assert sorted({result["size"] for result in json.loads(file.read_text())["results"]}) == [
            4,
            160,
            6400,
        ]


@pytest.mark.parametrize("arguments", [["-d", "bfloat16"], ["-o", "avg"]])
def test_what_the_library_cannot_do_is_left_out_with_a_note(arguments: list[str], capsys: Capture) -> None:
    found = document(capsys, "allreduce", *QUICK, *arguments)
    assert {result["algorithm"] for result in found["results"]} == {"auto"}
    assert found["results"][0]["out_of_place"]["ratio"] is None
    assert found["notes"][0].startswith("native is left out: the MPI library")


@pytest.mark.parametrize(
    ("op", "datatype"),
    [
        ("max", "half"),
        ("land", "bool"),
        ("prod", "complex64"),
    ],
)
def test_operators_and_types(op: str, datatype: str, capsys: Capture) -> None:
    for collective in ("allreduce", "reduce_scatter", "exscan"):
        found = document(capsys, collective, *QUICK, "-o", op, "-d", datatype, "--algorithms", "all")
        assert found["results"][0]["redop"] == op
        assert found["out_of_bounds"]["okay"] == "true"


@pytest.mark.parametrize("wrong_rank", [0, WORLD.size - 1])
def test_one_wrong_element_on_one_rank_fails_all(wrong_rank: int, capsys: Capture) -> None:
    with spoiled("Allreduce", ranks=[wrong_rank]):
        assert bench("allreduce", *QUICK, "-e", "4") == 1
        out = capsys.readouterr().out
        assert bench("allreduce", *QUICK, "-e", "4", "-c", "0") == 0
    if WORLD.rank == 0:
        assert "# Out of bounds values : 0 OK" in out
        assert "# Out of bounds values : 2 FAILED" in out


@pytest.mark.parametrize("collective", list(BY_COLLECTIVE))
@pytest.mark.parametrize("side", ["out_of_place", "in_place"])
def test_a_call_that_does_nothing_is_found_wrong(collective: str, side: str) -> None:
    dtype = np.dtype(np.int32)
    case = Case(
        collective, 0 if collective == "barrier" else 7, dtype, SUM, WORLD.size - 1, WORLD.rank, WORLD.size
    )
    if side in case.sides and case.count:
        buffers = make_buffers(case, side)
        fill(case, buffers)
        wrong = WORLD.allreduce(wrong_elements(case, buffers))
        assert (wrong > 0) is (
            WORLD.size > 1 or (side == "out_of_place" and collective not in ("bcast", "exscan"))
        )
        bind(case, buffers, WORLD.Create_cart([WORLD.size], [True]), MPI.SUM)()
        assert wrong_elements(case, buffers) == 0
        calm(buffers)
        assert buffers.source is not buffers.target or not buffers.target.any()


def test_an_input_that_was_written_to_is_found_wrong() -> None:
    case = Case("allreduce", 5, np.dtype(np.int32), SUM, 0, WORLD.rank, WORLD.size)
    buffers = make_buffers(case, "out_of_place")
    fill(case, buffers)
    WORLD.Allreduce(buffers.source, buffers.target)
    buffers.source[2] += 1
    assert wrong_elements(case, buffers) == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("allreduce --algorithms rings".split(), "allreduce algorithm must be one of ring"),
        (["allsum"], "collective must be one of"),
        ("allreduce -o xor".split(), "op must be one of"),
        ("allreduce -o band".split(), "operator band takes integer elements, got float32"),
        ("bcast -r 99".split(), "root must be a rank below"),
        ("bcast -b 0".split(), "sizes need 1 <= minbytes <= maxbytes, got 0"),
        ("bcast -b 8 -e 4".split(), "sizes need 1 <= minbytes <= maxbytes, got 8 and 4"),
        ("bcast -i 1".split(), "stepbytes makes 16777209 sizes"),
        ("bcast --plot /nowhere/file.png".split(), "cannot write /nowhere/file.png"),
        ("barrier --plot file.png".split(), "a barrier has no message size to plot against"),
        (
            "allreduce -o avg --algorithms native".split(),
            "nothing is left to measure: the MPI library has no operator avg",
        ),
    ],
)
def test_errors_are_one_line_of_rank_0(arguments: list[str], text: str, capsys: Capture) -> None:
    assert bench(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    if WORLD.rank == 0:
        assert captured.err.startswith(
            f"hpcoll: error: {'rank 0: ' if text.startswith('operator') else ''}{text}"
        )
        assert captured.err.count("\n") == 1
    else:
        assert captured.err == ""


@pytest.mark.smoke
@pytest.mark.parametrize("what", ["barrier", "calls"])
def test_one_rank_is_told(what: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setitem(beside.PACES, CALLS, Pace(1, 1, 1, per_iter=True))
    assert bench(what, *QUICK) == 0
    assert ("one rank exchanges nothing" in capsys.readouterr().out) is (WORLD.size == 1)


def sizes_in(capsys: Capture) -> list[int]:
    """The sizes of the rows that were printed since it was last asked."""
    return [
        int(line.split()[0])
        for line in capsys.readouterr().out.splitlines()
        if line and not line.startswith("#")
    ]


def test_time_of_which_rank() -> None:
    p = WORLD.size
    expected = {0: 1.0, 1: (p + 1) / 2, 2: 1.0, 3: float(p)}
    assert {way: over_ranks(WORLD, np.array([WORLD.rank + 1.0]), way)[0] for way in expected} == expected


def test_sizes_become_whole_blocks() -> None:
    request = BenchRequest(
        "allgather", sizes_of("1", "64", None, 2), find_dtype("float"), None, 0, (), None, True, Pace()
    )
    counts = [case.count for case in cases_of(request, WORLD.rank, WORLD.size)]
    assert counts[0] == 1
    assert counts == sorted(set(counts))
    assert max(counts) == max(1, 64 // (4 * WORLD.size))
    with pytest.raises(ArgumentError, match="datatype"):
        find_dtype("")


def test_a_run_is_drawn(tmp_path: Path, capsys: Capture) -> None:
    target = tmp_path / "run.svg"
    assert bench("allgather", *QUICK, "--algorithms", "ring", "--plot", str(target)) == 0
    out = capsys.readouterr().out
    if WORLD.rank == 0:
        assert "# allgather/ring" in out
        svg = target.read_text()
        assert f"allgather, {WORLD.size} ranks, float32, " in svg
        assert "<!-- ring -->" in svg


def test_calls(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call has its times, and one that is described anew takes longer than one that is recognised."""
    monkeypatch.setitem(beside.PACES, CALLS, Pace(3, 3, 8, per_iter=True))
    assert bench(CALLS) == 0
    lines = [
        line.removesuffix(" *")
        for line in capsys.readouterr().out.splitlines()
        if not line.startswith(("#", "us, "))
    ]
    texts = [text for text, _ in beside.calls(0, 1)] if WORLD.rank == 0 else []
    assert all(line.startswith(text) for line, text in zip(lines, texts, strict=True))
    times = [
        list(map(float, line.split()[-4:]))
        for line in lines
        if line.startswith(("Bcast(x)", "Allreduce(x, y)"))
    ]
    assert all(anew > known for _, known, anew, _ in times)
    assert len(times) == 2 * (WORLD.rank == 0)


def test_rows_appear_as_they_come(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Those of a size are there when the next one begins; a table without a terminal needs no other sign of life."""
    seen = list[int]()
    monkeypatch.setattr(
        "hpcoll.cli.output.progress", lambda *texts: seen.append(len(sizes_in(capsys))) if texts[0] else None
    )
    assert bench("bcast", *QUICK) == 0
    assert WORLD.rank or (seen, sizes_in(capsys)) == ([0, 2, 2], [6400, 6400])


def test_what_is_measured_beside_other_programs_is_marked(tmp_path: Path, capsys: Capture) -> None:
    """Each size is measured for about a second, beside a process that spins on each core."""
    with others():
        assert bench("bcast", "-b", "8", "-e", "64", "-J", str(tmp_path / "result.json")) == 0
    out = capsys.readouterr().out
    if WORLD.rank == 0:
        assert [line.endswith(" *") for line in out.splitlines() if line and not line.startswith("#")] == [
            True
        ] * 4
        (sentence,) = re.findall(r"^# (\* other programs used .* cores?) while this was measured", out, re.M)
        found = json.loads((tmp_path / "result.json").read_text())
        assert all(result["disturbed"] and result["others"] > 0.3 for result in found["results"])
        assert found["notes"][-1].startswith(sentence)
