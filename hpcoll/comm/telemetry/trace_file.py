"""The file of a trace: all ranks of a run append whole blocks to it, each by one system call."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from hpcoll.base.files import opened
from hpcoll.base.launchers import job_of
from hpcoll.base.machine import program_words
from hpcoll.comm.team.team import Team
from hpcoll.runtime.telemetry.trace_blocks import block
from hpcoll.selection.config import log

SUFFIX = ".trace"
# file systems of several hosts that keep appends of different hosts apart
_COHERENT = (
    "lustre",
    "gpfs",
    "beegfs",
)
_MOUNTS = Path("/proc/self/mountinfo")
_MOST_OF_NAME = 40  # letters of the program's


class TraceFile:
    """The file of a trace, open to be appended to.

    It can be read at any time. Only this user can: it has the arguments of the program.

    Args:
        path: The file; made where it is not there, with its folder.

    Raises:
        UntrustedError: Another user has put something in its place.
        OSError: It cannot be made or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND
        try:
            self._file = opened(path, flags | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            self._file = opened(path, flags)

    def append(self, about: dict[str, Any], records: np.ndarray) -> None:
        """Append a block (`hpcoll.runtime.telemetry.trace_blocks`), all of it or an OSError: then it may be cut."""
        pieces = block(about, records)
        if os.writev(self._file, pieces) != sum(memoryview(piece).nbytes for piece in pieces):
            raise OSError(f"{self.path}: the system has not taken all of a block")

    def close(self) -> None:
        """Close it."""
        os.close(self._file)


def path_in(folder: Path, team: Team) -> Path:
    """Return the path of a run's trace, the same on all ranks of the team that is the first of each of them.

    Where ranks are on several hosts, and their file system may mix appends of several hosts, each host has a file.
    """
    first = team.processes[0]
    job = job_of(os.environ, first.pid)
    name = Path(program_words()[0]).stem.lstrip("-")[:_MOST_OF_NAME] or "python"
    # random: nobody can have a file there before, and a job may run many programs
    words = [
        name,
        job,
        f"{first.word.value % 2**64:016x}",
    ]
    host = team.processes[team.rank].host
    if len(team.processes.names) > 1 and (file_system := _file_system(folder)) not in _COHERENT:
        words.append(host)
        if team.rank == 0:
            log.warning(
                "rank 0: each host writes a trace of its own into %s: on %s records of several hosts may mix",
                folder,
                file_system,
            )
    return folder / (re.sub(r"[^\w.+-]", "_", "-".join(words)) + SUFFIX)


def _file_system(folder: Path) -> str:
    """Return the kind of file system on which a folder is, or will be."""
    place = os.path.realpath(folder)
    try:
        mounts = [line.partition(" - ") for line in _MOUNTS.read_text().splitlines()]
    except OSError:
        return "an unknown file system"
    systems = {head.split()[4]: tail.split()[0] for head, _, tail in mounts}
    above = [mount for mount in systems if os.path.commonpath([mount, place]) == mount]
    return systems[max(above, key=len)]
