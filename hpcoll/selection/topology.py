"""Where the ranks of a communicator run: which share a node, which of these share a cache, how many GPUs a node has."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, cycle, islice, repeat
from pathlib import Path
from typing import NamedTuple

from mpi4py import MPI

from hpcoll.base.machine import CPUS, domain_of
from hpcoll.base.text import printable
from hpcoll.runtime.transports.cross_memory import ProbeWord, word
from hpcoll.schedules.placement import Nodes, describe_all, members, numbered, parts

_GPUS = Path("/proc/driver/nvidia/gpus")
UNBOUND = -1  # to one cache domain, or the system does not say


@dataclass(frozen=True)
class Topology:
    """Placement of a communicator's ranks, equal on all of them but for ``rank``.

    Attributes:
        rank: This rank.
        nodes: Number of each rank's node, in the order of their lowest ranks: ranks of a node share memory with each other.
        domains: Number of each rank's cache domain, in the same order over all nodes: ranks of a domain are bound to cores that share a
            last-level cache. A node is one domain where one of its ranks is not bound so, or where they share no memory.
        hosts: Name of each rank's host.
        gpus: GPUs that the system of each rank's host lists; 0 where it lists none.
    """

    rank: int
    nodes: Nodes
    domains: Nodes
    hosts: tuple[str, ...]
    gpus: tuple[int, ...]

    @property
    def nranks(self) -> int:
        """Ranks in all."""
        return len(self.nodes)

    @property
    def parts(self) -> Nodes:
        """What hierarchical algorithms look at, as `hpcoll.schedules.placement.parts`."""
        return parts(self.nodes, self.domains)

    def __str__(self) -> str:
        found = [describe_all(self.nodes, self.domains)]
        nhosts = len(set(self.hosts))
        if nhosts != max(self.nodes) + 1:
            found.append(f"on {nhosts} host" + "s" * (nhosts > 1))
        if any(self.gpus):
            least, most = min(self.gpus), max(self.gpus)
            found.append(f"{most} GPUs per host" if least == most else f"{least} to {most} GPUs per host")
        return "; ".join(found)


class Process(NamedTuple):
    """What ranks know of each other's process.

    Attributes:
        host: Its name.
        pid: In its own namespace.
        domain: Number of the cache domain on its host, or `UNBOUND`.
        ngpus: As in `Topology`.
        has_gpu: It is likely to have a GPU.
        word: By which others find out whether they can read its memory.
    """

    host: str
    pid: int
    domain: int
    ngpus: int
    has_gpu: bool
    word: ProbeWord


def this_process(has_gpu: bool) -> Process:
    """This one; MPI must run."""
    host, domain = printable(MPI.Get_processor_name()), bound_to(frozenset(os.sched_getaffinity(0)))
    return Process(host, os.getpid(), domain, _ngpus(), has_gpu, word())


def find_topology(rank: int, processes: Sequence[Process], found: Sequence[tuple[int, bool]], per_domain: Sequence[int] = ()) -> Topology:
    """Placement of the ranks of a communicator.

    Args:
        rank: This rank.
        processes: Of all ranks.
        found: For each rank the lowest of those of its node, itself included, and whether it shares memory with them.
        per_domain: As in `dealt`, of domains that count instead of those that the system says; empty: these do.
    """
    hosts, _, bound, ngpus, *_ = zip(*processes, strict=True)
    nodes = numbered(first for first, _ in found)
    named = dealt(nodes, per_domain) if per_domain else list(bound)
    sharing = [domain if shares else UNBOUND for domain, (_, shares) in zip(named, found, strict=True)]
    return Topology(rank, nodes, domains_of(nodes, sharing), hosts, ngpus)


def domains_of(nodes: Nodes, bound: Sequence[int]) -> Nodes:
    """Number of each rank's cache domain over all nodes, from those on its host; a node where one is `UNBOUND` is one domain.

    >>> domains_of((0, 0, 0, 1, 1, 2), (0, 0, 8, 0, 8, 8)), domains_of((0, 0, 1, 1), (0, UNBOUND, 0, 8))
    ((0, 0, 1, 2, 3, 4), (0, 0, 1, 2))
    """
    whole = {node for node, domain in zip(nodes, bound, strict=True) if domain == UNBOUND}
    return numbered((node, UNBOUND if node in whole else domain) for node, domain in zip(nodes, bound, strict=True))


def dealt(nodes: Nodes, per_domain: Sequence[int]) -> list[int]:
    """Domains that the ranks of each node are dealt to in order: of so many ranks each, again and again from the first size on.

    >>> dealt((0, 0, 0, 0, 0, 1), (3, 1)), dealt((0, 1, 0, 1, 0), (2,))
    ([0, 0, 0, 1, 2, 0], [0, 0, 0, 0, 1])
    """
    turns = list(islice(chain.from_iterable(repeat(domain, size) for domain, size in enumerate(cycle(per_domain))), len(nodes)))
    found = {rank: turns[turn] for ranks in members(nodes) for turn, rank in enumerate(ranks)}
    return [found[rank] for rank in range(len(nodes))]


@lru_cache(maxsize=1)
def _ngpus() -> int:
    try:
        return sum(1 for _ in _GPUS.iterdir())
    except OSError:
        return 0


@lru_cache(maxsize=16)
def bound_to(cores: frozenset[int], cpus: Path = CPUS) -> int:
    """Number of the cache domain that all these cores belong to, its lowest core; `UNBOUND` where there is none."""
    domain = domain_of(min(cores), cpus)
    return min(domain) if cores <= domain else UNBOUND
