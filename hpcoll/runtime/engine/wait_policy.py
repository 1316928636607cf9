"""The wait policy: what a rank does in passes without progress."""

import os
from typing import NamedTuple

from hpcoll.analysis.cost import NEVER
from hpcoll.base.launchers import gives_cores_away, local_nranks


class WaitPolicy(NamedTuple):
    """The numbers of passes without progress after which a rank yields, sleeps or leaves the rest to the progress thread.

    Attributes:
        spins: Passes in which it does nothing else; after them it lets the MPI library move, too.
        stays: Passes after which it yields the processor in each; a process that does not wait may keep it for milliseconds.
        yields: Passes in which it yields; then it sleeps.
        eager: Bytes of a call in flight up to which its caller makes the first turns. Longer ones are left to the progress thread where
            that has a core of its own; where it has none, it would get one only when the others let go of theirs.
        lingers: Passes after which the caller of a call in flight leaves the rest to the progress thread.
    """

    spins: int
    stays: int
    yields: int
    eager: int
    lingers: int


# a core of its own, for 5 to 7 ms; 30 where the MPI library is slow to look
OWN_CORE = WaitPolicy(200, 200_000, 2000, NEVER, 2000)
TWO_CORES = OWN_CORE._replace(eager=16 << 10, lingers=260)  # and one for the progress thread
# more ranks than cores: a rank that is waited for may need this core
SHARED_CORE = WaitPolicy(5, 5, 200, NEVER, 65)


def crowd(nranks: int = 1, ncores: int | None = None) -> float:
    """Return how many of a communicator's ranks of a host share a core, at least 1; the launcher's others there count, too."""
    return max(1.0, max(nranks, local_nranks(os.environ)) / (ncores or os.cpu_count() or 1))


def pause_s(spent_s: float, nranks: int = 1) -> float:
    """Return the seconds until the next look of a rank that waits, so that such looks take a twentieth of the cores.

    Args:
        spent_s: CPU seconds of the look before.
        nranks: As in `crowd`.
    """
    return 20 * spent_s * crowd(nranks)


def wait_policy(nranks: int, ncores: int) -> WaitPolicy:
    """Return the wait policy of a communicator's ranks of a host, which need a core each; the launcher's others there count, too."""
    everybody = max(nranks, local_nranks(os.environ))
    if everybody > ncores or gives_cores_away(os.environ):
        return SHARED_CORE
    return TWO_CORES if 2 * everybody <= ncores else OWN_CORE
