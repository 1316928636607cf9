"""The node's lock on a work: held until it was done once, then passed by; and no obstacle where it cannot be had."""

import fcntl
from pathlib import Path

import pytest

from hpcoll.base import compile_once


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(compile_once, "_folder", lambda: tmp_path)
    return tmp_path


def nlocked(folder: Path) -> int:
    """Works that somebody is at."""
    n = 0
    for path in folder.iterdir():
        with path.open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                n += 1
    return n


def test_the_first_one_holds_the_lock_the_next_one_needs_none(folder: Path) -> None:
    with compile_once.once_per_node("work", __file__) as mine:
        assert (mine, nlocked(folder)) == (True, 1)
    with compile_once.once_per_node("work", __file__) as mine:
        assert (mine, nlocked(folder)) == (True, 0)
    with compile_once.once_per_node("other work", __file__):
        assert nlocked(folder) == 1


def test_works_have_locks_of_their_own(folder: Path) -> None:
    with compile_once.once_per_node("work", __file__), compile_once.once_per_node("other work", __file__) as mine:
        assert (mine, nlocked(folder)) == (True, 2)


def test_who_does_not_wait_goes_on(folder: Path) -> None:
    with compile_once.once_per_node("work", __file__), compile_once.once_per_node("work", __file__, waits=False) as mine:
        assert not mine
    with compile_once.once_per_node("work", __file__, waits=False) as mine:
        assert mine


def test_work_that_fails_is_not_done(folder: Path) -> None:
    with pytest.raises(ZeroDivisionError), compile_once.once_per_node("work", __file__):
        raise ZeroDivisionError
    with compile_once.once_per_node("work", __file__):
        assert nlocked(folder) == 1


def test_without_a_folder_everybody_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compile_once, "_folder", lambda: tmp_path / "absent")
    done = []
    with compile_once.once_per_node("work", __file__):
        done.append(1)
    assert done
