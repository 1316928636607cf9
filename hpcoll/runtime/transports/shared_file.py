"""Files without a name that the processes of a node share: one opens a file, the others open it through its descriptor.

They are in /dev/shm, or of memory alone where file systems make none (gVisor).
"""

import contextlib
import errno
import os
from collections.abc import Iterator

from hpcoll.base.files import memory_file

FOLDER = "/dev/shm"
_NONE_NAMELESS = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS)  # what a file system says that makes no such files


def new() -> tuple[int, bool]:
    """Descriptor of a new one, and whether it is of memory alone.

    Raises:
        OSError: says of what.
    """
    try:
        return os.open(FOLDER, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600), False
    except OSError as error:
        if error.errno not in _NONE_NAMELESS:
            raise OSError(f"{FOLDER}: {error.strerror}") from None
    return memory_file("hpcoll"), True


def identity(file: int | str) -> tuple[int, int]:
    """What tells a file from all others."""
    if file == -1:
        return -1, -1
    found = os.stat(file)
    return found.st_dev, found.st_ino % 2**63


def open_theirs(path: str, theirs: tuple[int, int]) -> int:
    """Open a file of another process; in another namespace its number may be that of a stranger, whose files are none of ours."""
    if identity(path) != theirs:
        raise OSError(f"{path} is another file here: the ranks are in containers of their own")
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


@contextlib.contextmanager
def noted() -> Iterator[list[str]]:
    """Catch what the operating system refuses, as text."""
    notes: list[str] = []
    try:
        yield notes
    except (OSError, OverflowError) as error:
        notes.append(str(error))
