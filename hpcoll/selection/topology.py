"""Where the ranks of a communicator run: which share a node, which socket they are bound to, how many GPUs a node has."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from mpi4py import MPI

from hpcoll.runtime.transports.cross_memory import Word, word
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


class Process(NamedTuple):
    """What ranks know of each other's process.

    Attributes:
        host: Its name.
        pid: In its own namespace.
        socket, ngpus: As in `Topology`.
        has_gpu: It is likely to have a GPU.
        word: By which others find out whether they can read its memory.
    """

    host: str
    pid: int
    socket: int
    ngpus: int
    has_gpu: bool
    word: Word


def this_process(has_gpu: bool) -> Process:
    """This one; MPI must run."""
    return Process(MPI.Get_processor_name(), os.getpid(), _socket(frozenset(os.sched_getaffinity(0))), _ngpus(), has_gpu, word())


def find_topology(rank: int, processes: Sequence[Process], firsts: Sequence[int]) -> Topology:
    """Placement of the ranks of a communicator.

    Args:
        rank: This rank.
        processes: Of all ranks.
        firsts: For each rank the lowest of those that it shares memory with, itself included.
    """
    hosts, _, sockets, ngpus, *_ = zip(*processes, strict=True)
    return Topology(rank, numbered(firsts), hosts, sockets, ngpus)


@lru_cache(maxsize=1)
def _ngpus() -> int:
    try:
        return sum(1 for _ in _GPUS.iterdir())
    except OSError:
        return 0


@lru_cache(maxsize=16)
def _socket(cores: frozenset[int]) -> int:
    """Number of the socket that all these cores belong to, on a system with several; else -1."""
    sockets = set(map(_socket_of, cores))
    several = len({_socket_of(core) for core in range(os.cpu_count() or 1)}) > 1
    return sockets.pop() if several and len(sockets) == 1 else -1


def _socket_of(core: int) -> int:
    try:
        return int((_CPUS / f"cpu{core}/topology/physical_package_id").read_text())
    except (OSError, ValueError):
        return -1
