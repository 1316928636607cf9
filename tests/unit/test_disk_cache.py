"""Compiled code is kept on disk: made once, waited for, and made by every process where it cannot be kept."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from test_files import files_of_at_most

from hpcoll.base import disk_cache
from hpcoll.base.files import OwnedFolder

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, node_folder: Path) -> Path:
    """In a process that has said nothing yet."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(node_folder))
    monkeypatch.delenv("HPCOLL_CACHE", raising=False)
    disk_cache._spoken.clear()
    return node_folder / "hpcoll"


def refuse() -> bytes:
    raise AssertionError("made again")


def content(folder: Path, name: str) -> bytes:
    with closing(OwnedFolder(folder)) as one:
        return one.read(name)


def keep(folder: Path, name: str, content: bytes) -> None:
    with closing(OwnedFolder(folder, 0o700)) as one:
        one.write(name, content)


@contextmanager
def at_work(name: str) -> Iterator[None]:
    """Another process makes a file."""
    with closing(disk_cache.lock_folder()) as node, node.lock(name) as held:
        assert held
        yield


def test_made_once_by_one_process(folder: Path) -> None:
    assert [disk_cache.kept("one", make) for make in (lambda: b"made", refuse)] == [b"made"] * 2
    assert content(folder, "one") == b"made"


def test_work_that_fails_is_not_done(folder: Path) -> None:
    with pytest.raises(AssertionError):
        disk_cache.kept("one", refuse)
    assert disk_cache.kept("one", lambda: b"made") == content(folder, "one") == b"made"


@pytest.mark.parametrize("damaged", [b"", b"garbage", bytes(1000)], ids=["empty", "garbage", "zeroed"])
def test_a_damaged_file_heals(folder: Path, damaged: bytes, capfd: Capture) -> None:
    """A crash, a full disk or a file system may have left it so."""
    keep(folder, "one", b"old")
    (folder / "one").write_bytes(damaged)
    assert disk_cache.kept("one", lambda: b"made") == content(folder, "one") == b"made"
    assert capfd.readouterr().err == ""


def test_long_work_says_so_once(capfd: Capture) -> None:
    for name in ("one", "other"):
        disk_cache.kept(name, lambda: bytes(time.sleep(1.2) or 3))
    begins, ends = capfd.readouterr().err.splitlines()
    assert (
        begins
        == f"hpcoll: process {os.getpid()} on {os.uname().nodename} compiles for this kind of machine, once: 10 to 30 s as a rule"
    )
    assert ends == f"hpcoll: compiled in 1 s, and kept in {disk_cache.folder()}"


def test_what_another_process_makes_is_waited_for(folder: Path) -> None:
    found = list[bytes]()
    with at_work("one"):
        waits = threading.Thread(target=lambda: found.append(disk_cache.kept("one", refuse)))
        waits.start()
        keep(folder, "one", b"theirs")
    waits.join()
    assert found == [b"theirs"]


def test_the_wait_is_bounded(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """The process that has the lock may be stopped."""
    monkeypatch.setattr(disk_cache, "_PATIENCE_S", 0.5)
    with at_work("one"):
        assert disk_cache.kept("one", lambda: b"made") == content(folder, "one") == b"made"


def a_file(folder: Path) -> None:
    folder.write_text("a file")


def of_all(folder: Path) -> None:
    folder.mkdir(0o777)
    folder.chmod(0o777)


@pytest.mark.parametrize("spoil", [a_file, of_all])
def test_a_folder_that_cannot_be_used(folder: Path, spoil: Callable[[Path], None], capfd: Capture) -> None:
    """The node keeps the file in its place, made once, and one process of the node says why, once."""
    spoil(folder)
    assert [disk_cache.kept("one", make) for make in (lambda: b"made", refuse)] == [b"made"] * 2
    assert folder.is_file() or not list(folder.iterdir())
    assert content(disk_cache.node_folder(), "one") == b"made"
    (said,) = capfd.readouterr().err.splitlines()
    assert said.startswith(f"hpcoll: {folder} ")
    assert said.endswith("; it is not used, and what it should hold is compiled again")


def test_no_folder_at_all(folder: Path, capfd: Capture) -> None:
    """Everybody compiles and waits for nobody."""
    a_file(folder)
    of_all(disk_cache.node_folder())
    assert [disk_cache.kept("one", lambda: b"made") for _ in range(2)] == [b"made"] * 2
    assert not list(disk_cache.node_folder().iterdir())


def test_other_processes_of_the_node_say_nothing(
    monkeypatch: pytest.MonkeyPatch, folder: Path, capfd: Capture
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1")
    of_all(folder)
    assert disk_cache.kept("one", lambda: b"made") == b"made"
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("spoil", [a_file, of_all])
def test_without_a_folder_for_locks_everybody_compiles(
    folder: Path, spoil: Callable[[Path], None], capfd: Capture
) -> None:
    spoil(disk_cache.node_folder())
    assert disk_cache.kept("one", lambda: b"made") == content(folder, "one") == b"made"
    said = capfd.readouterr().err
    assert said.startswith(f"hpcoll: {disk_cache.node_folder()} ")
    assert said.endswith("the processes of this node do not share the work of compiling\n")


def test_a_full_disk_costs_what_is_kept_and_nothing_else(folder: Path) -> None:
    with files_of_at_most(1000):
        assert disk_cache.kept("one", lambda: bytes(5000)) == bytes(5000)
    assert not list(folder.iterdir())


def test_a_site_offers_folders(monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path) -> None:
    """They are looked into first and never written to."""
    keep(tmp_path / "site", "one", b"the site's")
    monkeypatch.setenv("HPCOLL_CACHE", f"{tmp_path / 'missing'}:{tmp_path / 'site'}")
    assert disk_cache.kept("one", refuse) == b"the site's"
    assert not folder.exists()
    assert disk_cache.kept("other", lambda: b"made") == content(folder, "other") == b"made"
    assert [path.name for path in (tmp_path / "site").iterdir()] == ["one"]
    assert not (tmp_path / "missing").exists()


def test_folders(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    assert disk_cache.folder() == folder
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/of/the/desktop")
    assert disk_cache.folder() == Path("/of/the/desktop/hpcoll")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert disk_cache.folder() == Path("/home/somebody/.cache/hpcoll")
