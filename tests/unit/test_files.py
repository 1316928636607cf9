"""Files that are written whole or not at all, and folders of which nobody else's files are read."""

import fcntl
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

import pytest
from fuzz_formats import FORMATS

from hpcoll.base.errors import ArgumentError
from hpcoll.base.files import OwnedFolder, UntrustedError, check_writable, reading, write_file
from hpcoll.registry.sources import read_file

NAME = "kept"
LEFT = f".hpcoll-{'0' * 16}"  # a temporary file that a process has left


@contextmanager
def files_of_at_most(nbytes: int) -> Iterator[None]:
    """As on a disk that is full: writes beyond fail."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def owned(path: Path) -> closing[OwnedFolder]:
    return closing(OwnedFolder(path, 0o700))


def keep(path: Path, content: bytes) -> None:
    with owned(path) as folder:
        folder.write(NAME, content)


def kept(path: Path) -> bytes:
    with closing(OwnedFolder(path)) as folder:
        return folder.read(NAME)


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "result"
    for content in ("first", "é"):
        write_file(path, content)
        assert path.read_text(encoding="utf-8") == content
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "result"
    write_file(path, "old")
    with files_of_at_most(1000), pytest.raises(OSError, match="File too large"):
        write_file(path, bytes(5000))
    assert (path.read_text(), list(tmp_path.iterdir())) == ("old", [path])


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    """A link that another user has planted may lead to a private file."""
    private, path = tmp_path / "private", tmp_path / "result"
    private.write_text("private")
    path.symlink_to(private)
    write_file(path, "new")
    assert (private.read_text(), path.read_text(), path.is_symlink()) == ("private", "new", False)


def test_streams_are_written_as_they_are() -> None:
    program = "from pathlib import Path; from hpcoll.base.files import *; p = Path('/dev/stdout'); check_writable(p); write_file(p, 'text')"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"text"


@pytest.mark.parametrize("there", ["nothing", "a file", "a link to nothing"])
def test_trying_to_write_changes_nothing(tmp_path: Path, there: str) -> None:
    path = tmp_path / "result"
    if there == "a file":
        path.write_text(there)
    elif there == "a link to nothing":
        path.symlink_to(tmp_path / "missing")
    before = [(one.name, one.lstat()) for one in tmp_path.iterdir()]
    check_writable(path)
    assert [(one.name, one.lstat()) for one in tmp_path.iterdir()] == before


@pytest.mark.parametrize("path", ["missing/result", "folder", "file/result"])
def test_what_cannot_be_written_is_refused_before(tmp_path: Path, path: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"No such|Is a|Not a"):
        check_writable(tmp_path / path)


def test_an_owned_folder_keeps_files_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "above" / "cache"
    keep(path, b"content")
    assert kept(path) == b"content"
    assert [one.stat().st_mode & 0o777 for one in (path, path / NAME)] == [0o700, 0o600]


def test_one_that_is_only_read_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        OwnedFolder(tmp_path / "cache")
    assert not list(tmp_path.iterdir())


def cut(content: bytes) -> bytes:
    return content[:-1]


def zeroed(content: bytes) -> bytes:
    return bytes(len(content))


def flipped(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize(
    "damage", [lambda content: b"", cut, zeroed, flipped], ids=["empty", "cut", "zeroed", "flipped"]
)
def test_a_file_that_is_not_whole_is_not_read(tmp_path: Path, damage: object) -> None:
    keep(tmp_path / "cache", b"content")
    path = tmp_path / "cache" / NAME
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(OSError, match="is not whole"):
        kept(tmp_path / "cache")


def test_a_file_under_the_name_of_another_is_not_read(tmp_path: Path) -> None:
    with owned(tmp_path / "cache") as folder:
        folder.write("other", b"content")
    (tmp_path / "cache" / "other").rename(tmp_path / "cache" / NAME)
    with pytest.raises(OSError, match="is not whole"):
        kept(tmp_path / "cache")


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
@pytest.mark.parametrize("name", ["", NAME], ids=["folder", "file"])
def test_what_others_may_write_is_refused(tmp_path: Path, mode: int, name: str) -> None:
    keep(tmp_path / "cache", b"content")
    (tmp_path / "cache" / name).chmod(mode)
    with pytest.raises(
        UntrustedError, match=rf"cache/?{name} can be written by other users \(mode 0{mode:o}\)"
    ):
        kept(tmp_path / "cache")


@pytest.mark.parametrize("name", ["", NAME], ids=["folder", "file"])
def test_links_are_refused(tmp_path: Path, name: str) -> None:
    keep(tmp_path / "cache", b"content")
    path = tmp_path / "cache" / name
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UntrustedError, match="is a link"):
        kept(tmp_path / "cache")


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    keep(tmp_path / "cache", b"content")
    (tmp_path / "cache" / NAME).unlink()
    os.mkfifo(tmp_path / "cache" / NAME, 0o600)
    with pytest.raises(UntrustedError, match="is not of the expected kind"):
        kept(tmp_path / "cache")


def test_a_lock_is_waited_for_within_bounds(tmp_path: Path) -> None:
    begun = time.monotonic()
    with (
        owned(tmp_path) as one,
        owned(tmp_path) as other,
        one.lock("lock") as first,
        other.lock("lock", 0.1) as second,
    ):
        assert (first, second) == (True, False)
    assert time.monotonic() - begun >= 0.1
    with owned(tmp_path) as one, one.lock("lock") as held:
        assert held


@pytest.mark.parametrize("what", sorted(FORMATS.keys() - {"environments", "status pages"}))
def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [tmp_path / f"{i}.json" for i in range(len(FORMATS[what].samples()[0]))]
    for name in names:
        os.mkfifo(name)
    assert FORMATS[what].reads(names, 0) == 2
    assert "it is a pipe or a device, not a file" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", [".py", ".xml", ".json"])
def test_a_pipe_in_place_of_an_algorithm(suffix: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"one{suffix}")
    with pytest.raises(ArgumentError, match="it is a pipe or a device"):
        read_file(tmp_path / f"one{suffix}")


def test_streams_are_read_as_they_are() -> None:
    program = "from hpcoll.base.files import reading\nwith reading('/dev/stdin') as file: print(file.read())"
    assert (
        subprocess.run([sys.executable, "-c", program], input=b"text", capture_output=True, check=True).stdout
        == b"b'text'\n"
    )


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError), reading(tmp_path):
        pass


def test_what_killed_processes_have_left_is_removed(tmp_path: Path) -> None:
    """A process that writes is killed; the file stays as long as it may be anyone's who still writes."""
    program = (
        "import sys, pathlib; from hpcoll.base.files import *; write_file(pathlib.Path(sys.argv[1]), 'text')"
    )
    killed = f"import os, signal; os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)\n{program}"
    for command in (killed, program):  # the second finds a file that is young
        subprocess.run([sys.executable, "-c", command, str(tmp_path / "result")], check=False)
    (left,) = tmp_path.glob(".hpcoll-*")
    for name in ("mine", ".hpcoll-mine", f"{LEFT}0"):
        (tmp_path / name).touch()
    for path in tmp_path.iterdir():
        os.utime(path, (0, 0))
    write_file(tmp_path / "result", "text")
    assert not left.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["result", "mine", ".hpcoll-mine", f"{LEFT}0"]
    )


