"""The node's compile lock: held until the work was done once, then passed by; and no obstacle where it cannot be had."""

import fcntl
from pathlib import Path

import pytest

from hpcoll.base import compile_once


def is_locked(folder: Path) -> bool:
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_the_first_one_holds_the_lock_the_next_one_needs_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compile_once, "_folder", lambda: tmp_path)
    with compile_once.once_per_node("work", __file__):
        assert is_locked(tmp_path)
    with compile_once.once_per_node("work", __file__):
        assert not is_locked(tmp_path)
    with compile_once.once_per_node("other work", __file__):
        assert is_locked(tmp_path)


def test_work_that_fails_is_not_done(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compile_once, "_folder", lambda: tmp_path)
    with pytest.raises(ZeroDivisionError), compile_once.once_per_node("work", __file__):
        raise ZeroDivisionError
    with compile_once.once_per_node("work", __file__):
        assert is_locked(tmp_path)


def test_without_a_folder_everybody_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compile_once, "_folder", lambda: tmp_path / "absent")
    done = []
    with compile_once.once_per_node("work", __file__):
        done.append(1)
    assert done
