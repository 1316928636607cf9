"""The status page of a process and the status slots of a node's ranks: memory with notices of the calls in which they wait.

The status page is a small memory file that `hpcoll inspect` reads among the open files of the process (``/proc/PID/fd``). It holds the
identity of the process, words with a NUL between them, and its notice, in JSON. The status slots are shared memory with a notice for each
rank of a node. Notices are written and read in Python, by ranks that wait already. Each text has its length and a checksum, so that one
which is being written is not taken for whole.
"""

import contextlib
import mmap
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcoll.base.files import memory_file, reading
from hpcoll.base.launchers import JOB

NAME = "hpcoll-live"
LINK = f"/memfd:{NAME} (deleted)"  # what the system calls it
FORMAT = 1
NBYTES, _WHO_NBYTES = 16 << 10, 4 << 10
_PEERS_NBYTES = 2 << 10
_MOST_S = 1e11  # the year 5138: what is later is no time
_AGAIN = 2  # more times that a page is read that is not whole, or has no notice: it may just be written
# A rank has room for two notices: while one is written the other holds.
NOTICE_NBYTES = 4096
_TURN_NBYTES = 64  # how many there were, which says where the last one is
PAGE_NBYTES = _TURN_NBYTES + 2 * NOTICE_NBYTES  # of a rank
_HEAD_NBYTES = 16
_READS = 5  # of one that is written again meanwhile


@dataclass(frozen=True)
class Identity:
    """The identity of a process."""

    pid: int  # as the process knows it
    rank: int  # in COMM_WORLD
    nranks: int
    launcher: str  # tells the ranks that one launcher has started from others
    host: str
    started: float  # when its first communicator was made, in seconds since 1970
    # known processes of the same job on this host, by rank in COMM_WORLD, this one among them
    peers: Mapping[int, int]
    program: Sequence[str]  # and its arguments

    @property
    def text(self) -> bytes:
        """The identity as text of a page; peers and arguments that have no room are left out."""
        peers = " ".join(f"{rank}:{pid}" for rank, pid in self.peers.items())
        peers = peers if len(peers) <= _PEERS_NBYTES else peers[:_PEERS_NBYTES].rpartition(" ")[0]
        words = (
            FORMAT,
            self.pid,
            self.rank,
            self.nranks,
            self.launcher,
            self.host,
            self.started,
            peers,
            *self.program,
        )
        return "\0".join(map(str, words)).encode(errors="replace")[: room(_WHO_NBYTES)]

    @classmethod
    def of(cls, text: bytes) -> "Identity":
        """Return the identity that a text says; ValueError: it is none, or one of another version."""
        version, *words = text.decode(errors="replace").split("\0")
        if version != str(FORMAT):
            raise ValueError(f"format {FORMAT} was expected, got {version!r}")
        pid, rank, nranks, launcher, host, started, peers, *program = words
        known = dict(pair.split(":") for pair in peers.split())
        return cls(
            int(pid),
            int(rank),
            int(nranks),
            launcher,
            host,
            seconds(started),
            {int(one): int(its) for one, its in known.items()},
            program,
        )


class StatusPage:
    """The status page of this process; a fork must `close` it; OSError where the system makes no such files.

    With ``stays`` it is there until the process ends, which may wait in MPI_Finalize after Python has ended.
    """

    made = False  # this process has made one

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
        """Write the identity of this process."""
        put(self._memory[:_WHO_NBYTES], who.text)

    def write(self, notice: dict[str, Any]) -> None:
        """Write a notice of the calls in which it waits."""
        put(self._memory[_WHO_NBYTES:], fitting(notice, room(NBYTES - _WHO_NBYTES)))

    def close(self) -> None:
        """Remove the page."""
        self._memory = np.zeros(NBYTES, np.uint8)
        with contextlib.suppress(BufferError):  # another thread was writing when the process forked
            self._mapped.close()


def launcher() -> str:
    """Return a name of the launcher of this process: its ranks have the same one."""
    return os.environ.get("PMIX_NAMESPACE") or os.environ.get(JOB) or str(os.getppid())


def seconds(said: str | float) -> float:
    """Return a time that a page says, in seconds; ValueError: it is negative, infinite, or thousands of years off."""
    time = float(said)
    if not 0 <= time <= _MOST_S:  # NaN is not between them
        raise ValueError(f"a time in seconds was expected, got {said!r:.20}")
    return time


def contents(page: bytes) -> tuple[Identity, dict[str, Any]]:
    """Return identity and notice in a page, the latter empty while it is written; ValueError: no page, another version, or being made."""
    if len(page) != NBYTES:
        raise ValueError(f"a status page has {NBYTES} bytes, got {len(page)}")
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