@pytest.mark.parametrize("whose", ["a process that writes", "a link", "a pipe"])
def test_what_is_not_left_stays(whose: str, tmp_path: Path) -> None:
    path, private = tmp_path / LEFT, tmp_path / "private"
    private.touch()
    if whose == "a link":
        path.symlink_to(private)
    elif whose == "a pipe":
        os.mkfifo(path)
    else:
        path.touch()
    os.utime(path, (0, 0), follow_symlinks=False)
    with path.open("r+") if whose == "a process that writes" else nullcontext() as file:
        if file:
            fcntl.flock(file, fcntl.LOCK_EX)
        write_file(tmp_path / "result", "text")
    assert path.lstat().st_mtime == 0
    assert private.exists()


def test_only_the_first_rank_of_a_node_lists_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / LEFT).touch()
    os.utime(tmp_path / LEFT, (0, 0))
    for rank, there in (("1", True), ("0", False)):
        monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", rank)
        write_file(tmp_path / "result", "text")
        assert (tmp_path / LEFT).exists() is there


def test_a_planted_temporary_file_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were the name guessed after all, the link that waits there would not be followed."""
    monkeypatch.setattr(os, "urandom", bytes)
    private = tmp_path / "private"
    private.write_text("private")
    (tmp_path / f".hpcoll-{bytes(8).hex()}").symlink_to(private)
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "result", "new")
    assert private.read_text() == "private"
