"""One compilation per node: whoever comes first compiles, the others wait and load it from Numba's disk cache.

A file lock of the node, not a message, so that ranks of any communicator may meet here. A stamp says that the work was
done on this node, and then nobody waits for anybody.
"""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import source_hash
from pathlib import Path


@contextmanager
def once_per_node(what: str, source: str) -> Iterator[None]:
    """Hold the node's lock while compiling, unless it was compiled on this node before.

    Args:
        what: Name of what is compiled; holds a digest of all that it is made from, compilers included.
        source: File it comes from; its path and modification time are part of the stamp.
    """
    name = source_hash(f"{what} {source} {os.stat(source).st_mtime_ns}".encode()).hex()
    try:
        stamp = _folder() / name
        lock = None if stamp.exists() else (stamp.parent / "lock").open("w")
    except OSError:  # no folder that this user may write to: everybody compiles
        lock = None
    if lock is None:
        yield
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    stamp.touch()


def _folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"hpcoll-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
