"""What the system says of a process: running, stopped, gone, and how long it has computed."""

import os
import sys
from pathlib import Path

from hpcoll.base.text import printable

PROC = Path("/proc")
RUNNING, STOPPED, TRACED, GONE = "running", "stopped", "stopped by a debugger", "gone"
HOW_GONE = "has ended: it was killed, or left without MPI_Finalize"  # what is said of a rank whose process is gone without a word
ENDED_BY = "was ended by "  # and an exception
_STATES = {"T": STOPPED, "t": TRACED, "Z": GONE, "X": GONE, "x": GONE}


def state_of(pid: int) -> str:
    """State of a process of this machine; a zombie is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return GONE
    except OSError:
        return RUNNING
    return _STATES.get(text.rpartition(")")[2].split()[0], RUNNING)


def how_it_ends() -> str:
    """How the program of this process ends, which is about to: what is said of its rank."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return "has ended its program" if error is None else printable(f"{ENDED_BY}{type(error).__name__}: {error}", 1000)


def cpu_s(pid: int) -> float | None:
    """Seconds for which a process has had a core, its threads together; None where the system does not say."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            words = file.read().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")  # in user and in system mode
    except (OSError, IndexError, ValueError):
        return None
