"""Files that are written as a whole or not at all, files that are read, and folders that only this user, or root, can write to.

Other users may write to the folders around. So temporary files have names that cannot be guessed, links are not followed where something
is written, pipes are not waited for, and the files of an owned folder are opened relative to its descriptor. A process that is killed
while it writes leaves its temporary file, which a later one removes.
"""

import errno
import fcntl
import os
import re
import stat
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import source_hash
from pathlib import Path
from typing import BinaryIO

from hpcoll.base.launchers import local_rank

# folders whose entries are written in place, because nothing can replace them
_STREAMS = (
    "/dev",
    "/dev/fd",
    "/proc/self/fd",
)
_AT_ONCE = os.O_NONBLOCK | os.O_CLOEXEC  # does not wait for a pipe's other end
_SAFE = os.O_NOFOLLOW | _AT_ONCE  # and follows no link
# of a file in an owned folder: format, bytes of the content, digest of name and content
_HEAD = struct.Struct("<8sQ8s")
_FORMAT = b"hpcoll 1"
_TICK_S = 0.02  # between tries for another process's lock
_TEMPORARY = ".hpcoll-"  # begins the names of temporary files; 16 hexadecimal digits follow
_LEFT_AFTER_S = 3600.0  # no process writes a file for so long
# folders in which this process has looked for temporary files that others have left
_swept: set[tuple[int, int]] = set()


class UntrustedError(OSError):
    """A file or folder is refused because another user may have written it; the text says why."""


