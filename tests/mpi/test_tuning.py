"""Communicators run the picks of a tuning table, on all ranks alike, or refuse it by name."""

import logging
import os
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI
from reference import ensure, ensure_none
from tuned import AMPLE, QUICK, brief, table_in, tune

import hpcoll
from hpcoll.base.errors import ArgumentError
from hpcoll.base.ops import SUM
from hpcoll.cli.bench.cases import Case, bind, fill, make_buffers, wrong_elements
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.selection import tuning
from hpcoll.selection.config import NATIVE, Entry
from hpcoll.selection.measured import site
from hpcoll.selection.tuning import FORMAT, Document, Section, Site

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.once]
WORLD = MPI.COMM_WORLD
HERE = site(WORLD.allgather(MPI.Get_processor_name()))
DTYPES = {"f4": np.dtype("float32"), "f8": np.dtype("float64"), "bytes": np.dtype("uint8")}
VARIABLE = "HPCOLL_TUNING"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return table_in(tmp_path)


def written(file: Path, *sections: Section, version: int = FORMAT) -> None:
    """Let rank 0 write a table."""
    if WORLD.rank == 0:
        tuning.write(file, Document(version, "", sections))
    WORLD.Barrier()


def made(monkeypatch: pytest.MonkeyPatch, file: Path) -> hpcoll.Communicator:
    """A communicator that is to use a table."""
    monkeypatch.setenv(VARIABLE, str(file))
    return hpcoll.Communicator(WORLD.Dup())


