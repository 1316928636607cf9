"""The live page: a small memory file of each process in which it says who it is and in which calls it waits, for who looks from outside.

Others find it by its name among the open files of the process (``/proc/PID/fd``) and read it there: nothing needs to be set up, and the
process does nothing for it. It holds two texts, each with length and checksum as notices have them: who the process is, in words with a NUL
between them, written without what short programs never import; and its notice, in JSON.
"""

import contextlib
import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcoll.base.files import memory_file
from hpcoll.runtime.telemetry.status_slots import fitting, get, put, room

NAME = "hpcoll-live"
LINK = f"/memfd:{NAME} (deleted)"  # what the system calls it
FORMAT = 1
NBYTES, _WHO_NBYTES = 16 << 10, 4 << 10
_PEERS_NBYTES = 2 << 10
_MOST_S = 1e11  # the year 5138: what is later is no time
_AGAIN = 2  # more times that a page is read that is not whole, or has no notice: it may just be written


@dataclass(frozen=True)
class Identity:
    """Who a process is.

    Attributes:
        pid: As the process knows it.
        rank, nranks: In COMM_WORLD.
        launcher: Tells the ranks that one launcher has started from others.
        host: Name of its host.
        started: When its first communicator was made, in seconds since 1970.
        peers: Processes of this host that are known to be ranks of the same job, by rank in COMM_WORLD, this one among them.
        program: The program and its arguments.
    """

    pid: int
    rank: int
    nranks: int
    launcher: str
    host: str
    started: float
    peers: Mapping[int, int]
    program: Sequence[str]

    @property
    def text(self) -> bytes:
        """As it stands in the page; peers and arguments that have no room are left out."""
        peers = " ".join(f"{rank}:{pid}" for rank, pid in self.peers.items())
        peers = peers if len(peers) <= _PEERS_NBYTES else peers[:_PEERS_NBYTES].rpartition(" ")[0]
        words = (FORMAT, self.pid, self.rank, self.nranks, self.launcher, self.host, self.started, peers, *self.program)
        return "\0".join(map(str, words)).encode(errors="replace")[: room(_WHO_NBYTES)]

    @classmethod
    def of(cls, text: bytes) -> "Identity":
        """From its text.

        Raises:
            ValueError: it is none, or one of another version.
        """
        version, *words = text.decode(errors="replace").split("\0")
        if version != str(FORMAT):
            raise ValueError(f"format {FORMAT} was expected, got {version!r}")
        pid, rank, nranks, launcher, host, started, peers, *program = words
        known = dict(pair.split(":") for pair in peers.split())
        return cls(
            int(pid), int(rank), int(nranks), launcher, host, seconds(started), {int(one): int(its) for one, its in known.items()}, program
        )  # fmt: skip


class StatusPage:
    """That of this process, which it may write; a fork must `close` it.

    Args:
        stays: It is there until the process ends, which may wait in MPI_Finalize after Python has ended.

    Attributes:
        made: This process has made one.

    Raises:
        OSError: the system makes no such files.
    """

    made = False

    def __init__(self, *, stays: bool = False) -> None:
        file = memory_file(NAME)
        try:
            os.ftruncate(file, NBYTES)
            self._mapped = mmap.mmap(file, NBYTES)  # has a descriptor of its own, by which the page is found
        finally:
            if not stays:
                os.close(file)
        self._memory = np.frombuffer(self._mapped, np.uint8)
        StatusPage.made = True

    def introduce(self, who: Identity) -> None:
        """Say who this process is."""
        put(self._memory[:_WHO_NBYTES], who.text)

    def write(self, notice: dict[str, Any]) -> None:
        """Say in which calls it waits."""
        put(self._memory[_WHO_NBYTES:], fitting(notice, room(NBYTES - _WHO_NBYTES)))

    def close(self) -> None:
        """Be found no more."""
        self._memory = np.zeros(NBYTES, np.uint8)
        with contextlib.suppress(BufferError):  # another thread was writing when the process forked
            self._mapped.close()


def launcher() -> str:
    """What tells the ranks that the launcher of this process has started from others."""
    return os.environ.get("PMIX_NAMESPACE") or str(os.getppid())


def seconds(found: str | float) -> float:
    """A time that stands in a page, in seconds.

    Raises:
        ValueError: it is none that can be: negative, infinite, or thousands of years off.
    """
    time = float(found)
    if not 0 <= time <= _MOST_S:  # NaN is not between them
        raise ValueError(f"a time in seconds was expected, got {found!r:.20}")
    return time


def contents(page: bytes) -> tuple[Identity, dict[str, Any]]:
    """What stands in a page: who its process is, and its notice, nothing where it is being written.

    Raises:
        ValueError: it is no page, one of another version, or just being made.
    """
    if len(page) != NBYTES:
        raise ValueError(f"a live page has {NBYTES} bytes, got {len(page)}")
    import json

    memory = np.frombuffer(page, np.uint8)
    who, text = Identity.of(get(memory[:_WHO_NBYTES])), get(memory[_WHO_NBYTES:])
    try:
        notice = json.loads(text) if text else {}
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if not isinstance(notice, dict):
        raise ValueError(f"a notice was expected, got {notice!r:.20}")
    return who, notice


def page_of(folder: Path) -> tuple[Identity, dict[str, Any]] | None:
    """What stands in the live page of a process; None where it has none, or only its parent's."""
    for name in os.listdir(folder / "fd"):
        try:
            if os.readlink(folder / "fd" / name) != LINK:
                continue
            who, notice = _read(folder / "fd" / name)
            if who.pid == _own_pid(folder):
                return who, notice
        except FileNotFoundError:
            continue  # closed meanwhile
    return None


def _read(file: Path) -> tuple[Identity, dict[str, Any]]:
    """What stands in a page, read anew while it is not whole."""
    for _ in range(_AGAIN):
        with contextlib.suppress(ValueError):
            who, notice = contents(_text(file))
            if notice:
                return who, notice
    return contents(_text(file))


def _text(file: Path) -> bytes:
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return os.read(descriptor, NBYTES + 1)
    finally:
        os.close(descriptor)


def _own_pid(folder: Path) -> int:
    """Number of a process as it knows it itself, which in a container is another."""
    lines = (folder / "status").read_text().splitlines()
    found = next((line.split()[-1] for line in lines if line.startswith("NSpid:")), folder.name)
    return int(found)
