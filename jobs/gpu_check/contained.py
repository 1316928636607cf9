"""A command in a session of its own, with a limit: over it the stacks of all Python processes are dumped, and nothing is left running.

Processes that a command has started are found by their parents in ``/proc``, also where they made sessions of their own, as the ranks of
an MPI program do; those whose parent has ended become children of this process. It runs one command at a time.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

OK, HUNG, NO_TIME, CRASHED = "ok", "hung", "no time", "crashed"
_SET_CHILD_SUBREAPER = 36  # of prctl
# seconds for a level of processes to dump, for all to end, and to be killed
_DUMP_S, _TERM_S, _KILL_S = (
    1.5,
    2.0,
    5.0,
)


class Outcome(NamedTuple):
    """The outcome of a command: ``status`` is "ok", "exit N", "SIG..." or "hung"."""

    status: str
    seconds: float


def adopt_orphans() -> None:
    """Become the parent of descendants whose own has ended, and let nobody write core files."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run(
    command: Sequence[str | Path], log: Path, limit_s: float, environment: Mapping[str, str] | None = None
) -> Outcome:
    """Run a command, and append its output to a file.

    Args:
        command: Program and arguments.
        log: The file.
        limit_s: Seconds after which it counts as hung.
        environment: Variables beside this process's.
    """
    start, status = time.monotonic(), HUNG
    process: subprocess.Popen[bytes] | None = None
    with log.open("ab", buffering=0) as out:
        try:
            process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1", **(environment or {})},
            )
            status = named(process.wait(limit_s))
        except OSError as error:
            out.write(f"cannot start {command[0]}: {error.strerror}\n".encode())
            return Outcome(
                f"not found: {command[0]}" if isinstance(error, FileNotFoundError) else str(error), 0.0
            )
        except subprocess.TimeoutExpired:
            out.write(f"\n-- over {limit_s:.0f} s: stacks of what runs, and the end of it\n".encode())
        finally:  # also of a process that was just starting when a signal came
            end(process, dump=status == HUNG)
    return Outcome(status, round(time.monotonic() - start, 2))


def named(code: int) -> str:
    """Return an exit status in words; that of a shell names signals, too."""
    number = -code if code < 0 else code - 128
    if code == 0:
        return OK
    if code in (124, 137):  # timeout's
        return HUNG
    try:
        return signal.Signals(number).name if number > 0 else f"exit {code}"
    except ValueError:
        return f"exit {code}"


def end(process: subprocess.Popen[bytes] | None, *, dump: bool) -> None:
    """End a command and its descendants; ``dump``: with stacks of Python processes, the innermost first, so that others pass them on."""
    levels: dict[int, list[int]] = {}
    for one, depth in descendants().items():
        levels.setdefault(depth, []).append(one)
    for depth in sorted(levels, reverse=True) if dump else ():
        _signal([one for one in levels[depth] if is_python(one)], signal.SIGABRT, _DUMP_S, process)
    _signal(list(descendants()), signal.SIGTERM, _TERM_S, process)
    _signal(list(descendants()), signal.SIGKILL, _KILL_S, process)


def _signal(
    processes: list[int], number: signal.Signals, seconds: float, child: subprocess.Popen[bytes] | None
) -> None:
    """Signal processes, and wait until none of them is there, or so long."""
    for one in processes:
        try:
            os.kill(one, number)
        except ProcessLookupError:
            continue
    limit = time.monotonic() + seconds
    while processes and time.monotonic() < limit:
        _reap(child)
        alive = descendants()
        processes = [one for one in processes if one in alive]
        if processes:
            time.sleep(0.02)
    _reap(child)


def _reap(child: subprocess.Popen[bytes] | None) -> None:
    """Let processes that have ended and became this one's vanish."""
    if child is not None and child.poll() is None:
        return
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def descendants() -> dict[int, int]:
    """Return the depth of each running process below this one."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state not in "ZX":
            parents[int(folder.name)] = int(parent)
    found, level, depth = {}, {os.getpid()}, 0
    while level:
        depth += 1
        level = {one for one, parent in parents.items() if parent in level}
        found.update(dict.fromkeys(level, depth))
    return found


def is_python(process: int) -> bool:
    """Say whether a process runs Python, which dumps its stack when it is aborted."""
    try:
        return os.path.basename(os.readlink(f"/proc/{process}/exe")).startswith(("python", "pypy"))
    except OSError:
        return False
