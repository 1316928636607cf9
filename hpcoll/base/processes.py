"""What the system says of a process: running, stopped, gone. Imports nothing of hpcoll."""

RUNNING, STOPPED, TRACED, GONE = "running", "stopped", "stopped by a debugger", "gone"
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
