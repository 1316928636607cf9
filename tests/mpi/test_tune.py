"""``hpcoll tune`` under mpirun: what it measures, in which order it ranks, what it refuses and what it shows."""

import argparse
import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from spoiled import spoiled
from tuned import AMPLE, QUICK, brief, others, table_in, tune

import hpcoll
from hpcoll.base.busy import CoreUse
from hpcoll.base.errors import ArgumentError
from hpcoll.cli import INTERRUPTED, main
from hpcoll.cli.bench.report import ResultRow, summarise
from hpcoll.cli.tune import search
from hpcoll.cli.tune.command import configure, request
from hpcoll.cli.tune.search import Candidate, TuneRequest, Winner, rank_results, told
from hpcoll.selection import tuning
from hpcoll.selection.config import NATIVE, Entry

Capture = pytest.CaptureFixture[str]

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.once]
WORLD = MPI.COMM_WORLD
QUIET, BUSY = (CoreUse(1.0, 2, 2, others, 0.0, 0.0) for others in (0.0, 0.9))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return table_in(tmp_path)


@pytest.fixture
def odd(file: Path) -> Iterator[dict[str, Path]]:
    """Places where no table can be written."""
    broken, newer = file.with_name("broken"), file.with_name("newer")
    if WORLD.rank == 0:
        broken.write_text("{")
        newer.write_text('{"format": 9}')
    WORLD.Barrier()
    yield {
        "nowhere": file.parent / "missing" / "table",
        "folder": file.parent,
        "broken": broken,
        "newer": newer,
    }
    WORLD.Barrier()


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("nowhere", "cannot write .*missing/table: No such file or directory"),
        ("folder", "cannot write .*: Is a directory"),
        ("broken", "tuning file .*broken, line 1: expected JSON"),
        ("newer", "cannot add to .*newer: its format is 9, this hpcoll writes 1"),
    ],
)
def test_output_that_cannot_be_written_is_found_out_before(
    where: str, text: str, odd: dict[str, Path], capsys: Capture
) -> None:
    start = time.process_time()
    assert tune("--output", odd[where], *QUICK, *AMPLE) == 2
    assert time.process_time() - start < 5
    _one_line_of_rank_0(text, capsys)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--collectives", "allreduce,allsum"], "collective must be one of .*, got 'allsum'"),
        (["--types", "half"], "types: float16 is combined as float32, which is what to tune"),
        (["--types", "bool"], "rank 0: operator sum takes .*, got bool"),
        (["-f", "1"], "stepfactor must be at least 2, got 1"),
        (["--seconds", "0"], "seconds must be above 0, got 0"),
        (["--seconds", "1e-9"], "nothing was measured in the time given, so .* is left as it is"),
    ],
)
def test_errors_are_one_line_of_rank_0(arguments: list[str], text: str, file: Path, capsys: Capture) -> None:
    assert tune("--output", file, *QUICK, *AMPLE, *arguments) == 2
    _one_line_of_rank_0(text, capsys)
    assert not file.exists()


def _one_line_of_rank_0(text: str, capsys: Capture) -> None:
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == (WORLD.rank == 0)
    if WORLD.rank == 0:
        assert re.match(f"hpcoll: error: {text}", err)


def test_one_rank_has_nothing_to_tune() -> None:
    parser = argparse.ArgumentParser()
    configure(parser)
    with pytest.raises(ArgumentError, match=r"^tune needs at least 2 ranks, got 1: mpirun -n 4 hpcoll tune$"):
        request(parser.parse_args([]), 1)
    assert request(parser.parse_args([]), 2).sizes == tuple(8 * 4**i for i in range(11))


