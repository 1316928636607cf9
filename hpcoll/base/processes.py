"""Processes of this node as Linux sees them: running, stopped or gone, and the CPU time that they used."""

import os
import sys
from pathlib import Path

from hpcoll.base.text import printable

PROC = Path("/proc")
RUNNING, STOPPED, TRACED, GONE = "running", "stopped", "stopped by a debugger", "gone"
HOW_GONE = "has ended: it was killed, or left without MPI_Finalize"  # of a rank whose process is gone without a word
ENDED_BY = "was ended by "  # an exception
_STATES = {"T": STOPPED, "t": TRACED, "Z": GONE, "X": GONE, "x": GONE}


def state_of(pid: int) -> str:
    """Return the state of a process; a zombie is gone."""
    try:
        return _STATES.get(_fields(pid)[0], RUNNING)
    except (FileNotFoundError, ProcessLookupError):
        return GONE
    except OSError:
        return RUNNING


def how_it_ends() -> str:
    """Return the words for how this process's program ends, for texts on other ranks."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return "has ended its program" if error is None else printable(f"{ENDED_BY}{type(error).__name__}: {error}", 1000)


def cpu_s(pid: int) -> float | None:
    """Return the CPU seconds that a process has used, all threads together; None where Linux does not say."""
    try:
        return sum(map(int, _fields(pid)[11:13])) / os.sysconf("SC_CLK_TCK")  # user and system mode
    except (OSError, ValueError):
        return None


def _fields(pid: int) -> list[str]:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()
