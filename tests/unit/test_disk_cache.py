"""What was compiled is kept on disk: made once, waited for, and made by everybody where it cannot be kept."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from hpcoll.base import disk_cache


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    return tmp_path / "hpcoll"


def refuse() -> bytes:
    raise AssertionError("made again")


def test_made_once(folder: Path) -> None:
    assert disk_cache.kept("one", __file__, lambda: b"made") == b"made"
    assert disk_cache.kept("one", __file__, refuse) == b"made"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"one": b"made"}


def test_long_work_says_so_once(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(disk_cache, "_PATIENCE_S", 0.01)
    monkeypatch.setattr(disk_cache, "_spoken", [])
    for name in ("one", "other"):
        disk_cache.kept(name, __file__, lambda: bytes(time.sleep(0.2) or 3))
    monkeypatch.setattr(disk_cache, "_PATIENCE_S", 60.0)
    disk_cache.kept("a third", __file__, lambda: b"made")
    assert capfd.readouterr().err == "hpcoll: compiling for this machine, once\n"


def test_what_another_process_makes_is_waited_for(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    @contextmanager
    def meanwhile(name: str, source: str, *, waits: bool) -> Iterator[bool]:
        if waits:
            folder.mkdir()
            (folder / name).write_bytes(b"theirs")
        yield waits

    monkeypatch.setattr(disk_cache, "once_per_node", meanwhile)
    assert disk_cache.kept("one", __file__, refuse) == b"theirs"


def test_what_another_process_is_making_comes_last(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Two processes that need the same two files make one each; the other one, which is at it, says so."""
    made: list[str] = []

    @contextmanager
    def busy(name: str, source: str, *, waits: bool) -> Iterator[bool]:
        yield waits or name != "first"

    def make(name: str) -> bytes:
        made.append(name)
        return bytes(time.sleep(0.2) or 3)

    monkeypatch.setattr(disk_cache, "once_per_node", busy)
    monkeypatch.setattr(disk_cache, "_PATIENCE_S", 0.01)
    monkeypatch.setattr(disk_cache, "_spoken", [])
    found = disk_cache.kept_all({name: partial(make, name) for name in ("first", "second")}, __file__)
    assert (made, found) == (["second", "first"], [bytes(3)] * 2)
    assert capfd.readouterr().err == ""


def test_nowhere_to_keep_it(folder: Path) -> None:
    folder.write_text("a file")
    assert [disk_cache.kept("one", __file__, lambda: b"made") for _ in range(2)] == [b"made", b"made"]


def test_folders(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    assert disk_cache.folder() == folder
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/of/the/desktop")
    assert disk_cache.folder() == Path("/of/the/desktop/hpcoll")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert disk_cache.folder() == Path("/home/somebody/.cache/hpcoll")


def test_a_user_without_a_home_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    assert disk_cache.kept("one", __file__, lambda: b"made") == b"made"