def test_a_wrong_answer_is_told_and_its_algorithm_not_picked(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """That of the candidate which is tried first: one call out of place, one in place."""
    brief(monkeypatch)
    with spoiled("Allreduce", calls=2):
        assert tune("--output", file, *QUICK, *AMPLE, "--collectives", "allreduce", "-e", "8") == 1
    out = capsys.readouterr().out
    picked = {entry.algorithm for entry in tuning.read(file).sections[0].collectives["allreduce"]}
    assert NATIVE not in picked
    if WORLD.rank == 0:
        assert "Wrong: allreduce f4 8 B: native, segment 8: 2 wrong elements\n" in out


def test_no_table_is_written_of_what_others_disturbed(file: Path, capsys: Capture) -> None:
    with others():
        codes = WORLD.allgather(main(["tune", "--output", str(file), *QUICK, "--seconds", "1"]))
    assert codes == [2] * WORLD.size
    _one_line_of_rank_0(
        "other programs used .*: no table is made of such times, nothing is written. .* with --busy$", capsys
    )
    assert not file.exists()


@pytest.mark.parametrize(
    ("looks", "found", "times"),
    [("q", 1, 1), ("bqq", 2, 2), ("bbbqq", 2, 2), ("bqbqb", None, 3), ("b" * 9, None, 1)],
)
def test_what_others_disturb_is_measured_again(looks: str, found: int | None, times: int) -> None:
    """After they have gone, and a few times at most."""
    left, measured = list(looks), list[int]()
    watch: Any = SimpleNamespace(look=lambda: {"b": BUSY, "q": QUIET}[left.pop(0)])
    quiet = search.Quiet(watch, TuneRequest((), (), (), 0.3), pause_s=0.01)

    def measure() -> int:
        measured.append(1)
        return len(measured)

    assert quiet.measured("it", measure) == found
    assert len(measured) == times
    assert [use.disturbed for use in quiet.uses] == [False] * (found is not None)
    assert ("other programs used 0.9 of 2 cores" in quiet.why) is (found is None)


def test_a_table_that_was_written_nevertheless_says_so(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    brief(monkeypatch)
    with others():
        time.sleep(1)
        assert tune("--output", file, *QUICK, *AMPLE, "--collectives", "barrier") == 0
    assert {entry.disturbed for entry in tuning.read(file).sections[0].collectives["barrier"]} == {True}
    out = capsys.readouterr().out
    if WORLD.rank == 0:
        assert [line.endswith(" *") for line in out.splitlines() if line.startswith("barrier ")] == [True]
        told = r"^\* other programs used \S+ of \d+ cores? while this was measured: its times and ratios say little$"
        assert re.search(told, out, re.M)


def test_times_are_those_of_the_second_measurement() -> None:
    """Of calls that pick from the table, if they ran what was picked; entries for other calls keep theirs."""

    def row(algorithm: str, ran: str, size: int, us: float) -> ResultRow:
        side = summarise(np.full(3, us * 1e-6), size, 1.0, nwrong=0, native=None, batch=1)
        return ResultRow(algorithm, ran, size, size, "uint8", "none", 0, side, None)

    entries = [Entry(8, "chain", 8, 1.0, 9.0), Entry(8, "tree", 8, 1.5, 9.0), Entry(64, "tree", 64, 2.0, 9.0)]
    rows = [
        row(NATIVE, NATIVE, 8, 5.0),
        row("auto", "chain", 8, 3.0),
        row(NATIVE, NATIVE, 64, 6.0),
        row("auto", "forced", 64, 4.0),
    ]
    assert told(entries, rows) == [Entry(8, "chain", 8, 3.0, 5.0), *entries[1:]]


def test_about_the_time_given_is_taken(file: Path) -> None:
    """Time of its own: a machine that is busy with other things may let it wait, and then nothing at all is measured."""
    start = time.process_time()
    assert tune("--output", file, *QUICK, "--seconds", "1") in (0, 2)
    assert time.process_time() - start < 10


def test_native_ranks_first_where_ours_is_not_clearly_faster() -> None:
    def order(**times: float) -> list[str]:
        results = [Winner(Candidate(name, 1, []), us, 10.0, 10.0 / us, 0.1) for name, us in times.items()]
        return [result.candidate.algorithm for result in rank_results(results)]

    assert order(native=10.6, ring=10.4, tree=13) == [NATIVE, "ring", "tree"]
    assert order(native=11, ring=10.5, tree=13) == ["ring", NATIVE, "tree"]
    assert order(native=20, ring=10.5, tree=13) == ["ring", "tree", NATIVE], (
        "slower than the library alone, but not than by way of hpcoll"
    )
    assert order(native=10, ring=9.9, tree=13) == [NATIVE, "ring", "tree"]
    assert order(native=8, ring=9.5, tree=13) == ["ring", NATIVE, "tree"]


def test_what_was_measured_is_written_before_the_end(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a run is stopped: the second collective never ends."""

    def stop(event: hpcoll.hooks.CallEvent) -> None:
        if event.method == "Bcast":
            raise KeyboardInterrupt

    brief(monkeypatch)
    with hpcoll.hooks.register(stop):
        assert tune("--output", file, *QUICK, *AMPLE, "--collectives", "barrier,bcast") == INTERRUPTED
    assert [section.collectives.keys() for section in tuning.read(file).sections] == [{"barrier"}]
