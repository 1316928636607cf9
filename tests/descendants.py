"""The processes that a run of tests has started, and all that these have: none is left when it ends or is stopped."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Set
from pathlib import Path
from typing import NoReturn

_PR_SET_CHILD_SUBREAPER = 36
_STOPPING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_GRACE_S, _MOST_S, NAP_S = 5.0, 10.0, 0.05


@contextlib.contextmanager
def leaving_none() -> Iterator[None]:
    """End when a signal says so, and end all descendants then, or when the work is done; also those whose parents have ended."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = {number: signal.getsignal(number) for number in _STOPPING}
    heard = [number for number, handler in before.items() if handler is not signal.SIG_IGN]  # by nohup
    for number in heard:
        signal.signal(number, _stop)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, signal.SIG_IGN)  # a second one does not keep this from its end
        _end_all()
        for number in heard:
            signal.signal(number, before[number])


def _stop(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)


def wait(process: "subprocess.Popen[bytes]") -> int:
    """Wait for a child, and take leave of orphans meanwhile, which would be zombies else; return the child's status."""
    while process.poll() is None:
        reap({process.pid})
        time.sleep(NAP_S)
    return process.returncode


def reap(known: Set[int]) -> None:
    """Take leave of orphans that have ended, up to the first child that somebody waits for."""
    with contextlib.suppress(ChildProcessError):
        while (
            ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        ) and ended.si_pid not in known:
            os.waitpid(ended.si_pid, 0)


def _end_all() -> None:
    begun = time.monotonic()
    told = set[int]()
    while (found := _descendants()) and (passed := time.monotonic() - begun) < _MOST_S:
        for pid in found if passed > _GRACE_S else found - told:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                os.kill(pid, signal.SIGKILL if passed > _GRACE_S else signal.SIGTERM)
        told |= found
        reap(set())
        time.sleep(NAP_S)


def _descendants() -> set[int]:
    children = defaultdict[int, list[int]](list)
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            children[int((folder / "stat").read_text().rpartition(")")[2].split()[1])].append(
                int(folder.name)
            )
    found, new = set[int](), [os.getpid()]
    while new:
        new = children[new.pop()] + new
        found.update(new)
    return found
