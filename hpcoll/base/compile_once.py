"""One compilation per node: whoever comes first compiles, the others wait and load it from Numba's disk cache.

A file of the node for each work, not a message, so that ranks of any communicator may meet here. It is locked while somebody works, and
not empty once the work was done on this node: then nobody waits for anybody.
"""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import source_hash
from pathlib import Path


@contextmanager
def once_per_node(what: str, source: str, *, waits: bool = True) -> Iterator[bool]:
    """Hold the node's lock on a work, unless it was done on this node before; whether this process may do it.

    Args:
        what: Name of what is compiled; holds a digest of all that it is made from, compilers included.
        source: File it comes from; its path and modification time are part of the stamp.
        waits: For another process that is doing it; else the answer is no meanwhile.
    """
    name = source_hash(f"{what} {source} {os.stat(source).st_mtime_ns}".encode()).hex()
    try:
        stamp = (_folder() / name).open("ab")
    except OSError:  # no folder that this user may write to: everybody compiles
        yield True
        return
    with stamp:
        done = os.fstat(stamp.fileno()).st_size > 0
        try:
            if not done:
                fcntl.flock(stamp, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True
        if not done:
            stamp.write(b"done")


def _folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"hpcoll-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
