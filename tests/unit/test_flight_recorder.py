"""Flight records as they are written, and the place of the program that a call is noted with."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import mpi4py
import pytest

mpi4py.rc.initialize = False  # importing hpcoll.comm must not start MPI

from hpcoll.comm.diagnosis import flight_recorder  # noqa: E402
from hpcoll.comm.status.call_site import place_of_caller  # noqa: E402


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(flight_recorder, "MPI", SimpleNamespace(COMM_WORLD=SimpleNamespace(rank=0, size=1)))
    return tmp_path


def test_a_signal_while_a_record_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is written whole: one that comes in the middle of another has a file of its own until it is."""
    write_text = Path.write_text

    def interrupted(self: Path, text: str) -> int:
        monkeypatch.setattr(Path, "write_text", write_text)
        with self.open("w") as file:
            file.write(text[:100])
            file.flush()
            flight_recorder.write_record(str(folder), "the signal")
            return file.write(text[100:])

    monkeypatch.setattr(Path, "write_text", interrupted)
    assert flight_recorder.write_record(str(folder), "a call has failed") == folder / "rank0.json"
    assert json.loads((folder / "rank0.json").read_text())["why"] == "a call has failed"
    assert [one.name for one in folder.iterdir()] == ["rank0.json"]


def test_a_record_that_finds_no_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves nothing that is no record."""

    def full(descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    assert flight_recorder.write_record(str(folder), "") is None
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(("name", "seen"), [("hpcoll_app", True), ("hpcoll_app.model", True), ("hpcoll.comm.x", False), ("hpcoll", False)])
def test_packages_whose_names_begin_alike(name: str, seen: bool) -> None:
    """Are the program's own."""
    there = {"__name__": name, "place_of_caller": place_of_caller}
    exec(compile("place = place_of_caller()", f"{name}.py", "exec"), there)
    place = there["place"]
    assert isinstance(place, tuple)
    assert (place[0].co_filename == f"{name}.py") == seen
