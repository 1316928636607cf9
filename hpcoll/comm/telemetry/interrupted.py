"""The part of the summary that one rank has, printed where a signal ends the program: launchers leave ranks some tenths of a second.

A thread prints it, because the program may wait inside the MPI library, where no handler of Python's runs.
"""

import contextlib
import ctypes
import os
import signal
import stat
import threading
from types import FrameType

from hpcoll.base.machine import PROC, stat_fields
from hpcoll.base.text import counted, duration
from hpcoll.comm.team.resources import CommunicatorCalls, live_contexts
from hpcoll.comm.telemetry.account import rank_waits

_PASS_ON_S = 0.05  # in which Python may run a handler before a thread ends the program in its place
_LAUNCHERS = ("prterun", "mpirun", "mpiexec", "orterun")
_saying, _said = threading.RLock(), list[int]()


def begin() -> None:
    """Print at the first SIGINT or SIGTERM from now on, where this thread may ask for that and the program has not."""
    with contextlib.suppress(ValueError):  # not the main thread
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        if before >= 0:
            signal.set_wakeup_fd(before)
            return
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _end)
        threading.Thread(
            target=_serve, args=(reader, os.getpid()), name="hpcoll-interrupted", daemon=True
        ).start()


def _serve(reader: int, pid: int) -> None:
    while number := os.read(reader, 1):
        if number[0] in (signal.SIGINT, signal.SIGTERM):
            say(number[0])
        if number[0] == signal.SIGTERM and signal.getsignal(signal.SIGTERM) is _end:
            threading.Event().wait(_PASS_ON_S)
            ctypes.CDLL(None).signal(signal.SIGTERM, None)  # which Python lets the main thread do alone
            os.kill(pid, signal.SIGTERM)


def _end(number: int, frame: FrameType | None) -> None:
    """End the program by the signal, as it would without a handler; in a fork at once."""
    say(number)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def say(number: int) -> None:
    """Print what the first rank knows, once, as a signal comes; not in a fork, which has no communicators."""
    contexts = [calls for calls in list(live_contexts) if calls.resources.config.summary]
    if not contexts:
        return
    with _saying:
        context = min(contexts, key=lambda calls: (-calls.nranks, calls.resources.key))
        if context.rank == 0 and not _said:
            _said.append(number)
            text = "".join(f"hpcoll: {line}".rstrip() + "\n" for line in _part(context).splitlines()).encode(
                errors="replace"
            )
            with contextlib.suppress(OSError):  # it is closed
                file = (
                    _launchers_stderr()
                    if number == signal.SIGTERM and not stat.S_ISREG(os.fstat(2).st_mode)
                    else 2
                )
                os.write(file, text)


def _launchers_stderr() -> int:
    """Return the standard error output of Open MPI's launcher, where it runs on this node: it passes nothing on once it ends a job."""
    pid = os.getppid()
    with contextlib.suppress(OSError, ValueError):
        while pid > 1:
            if (PROC / str(pid) / "comm").read_text().strip() in _LAUNCHERS:
                return os.open(
                    PROC / str(pid) / "fd/2",
                    os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC | os.O_NONBLOCK,
                )
            pid = int(stat_fields(pid)[1])
    return 2


def _part(context: CommunicatorCalls) -> str:
    mine = rank_waits(context.resources)
    waits = (
        f"{duration(seconds)} for rank {rank}"
        for rank, seconds in sorted(mine.waited_for.items(), key=lambda pair: -pair[1])
    )
    compared = (
        f"in {counted(mine.calls, 'call')} that were compared it waited {', '.join(waits) or 'for nobody'}"
        if mine.calls
        else ""
    )
    head = f"{context.resources.title}, {counted(context.nranks, 'rank')}: interrupted; rank 0 alone says what it has, and asks no other"
    return f"{head}\nrank 0 ran for {duration(mine.run_s)}; {compared or 'no calls were compared between ranks yet'}\n{context.ledger}"
