"""How a rank waits: by whether its host has a core for every rank that runs there."""

import os

from hpcoll.base.launchers import gives_cores_away, local_nranks
from hpcoll.runtime.engine.wait_policy import OWN_CORE, SHARED_CORE, TWO_CORES, WaitPolicy


def wait_policy(nranks: int, ncores: int) -> WaitPolicy:
    """How the ranks of a host wait.

    Args:
        nranks: Of a communicator. The program's others on the host want cores, too; where its launcher says how many there are, they count.
        ncores: Of the host.
    """
    everybody = max(nranks, local_nranks(os.environ))
    if everybody > ncores or gives_cores_away(os.environ):
        return SHARED_CORE
    return TWO_CORES if 2 * everybody <= ncores else OWN_CORE
