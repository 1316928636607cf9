"""How many times slower this machine is than an idle one, since other programs use its cores: limits of tests are as many times longer.

It is measured once, by the first process of a run, and is in the environment of all others.
"""

import os
import subprocess
import sys

VARIABLE = "TEST_SLOWNESS"
MOST = 16.0  # a test that hangs is to end, however busy the machine
IDLE = 1.5  # up to which the machine counts as idle
_CORES = 8  # on which it is measured, at most
_LOOP = """
import time
cpu, wall = time.process_time(), time.monotonic()
while time.process_time() - cpu < 0.3:
    sum(range(1000))
print((time.monotonic() - wall) / (time.process_time() - cpu))
"""


def slowness() -> float:
    """Return the factor, at least 1."""
    if VARIABLE not in os.environ:
        os.environ[VARIABLE] = f"{_measured():.1f}"
    return float(os.environ[VARIABLE])


def slowed(seconds: float) -> float:
    """Return a limit of an idle machine as it is here."""
    return seconds * slowness()


def _measured() -> float:
    """Return the seconds that a computation takes on each core at once, over those of its core that it is given."""
    loops = [
        subprocess.Popen([sys.executable, "-c", _LOOP], stdout=subprocess.PIPE)
        for _ in range(min(os.cpu_count() or 1, _CORES))
    ]
    return min(MOST, max(1.0, *(float(loop.communicate()[0]) for loop in loops)))
