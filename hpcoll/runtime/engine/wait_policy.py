"""How a rank waits for others: what it does in passes without progress."""

import os
from typing import NamedTuple

from hpcoll.analysis.cost import NEVER
from hpcoll.base.launchers import gives_cores_away, local_nranks


class WaitPolicy(NamedTuple):
    """How a rank waits, in passes without progress.

    Attributes:
        spins: In which it does nothing else; after them it lets the MPI library move, too.
        stays: After which it yields the processor in each. A process that does not wait, were it another user's, keeps it for milliseconds.
        yields: So many; then it sleeps.
        eager: Bytes of a call in flight up to which who starts it makes its first turns. Longer ones are left to the helper thread where
            that has a core of its own; where it has none, it would get one only when the others let go of theirs.
        lingers: After which who starts a call in flight leaves the rest to the helper thread.
    """

    spins: int
    stays: int
    yields: int
    eager: int
    lingers: int


OWN_CORE = WaitPolicy(200, 200_000, 2000, NEVER, 2000)  # a core of its own, for 5 to 7 ms; 30 where the MPI library is slow to look
TWO_CORES = OWN_CORE._replace(eager=16 << 10, lingers=260)  # and one for the helper thread
SHARED_CORE = WaitPolicy(5, 5, 200, NEVER, 65)  # more ranks than cores: whoever is waited for may need this core


def wait_policy(nranks: int, ncores: int) -> WaitPolicy:
    """Return how the ranks of a host wait: by whether it has a core for every rank that runs there.

    Args:
        nranks: Of a communicator. The program's others on the host want cores, too; where its launcher says how many there are, they count.
        ncores: Of the host.
    """
    everybody = max(nranks, local_nranks(os.environ))
    if everybody > ncores or gives_cores_away(os.environ):
        return SHARED_CORE
    return TWO_CORES if 2 * everybody <= ncores else OWN_CORE
