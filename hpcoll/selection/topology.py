"""Where the ranks of a communicator run: which share a node, which socket they are bound to, how many GPUs a node has."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from mpi4py import MPI

from hpcoll.schedules.placement import Nodes, describe, numbered

_CPUS, _GPUS = Path("/sys/devices/system/cpu"), Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True)
class Topology:
    """Placement of a communicator's ranks, equal on all of them but for ``rank``.

    Attributes:
        rank: This rank.
        nodes: Number of each rank's node, in the order of their lowest ranks: ranks of a node share memory with each other.
        hosts: Name of each rank's host.
        sockets: Socket that each rank is bound to; -1 where it is bound to none, or the system does not say.
        gpus: GPUs that the system of each rank's host lists; 0 where it lists none.
    """

    rank: int
    nodes: Nodes
    hosts: tuple[str, ...]
    sockets: tuple[int, ...]
    gpus: tuple[int, ...]

    @property
    def nranks(self) -> int:
        """Ranks in all."""
        return len(self.nodes)

    def __str__(self) -> str:
        parts = [describe(self.nodes)]
        nhosts = len(set(self.hosts))
        if nhosts != max(self.nodes) + 1:
            parts.append(f"on {nhosts} host" + "s" * (nhosts > 1))
        bound = {socket for socket in self.sockets if socket >= 0}
        if len(bound) > 1:
            parts.append(f"bound to {len(bound)} sockets")
        if any(self.gpus):
            least, most = min(self.gpus), max(self.gpus)
            parts.append(f"{most} GPUs per host" if least == most else f"{least} to {most} GPUs per host")
        return "; ".join(parts)


def find_topology(comm: MPI.Intracomm, hosts: Sequence[str], first: int) -> Topology:
    """Placement of the ranks of a communicator; collective.

    Args:
        comm: The communicator.
        hosts: Name of each rank's host.
        first: Lowest rank of those that this one shares memory with, itself included.
    """
    found = comm.allgather((first, _socket(), _ngpus()))
    firsts, sockets, gpus = zip(*found, strict=True)
    return Topology(comm.Get_rank(), numbered(firsts), tuple(hosts), sockets, gpus)


@lru_cache(maxsize=1)
def _ngpus() -> int:
    try:
        return sum(1 for _ in _GPUS.iterdir())
    except OSError:
        return 0


def _socket() -> int:
    """Number of the socket that all cores of this process belong to, on a system with several; else -1."""
    sockets = {_socket_of(core) for core in os.sched_getaffinity(0)}
    several = len({_socket_of(core) for core in range(os.cpu_count() or 1)}) > 1
    return sockets.pop() if several and len(sockets) == 1 else -1


@lru_cache(maxsize=4096)
def _socket_of(core: int) -> int:
    try:
        return int((_CPUS / f"cpu{core}/topology/physical_package_id").read_text())
    except (OSError, ValueError):
        return -1
