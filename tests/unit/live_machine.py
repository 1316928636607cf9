"""A machine made by hand, as `hpcoll inspect --live` sees it: processes, and the status pages of those that are ranks."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcoll.cli.inspect.live import lines
from hpcoll.cli.inspect.ranks_here import Found, look
from hpcoll.runtime.telemetry.status_page import LINK, Identity, StatusPage

NOW = 1000.0
SUM, BARRIER = "Allreduce(float64[8], op=SUM) at /home/me/train.py:9", "Barrier() at /home/me/train.py:12"
AFTER_40 = "is in no collective since 12:03:07, after call 40"
SEES = {"1": [5000.0, AFTER_40]}


def call(
    awaits: list[int],
    *,
    what: str = SUM,
    key: str = "0.0.7",
    number: int = 41,
    on: str = "MPI_COMM_WORLD",
    **more: Any,
) -> dict[str, Any]:
    """A wait as it stands in a page."""
    return {
        "key": key,
        "lane": 0,
        "number": number,
        "what": what,
        "awaits": awaits,
        "step": "row 6 of 11",
        "since": NOW - 2.5,
        "on": on,
        "for": awaits,
        "sees": {},
    } | more


class Machine:
    """A folder like /proc, with processes and their pages; what processes are numbered as is what this test's system does not have."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.closed = folder, False
        self._readlink = os.readlink
        monkeypatch.setattr("hpcoll.runtime.telemetry.status_page.os.readlink", self._link)

    def _link(self, path: str) -> str:
        """The link of an open file; those of pages, which only the system can make."""
        if self.closed:
            raise PermissionError(13, "no", path)
        return self._readlink(path) if os.path.islink(path) else LINK

    def stat(self, pid: int, state: str = "S", begun: float = 0.0) -> Path:
        """A process, or its new state; the folder of its files."""
        folder, hz = self.folder / str(pid), os.sysconf("SC_CLK_TCK")
        (folder / "fd").mkdir(parents=True, exist_ok=True)
        ticks = int((begun - time.time() + time.clock_gettime(time.CLOCK_BOOTTIME)) * hz)
        (folder / "stat").write_text(f"{pid} (python) {state} {'0 ' * 10}{hz} {hz // 2} {'0 ' * 6}{ticks}")
        return folder

    def process(self, pid: int, page: bytes, own_pid: int | None = None) -> Path:
        """Return one process; the file of its page."""
        folder = self.stat(pid)
        (folder / "status").write_text(f"Name:\tpython\nNSpid:\t{pid}\t{own_pid or pid}\n")
        (folder / "fd/0").symlink_to("/dev/null")
        (folder / "fd/7").write_bytes(page)
        return folder / "fd/7"

    def rank(self, rank: int, *waits: dict[str, Any], nranks: int = 3, pid: int = 0, **more: Any) -> None:
        pid = pid or 100 + rank
        self.process(pid, page(rank, *waits, nranks=nranks, pid=pid, **more))

    def look(self) -> Found:
        return look(self.folder)

    def text(self, width: int = 120) -> str:
        return "\n".join(lines(self.look(), {}, NOW, width))


def said(machine: Machine, width: int = 120) -> str:
    """The text in one line."""
    return " ".join(machine.text(width).split())


def page(
    rank: int,
    *waits: dict[str, Any],
    nranks: int = 3,
    pid: int = 0,
    failed: Sequence[dict[str, Any]] = (),
    left: str = "",
    **who: Any,
) -> bytes:
    """A page, written as processes do."""
    one = StatusPage()
    about = {
        "pid": pid,
        "rank": rank,
        "nranks": nranks,
        "launcher": "one",
        "host": "node1",
        "started": 50.0,
        "peers": {rank: pid},
        "program": ["train.py", "--x"],
    } | who
    one.introduce(Identity(**about))
    if waits or failed or left:
        one.write({"waits": list(waits), "failed": list(failed), "left": left})
    text = one._memory.tobytes()
    one.close()
    return text