@contextmanager
def reading(path: str | Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading; a pipe or device is refused, and not waited for, since another user may have put it there.

    Streams such as ``/dev/stdin`` are read as they are. OSError: there is no such file, or it is no regular one.
    """
    flags = os.O_RDONLY if _is_stream(Path(path)) else os.O_RDONLY | _AT_ONCE
    with open(os.open(path, flags), "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISDIR(mode):
            raise _error(errno.EISDIR, path)
        if flags & _AT_ONCE and not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))
        yield file


def write_file(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Replace a file as a whole, so that a reader finds the old content or the new one; text becomes UTF-8, question marks what cannot.

    ``mode`` is a new file's, before the umask. A link is replaced, not followed. Streams such as ``/dev/stdout`` are written in place.
    After an OSError the file is as it was, and no temporary file is left.
    """
    content = content.encode(errors="replace") if isinstance(content, str) else content
    if _is_stream(path):
        path.write_bytes(content)
        return
    with _searched(path.parent) as folder:
        _replace(folder, path.name, content, mode)


def check_writable(path: Path) -> None:
    """Check that `write_file` could write a file, and leave the file as it is; else raise OSError."""
    if _is_stream(path):
        return
    if path.is_dir() and not path.is_symlink():
        raise _error(errno.EISDIR, path)
    with _searched(path.parent) as folder:
        name, descriptor = _temporary(folder, 0o600)
        os.close(descriptor)
        os.unlink(name, dir_fd=folder)


def memory_file(name: str) -> int:
    """Return the descriptor of a new anonymous memory file that other users cannot open."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    os.fchmod(descriptor, 0o600)
    return descriptor


class OwnedFolder:
    """A folder that only this user, or root, can write to; open until `close`.

    Its files begin with their length and a digest of name and content, by which `read` notices one that is not whole. With a ``mode`` a
    missing folder is made; who can read the folder can read its files.

    Raises:
        UntrustedError: The folder is a link, belongs to another user, or others may write to it.
        OSError: It cannot be opened, or, with ``mode``, made and written.
    """

    def __init__(self, path: Path, mode: int = 0) -> None:
        self._path, self._mode = path, mode & 0o644
        if mode and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                path.mkdir(mode)
        self._descriptor = opened(path, os.O_RDONLY | os.O_DIRECTORY, stat.S_ISDIR)
        if mode and not os.access(path, os.W_OK):
            self.close()
            raise _error(errno.EACCES, path)

    def close(self) -> None:
        """Close the folder."""
        os.close(self._descriptor)

    def read(self, name: str) -> bytes:
        """Return the content of a file.

        Raises:
            UntrustedError: The file is a link, belongs to another user, or others may write to it.
            OSError: There is none, or it is not whole.
        """
        with self._file(name, os.O_RDONLY) as file, open(file, "rb", closefd=False) as stream:
            head, content = stream.read(_HEAD.size), stream.read()
        if head != _head(name, content):
            raise OSError(errno.EIO, "is not whole", str(self._path / name))
        return content

    def write(self, name: str, content: bytes) -> None:
        """Replace a file as a whole; after an OSError it is as it was, and no temporary file is left."""
        _replace(self._descriptor, name, _head(name, content) + content, self._mode)

    def write_new(self, name: str, content: bytes) -> None:
        """Make a file as a whole where there is none; of several processes, also of other hosts, one makes it."""
        temporary, descriptor = _temporary(self._descriptor, self._mode)
        try:
            with open(descriptor, "wb") as file:
                file.write(_head(name, content) + content)
                file.flush()
                os.fsync(descriptor)
            with suppress(FileExistsError):
                os.link(temporary, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        finally:
            os.unlink(temporary, dir_fd=self._descriptor)

    @contextmanager
    def lock(self, name: str, patience_s: float = 0.0, byte: int | None = None) -> Iterator[bool]:
        """Hold the lock of a name; yield False where another process keeps it for longer than ``patience_s``.

        One file has a lock for each ``byte``, below 2**32. This process keeps such locks until all its ``with`` blocks of that name end.

        Raises as `read`, for the lock's file, and OSError where the file system has no locks.
        """
        end = time.monotonic() + patience_s
        with self._file(name, os.O_RDWR | os.O_CREAT) as file:
            while not (held := _try_lock(file, byte)) and time.monotonic() < end:
                time.sleep(_TICK_S)
            yield held

    @contextmanager
    def _file(self, name: str, flags: int) -> Iterator[int]:
        with _closed(opened(self._path / name, flags, stat.S_ISREG, self._descriptor)) as descriptor:
            yield descriptor


def opened(
    path: Path, flags: int, fits: Callable[[int], bool] = stat.S_ISREG, folder: int | None = None
) -> int:
    """Return the descriptor of a file of ``folder``, or of any, once its kind and owner are checked; a new one is this user's alone.

    No link is followed, and no pipe's other end is waited for.

    Raises:
        UntrustedError: The file is a link, or not of the kind that ``fits``; it belongs to another user, or others may write to it.
        OSError: It cannot be opened.
    """
    try:
        descriptor = os.open(path if folder is None else path.name, flags | _SAFE, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise UntrustedError(f"{path} is a link, or not of the expected kind") from None
        raise
    status = os.fstat(descriptor)
    reason = ""
    if not fits(status.st_mode):
        reason = "is not of the expected kind"
    elif status.st_uid not in (0, os.geteuid()):
        reason = f"belongs to user {status.st_uid}, and this is user {os.geteuid()}"
    elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        reason = f"can be written by other users (mode {stat.S_IMODE(status.st_mode):04o}); chmod go-w makes it yours alone"
    if reason:
        os.close(descriptor)
        raise UntrustedError(f"{path} {reason}")
    return descriptor


def _try_lock(file: int, byte: int | None = None) -> bool:
    try:
        if byte is None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _head(name: str, content: bytes) -> bytes:
    """Return a file's first bytes; their digest detects damage and needs no import of a cryptographic library."""
    return _HEAD.pack(_FORMAT, len(content), source_hash(name.encode() + b"\0" + content))


def _error(code: int, path: str | Path) -> OSError:
    """Return the error of a code, of the class that Python has for it."""
    return OSError(code, os.strerror(code), str(path))


def _is_stream(path: Path) -> bool:
    return os.path.abspath(path.parent) in _STREAMS


@contextmanager
def _searched(folder: Path) -> Iterator[int]:
    """Yield a folder's descriptor for naming its files, which needs no right to list them."""
    with _closed(os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
        yield descriptor


@contextmanager
def _closed(descriptor: int) -> Iterator[int]:
    """Yield a descriptor, and close it afterwards."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _temporary(folder: int, mode: int) -> tuple[str, int]:
    """Create a file with a random name; return name and descriptor."""
    name = f"{_TEMPORARY}{os.urandom(8).hex()}"
    return name, os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE, mode, dir_fd=folder)


def _sweep(folder: int) -> None:
    """Remove old temporary files of this user that no process of this node has open for writing; once per process and folder.

    Of a node's ranks the first one does, so that many ranks of a job do not all list the folder.
    """
    status = os.fstat(folder)
    if local_rank(os.environ) or (status.st_dev, status.st_ino) in _swept:
        return
    _swept.add((status.st_dev, status.st_ino))
    with (
        suppress(OSError),
        _closed(os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)) as listed,
    ):
        for name in os.listdir(listed):
            if re.fullmatch(rf"{re.escape(_TEMPORARY)}[0-9a-f]{{16}}", name):
                _remove_left(listed, name)


def _remove_left(folder: int, name: str) -> None:
    with suppress(OSError), _closed(os.open(name, os.O_RDWR | _SAFE, dir_fd=folder)) as file:
        status = os.fstat(file)
        old = time.time() - status.st_mtime > _LEFT_AFTER_S
        if old and stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and _try_lock(file):
            os.unlink(name, dir_fd=folder)


def _replace(folder: int, name: str, content: bytes, mode: int) -> None:
    _sweep(folder)
    temporary, descriptor = _temporary(folder, mode)
    try:
        with open(descriptor, "wb") as file:
            with suppress(OSError):  # a file system without locks
                _try_lock(descriptor)  # while this process lives
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(temporary, dir_fd=folder)
        raise