def ran(comm: hpcoll.Communicator, collective: str, type_class: str, nbytes: int) -> str:
    """Make a call of one size, check its answer, and look up in the ledger what ran."""
    meaning = COLLECTIVES[collective]
    unit = DTYPES[type_class].itemsize * (comm.size if meaning.blocks else 1)
    op = SUM if meaning.reduces and not meaning.idempotent else None
    case = Case(collective, nbytes // unit, DTYPES[type_class], op, 0, comm.rank, comm.size)
    buffers = make_buffers(case, "out_of_place")
    fill(case, buffers)
    comm.ledger.clear()
    bind(case, buffers, comm, MPI.SUM)()
    ensure(wrong_elements(case, buffers) == 0, case)
    found = [(row.operation, row.algorithm) for row in comm.ledger.rows()]
    assert WORLD.allgather(found) == [found] * WORLD.size
    assert [operation for operation, _ in found] == [collective]
    return found[0][1]


def test_what_was_tuned_runs(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, str(file))  # which is not there yet
    brief(monkeypatch)
    assert tune("--output", file, *QUICK, *AMPLE, "--types", "float32,float64,float") == 0
    assert os.environ[VARIABLE] == str(file)
    document = tuning.read(file)
    assert {section.site for section in document.sections} == {HERE}
    assert {section.type_class for section in document.sections} == {"f4", "f8", "bytes"}
    out, err = capsys.readouterr()
    assert bool(out) is bool(err) is (WORLD.rank == 0)
    if WORLD.rank == 0:
        assert out.endswith(f"Written to {file}; use it with HPCOLL_TUNING={file}\n")
        assert "hpcoll tune: 0/" in err
        assert "allreduce f4 8 B, " in err
    comm = hpcoll.Communicator(WORLD.Dup())
    for section in document.sections:
        for collective, entries in section.collectives.items():
            sizes = {entry.nbytes: entry.algorithm for entry in reversed(entries)}
            assert list(sizes) == sorted(sizes, reverse=True)
            for nbytes, algorithm in sizes.items():
                assert ran(comm, collective, section.type_class, nbytes) == algorithm
    comm.Free()


def test_a_second_run_adds_to_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brief(monkeypatch)
    elsewhere = Section(Site("Another MPI", 2, (("far", 2),)), "f4", {"scan": (Entry(8, NATIVE, 8, 1, 1),)})
    old = Section(
        HERE, "f4", {"allreduce": (Entry(1, "tree", 1, 1, 1),), "scan": (Entry(1, NATIVE, 1, 1, 1),)}
    )
    written(file, elsewhere, old)
    assert tune("--output", file, *QUICK, *AMPLE, "--collectives", "allreduce,barrier") == 0
    found = tuning.read(file).sections
    assert found[0] == elsewhere
    assert found[1].collectives["scan"] == old.collectives["scan"]
    assert found[1].collectives["allreduce"][0].nbytes == 8
    assert [(section.type_class, list(section.collectives)) for section in found[2:]] == [
        ("bytes", ["barrier"])
    ]
    assert WORLD.allgather(os.listdir(file.parent) == ["table.json"]) == [True] * WORLD.size


def test_odd_picks_run_at_the_nearest_size(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    entries = (
        Entry(8, "double_tree", 8, 1.25, 40.1),
        Entry(64 << 10, NATIVE, 8, 3, 2),
        Entry(64 << 10, "tree", 4096, 4, 2),
    )
    written(
        file,
        Section(HERE, "f4", {"allreduce": entries}),
        Section(HERE, "bytes", {"bcast": (Entry(8, "chain", 8, 1, 1),)}),
    )
    comm = made(monkeypatch, file)
    picks = {4: "double_tree", 512: "double_tree", 1024: NATIVE, 1 << 20: NATIVE}
    with caplog.at_level(logging.INFO, "hpcoll"):
        assert {nbytes: ran(comm, "allreduce", "f4", nbytes) for nbytes in picks} == picks
        assert ran(comm, "allreduce", "f8", 8) == "double_tree"
        assert ran(comm, "bcast", "bytes", 1 << 16) == "chain"
        comm.ledger.clear()
        x = np.ones(5000, "f4")
        comm.Allreduce(MPI.IN_PLACE, x, MPI.MAX)  # NaN must pass through: not native
        comm.Allreduce(MPI.IN_PLACE, x, algorithm="ring")
        ensure_none([row.algorithm for row in comm.ledger.rows() if row.algorithm not in ("tree", "ring")])
    texts, tree = (
        [record.getMessage() for record in caplog.records],
        "allreduce of float32, 16384 to 32767 bytes: tree",
    )
    if WORLD.rank == 0:
        assert (
            "allreduce of float32, 4 to 7 bytes: double_tree (tuned at 8 B: 1.25 us against 40.1 us native)"
            in texts
        )
        assert (
            "allreduce of float64, 8 to 15 bytes: double_tree (tuned for f4: 1.25 us against 40.1 us native)"
            in texts
        )
        assert any(
            text.startswith(f"{tree}, segments of 4096 bytes (tuned at 64 KiB: 4 us") for text in texts
        )
    monkeypatch.setenv("HPCOLL_ALLREDUCE", "circulant")
    assert ran(made(monkeypatch, file), "allreduce", "f4", 8) == "circulant"


MISFITS = {
    "mpi": (HERE._replace(mpi="Another MPI 7"), "Another MPI 7"),
    "nranks": (HERE._replace(nranks=WORLD.size + 1), str(WORLD.size + 1)),
    "hosts": (HERE._replace(hosts=(("far", WORLD.size),)), f"far ({WORLD.size})"),
}


@pytest.mark.parametrize("field", MISFITS)
def test_a_table_of_elsewhere_is_refused_once_and_by_name(
    field: str, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    where, there = MISFITS[field]
    written(file, Section(where, "f4", {"allreduce": (Entry(8, "double_tree", 8, 1, 2),)}))
    untuned = ran(hpcoll.Communicator(WORLD.Dup()), "allreduce", "f4", 8)
    comm = made(monkeypatch, file)
    parts = [comm.Dup(), comm.Split(comm.rank % 2, comm.rank), comm.Split(comm.rank)]
    texts = [
        text
        for record in caplog.records
        if "tuning file" in (text := record.getMessage()) and record.levelno >= logging.WARNING
    ]
    assert len([text for text in texts if f"field {field} has " in text]) == (WORLD.rank == 0)
    assert [text for text in texts if str(file) not in text] == []
    if WORLD.rank == 0:
        assert texts[0].startswith(
            f"tuning file {file} does not fit this communicator: field {field} has {there}, this run has "
        )
        assert texts[0].endswith("; the model decides")
    assert ran(comm, "allreduce", "f4", 8) == untuned
    for part in parts:
        part.Barrier()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (
            '{"format": 1,\n "hpcoll": oops}',
            "tuning file .*table.json, line 2: expected JSON, got Expecting value",
        ),
        (
            '{"format": 1, "hpcoll": "", "sections": [{}]}',
            r"tuning file .*json, field sections\[0\].hosts: expected an object, got none",
        ),
        (None, "cannot read tuning file .*table.json: No such file or directory"),
    ],
)
def test_a_file_that_is_wrong_is_an_error_on_every_rank(
    content: str | None, text: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if content is not None and WORLD.rank == 0:
        file.write_text(content)
    with pytest.raises(ArgumentError, match=f"^rank 0: {text}"):
        made(monkeypatch, file)
    monkeypatch.delenv(VARIABLE)
    hpcoll.Communicator(WORLD).Barrier()


def test_ranks_with_different_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ArgumentError, match=r"rank 1: HPCOLL_TUNING must be equal on all ranks, .*table-0.*table-1"
    ):
        made(monkeypatch, Path(f"table-{WORLD.rank}"))
