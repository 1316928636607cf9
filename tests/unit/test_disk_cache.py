"""Compiled code is kept on disk: made once, waited for, and made by every process where it cannot be kept."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from hpcoll.base import disk_cache
from hpcoll.base.files import OwnedFolder

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("HPCOLL_CACHE", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(disk_cache, "_spoken", [])
    monkeypatch.setattr(disk_cache, "local_rank", lambda environment: None)
    return tmp_path / "hpcoll"


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


def nlocked() -> int:
    """Files that somebody makes."""
    n = 0
    for path in (one for one in disk_cache.node_folder().iterdir() if one.suffix != ".said"):
        with path.open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                n += 1
    return n


def test_made_once_by_one_process(folder: Path) -> None:
    made: list[int] = []

    def make() -> bytes:
        made.append(nlocked())
        return b"made"

    assert [disk_cache.kept("one", make) for _ in range(2)] == [b"made"] * 2
    assert (made, content(folder, "one"), nlocked()) == ([1], b"made", 0)


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


def test_long_work_says_so_once(monkeypatch: pytest.MonkeyPatch, capfd: Capture) -> None:
    monkeypatch.setattr(disk_cache, "_SAID_AFTER_S", 0.01)
    for name in ("one", "other"):
        disk_cache.kept(name, lambda: bytes(time.sleep(0.2) or 3))
    monkeypatch.setattr(disk_cache, "_SAID_AFTER_S", 60.0)
    disk_cache.kept("a third", lambda: b"made")
    begins, ends = capfd.readouterr().err.splitlines()
    assert (
        begins
        == f"hpcoll: process {os.getpid()} on {os.uname().nodename} compiles for this kind of machine, once: 10 to 30 s as a rule"
    )
    assert ends == f"hpcoll: compiled in 0 s, and kept in {disk_cache.folder()}"


def test_very_long_work_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capfd: Capture) -> None:
    """Of two parts, the one that another process makes counts as soon as it is there."""
    monkeypatch.setattr(disk_cache, "_SAID_AFTER_S", 0.01)
    monkeypatch.setattr(disk_cache, "_PROGRESS_S", 0.3)

    def make() -> bytes:
        time.sleep(0.5)
        keep(disk_cache.folder(), "other", b"theirs")
        return bytes(time.sleep(0.5) or 3)

    assert disk_cache.kept_all({"one": make, "other": refuse}) == [bytes(3), b"theirs"]
    _, *goes_on, ends = capfd.readouterr().err.splitlines()
    assert goes_on[0] == "hpcoll: still compiling after 0 s: 0 of 2 parts are ready"
    assert goes_on[-1].endswith("1 of 2 parts are ready")
    assert ends.startswith("hpcoll: compiled in ")


def test_what_another_process_makes_is_waited_for(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    with at_work("one"):
        real = disk_cache._lock

        @contextmanager
        def ends(name: str, patience_s: float, **_: bool) -> Iterator[bool]:
            if patience_s:
                keep(folder, name, b"theirs")
            with real(name, 0.0):
                yield bool(patience_s)

        monkeypatch.setattr(disk_cache, "_lock", ends)
        assert disk_cache.kept("one", refuse) == b"theirs"


def test_the_wait_is_bounded_and_said(monkeypatch: pytest.MonkeyPatch, folder: Path, capfd: Capture) -> None:
    """The process that has the lock may be stopped."""
    monkeypatch.setattr(disk_cache, "_PATIENCE_S", 0.5)
    monkeypatch.setattr(disk_cache, "_WAIT_SAID_AFTER_S", 0.01)
    with at_work("one"):
        assert disk_cache.kept("one", lambda: b"made") == content(folder, "one") == b"made"
    assert (
        capfd.readouterr().err
        == "hpcoll: waiting for another process of this node that compiles, for 300 s at most\n"
    )


def test_what_another_process_is_making_comes_last(monkeypatch: pytest.MonkeyPatch, capfd: Capture) -> None:
    """Two processes that need the same two files make one each; the one that met the other at work does not say so, too."""
    monkeypatch.setattr(disk_cache, "_SAID_AFTER_S", 0.01)
    monkeypatch.setattr(disk_cache, "_PATIENCE_S", 0.1)
    made: list[str] = []

    def make(name: str) -> bytes:
        made.append(name)
        return bytes(time.sleep(0.2) or 3)

    with at_work("first"), at_work("first.said"):
        found = disk_cache.kept_all({name: partial(make, name) for name in ("first", "second")})
    assert (made, found) == (["second", "first"], [bytes(3)] * 2)
    assert capfd.readouterr().err == ""


def a_file(folder: Path) -> None:
    folder.write_text("a file")


def of_all(folder: Path) -> None:
    folder.mkdir(0o777)
    folder.chmod(0o777)


@pytest.mark.parametrize("spoil", [a_file, of_all])
def test_a_folder_that_cannot_be_used(
    folder: Path, spoil: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    """The node keeps the file in its place, made once, and one process of the node says why, once."""
    monkeypatch.setattr(disk_cache, "_SAID_AFTER_S", 0.01)
    spoil(folder)
    assert [disk_cache.kept("one", make) for make in (lambda: bytes(time.sleep(0.2) or 3), refuse)] == [
        bytes(3)
    ] * 2
    assert folder.is_file() or not list(folder.iterdir())
    assert content(disk_cache.node_folder(), "one") == bytes(3)
    first, _, ends = capfd.readouterr().err.splitlines()
    assert first.startswith(f"hpcoll: {folder} ")
    assert first.endswith("; it is not used, and what it should hold is compiled again")
    assert ends.endswith(
        f"kept in {disk_cache.node_folder()}, as long as the node keeps that: {folder} cannot be used"
    )


def test_no_folder_at_all(folder: Path, capfd: Capture) -> None:
    """Everybody compiles and waits for nobody."""
    a_file(folder)
    of_all(disk_cache.node_folder())
    assert [disk_cache.kept("one", lambda: b"made") for _ in range(2)] == [b"made"] * 2
    assert not list(disk_cache.node_folder().iterdir())


def test_other_processes_of_the_node_say_nothing(
    monkeypatch: pytest.MonkeyPatch, folder: Path, capfd: Capture
) -> None:
    monkeypatch.setattr(disk_cache, "local_rank", lambda environment: 1)
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


def test_a_full_disk_costs_what_is_kept_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    def full(descriptor: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert disk_cache.kept("one", lambda: b"made") == b"made"
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


def test_a_folder_for_others(monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path) -> None:
    monkeypatch.setattr(disk_cache, "_chosen", [])
    keep(folder, "one", b"the user's own")
    disk_cache.keep_in(tmp_path / "site")
    before = os.umask(0o022)
    assert disk_cache.kept("one", lambda: b"made") == content(tmp_path / "site", "one") == b"made"
    os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "site", tmp_path / "site" / "one")] == [
        0o755,
        0o644,
    ]


def test_folders(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    assert disk_cache.folder() == folder
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/of/the/desktop")
    assert disk_cache.folder() == Path("/of/the/desktop/hpcoll")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert disk_cache.folder() == Path("/home/somebody/.cache/hpcoll")


def test_a_user_without_a_home_keeps_it_on_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    assert disk_cache.kept("one", lambda: b"made") == content(disk_cache.node_folder(), "one") == b"made"
