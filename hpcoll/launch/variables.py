"""Variables by which launchers that know nothing of MPI tell a process its rank: torchrun, Kubeflow, Ray Train, accelerate and others."""

import os
import sys
from collections.abc import Mapping
from typing import NamedTuple

from hpcoll.base.launchers import MPI_PREFIXES
from hpcoll.base.text import is_count

RANK, NRANKS, HOST, PORT = NAMES = "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"
_LOCAL_NRANKS = "LOCAL_WORLD_SIZE"
_AGENT = "TORCHELASTIC_USE_AGENT_STORE"  # "True": a process of torchrun's listens at the port
_GENERATION = "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"
_ELASTIC = _GENERATION[0]
PROCESS = "_HPCOLL_RANK"  # id of the process whose rank the variables give: its children inherit them
_LOOPBACK = ("localhost", "127.")


class Place(NamedTuple):
    """The place of this process among the ranks of its job, and where they meet."""

    rank: int
    nranks: int
    host: str
    port: int
    local: bool  # all ranks are on one host
    agent: bool  # the port is a key-value store's of torch, which torchrun serves
    generation: str  # tells apart what is started again at the same port


def place(environment: Mapping[str, str]) -> Place | None:
    """Return the place that variables give; None: no launcher has set all of them, or one of MPI's started this process.

    >>> place({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"})
    Place(rank=1, nranks=2, host='node1', port=29500, local=False, agent=False, generation='')
    >>> place({"RANK": "1", "WORLD_SIZE": "2"})
    """
    values = [environment.get(name, "") for name in NAMES]
    rank, nranks, host, port = values
    if not (host and is_count(nranks) and is_count(port) and (rank == "0" or is_count(rank))):
        return None
    if int(rank) >= int(nranks) or not is_alone(environment):
        return None
    return Place(
        int(rank),
        int(nranks),
        host,
        int(port),
        on_one_host(environment, int(nranks), host),
        environment.get(_AGENT) == "True",
        generation(environment),
    )


def on_one_host(environment: Mapping[str, str], nranks: int, host: str) -> bool:
    """Say whether all ranks are on this host, as the launcher says, or since they find each other at an address of loopback."""
    return environment.get(_LOCAL_NRANKS) == str(nranks) or host.startswith(_LOOPBACK)


def generation(environment: Mapping[str, str]) -> str:
    """Return a text that tells apart what torchrun starts again; the empty text under other launchers."""
    return " ".join(environment.get(name, "") for name in _GENERATION).strip()


def is_alone(environment: Mapping[str, str]) -> bool:
    """Say that no launcher of MPI started this process; those above torchrun do not count."""
    return _ELASTIC in environment or not any(name.startswith(MPI_PREFIXES) for name in environment)


def of_this_process() -> Place | None:
    """Return the place of this process; None also for a child of a rank, which has inherited its variables."""
    found = place(os.environ)
    if found is None or found.nranks == 1 or _is_worker():
        return None
    if os.environ.setdefault(PROCESS, str(os.getpid())) != str(os.getpid()):
        return None
    return found


def _is_worker() -> bool:
    """Say whether this is a process of ``multiprocessing``, such as a loader of data."""
    return (
        "multiprocessing.process" in sys.modules
        and sys.modules["multiprocessing.process"].parent_process() is not None
    )