def page_of(folder: Path, *, own: bool = False) -> tuple[Identity, dict[str, Any]] | None:
    """Return the contents of a process's status page; None where it has none, or only its parent's.

    With ``own`` a page that another user has made is refused: PermissionError.
    """
    files = f"{folder}/fd"  # a text: of the files of many processes, paths take most of the time
    for name in os.listdir(files):
        try:
            if os.readlink(f"{files}/{name}") != LINK:
                continue
            who, notice = _read(folder / "fd" / name, own)
            if who.pid == _own_pid(folder):
                return who, notice
        except FileNotFoundError:
            continue  # closed meanwhile
    return None


def _read(file: Path, own: bool) -> tuple[Identity, dict[str, Any]]:
    """Return the contents of a page, read anew while it is not whole."""
    for _ in range(_AGAIN):
        with contextlib.suppress(ValueError):
            who, notice = contents(_text(file, own))
            if notice:
                return who, notice
    return contents(_text(file, own))


def _text(file: Path, own: bool) -> bytes:
    with reading(file) as page:
        if own and os.fstat(page.fileno()).st_uid != os.geteuid():
            raise PermissionError(f"{file} is another user's")
        return page.read(NBYTES + 1)


def _own_pid(folder: Path) -> int:
    """Return the number by which a process knows itself, which in a container is another."""
    lines = (folder / "status").read_text().splitlines()
    number = next((line.split()[-1] for line in lines if line.startswith("NSpid:")), folder.name)
    return int(number)


class StatusSlots:
    """The status slots of the local ranks of a communicator: `PAGE_NBYTES` for each, zeros at first; ``rank`` is this process's."""

    def __init__(self, memory: np.ndarray, rank: int) -> None:
        self._all = memory.reshape(-1, PAGE_NBYTES)
        self._turns = self._all[:, :8].view(np.int64)[:, 0]
        self._rank = rank

    def _place(self, local_rank: int, turn: int) -> np.ndarray:
        begin = _TURN_NBYTES + turn % 2 * NOTICE_NBYTES
        return self._all[local_rank, begin : begin + NOTICE_NBYTES]

    def write(self, text: bytes) -> None:
        """Replace this rank's notice, by a `fitting` text."""
        turn = int(self._turns[self._rank]) + 1
        put(self._place(self._rank, turn), text)
        self._turns[self._rank] = turn

    def read(self, local_rank: int) -> dict[str, Any]:
        """Return a rank's latest notice; nothing where there is none."""
        import json

        texts = (get(self._place(local_rank, int(self._turns[local_rank]))) for _ in range(_READS))
        notice: dict[str, Any] = json.loads(next(filter(None, texts), b"{}"))
        return notice


def room(nbytes: int) -> int:
    """Return the bytes of text that a piece of memory of so many bytes holds."""
    return nbytes - _HEAD_NBYTES


def fitting(notice: dict[str, Any], nbytes: int = NOTICE_NBYTES - _HEAD_NBYTES) -> bytes:
    """Return a notice as text of at most so many bytes; of what is too long the oldest entries are left out."""
    import json  # what no program needs that never waits

    text = json.dumps(notice).encode()
    notice = notice if len(text) <= nbytes else json.loads(text)  # whose lists are lists
    while len(text) > nbytes and any(notice.values()):
        longest = max(notice, key=lambda name: len(json.dumps(notice[name])))
        notice = notice | {longest: _shortened(notice[longest])}
        text = json.dumps(notice).encode()
    return text


def _shortened(part: Any) -> Any:
    """Return a part without its first quarter; of a list's only entry, a table, the longest field is cut in half."""
    if len(part) > 1 or not isinstance(part, list):
        return part[-(-len(part) // 4) :]
    field = max(part[0], key=lambda name: len(str(part[0][name])))
    value = part[0][field]
    return [part[0] | {field: value[: len(value) // 2]}] if isinstance(value, str | list) and value else []


def put(memory: np.ndarray, text: bytes) -> None:
    """Write a text that has `room` into a piece of memory, with its length and checksum, which come last."""
    memory[:_HEAD_NBYTES] = 0
    memory[_HEAD_NBYTES : _HEAD_NBYTES + len(text)] = np.frombuffer(text, np.uint8)
    memory[:_HEAD_NBYTES].view(np.int64)[:] = len(text), zlib.crc32(text)


def get(memory: np.ndarray) -> bytes:
    """Return the text in a piece of memory; nothing where there is none, or it is being written."""
    nbytes, checksum = memory[:_HEAD_NBYTES].view(np.int64).tolist()
    text = memory[_HEAD_NBYTES : _HEAD_NBYTES + nbytes].tobytes() if nbytes > 0 else b""
    return text if zlib.crc32(text) == checksum else b""
