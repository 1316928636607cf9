"""The topology of a communicator: the ranks of each node and of each cache domain, and the GPUs of each host."""

import os
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain, cycle, islice, repeat
from pathlib import Path
from typing import NamedTuple

from hpcoll.base.machine import CPUS, domain_of
from hpcoll.runtime.transports.cross_memory import ProbeWord, word
from hpcoll.runtime.transports.mpi import host_name
from hpcoll.schedules.placement import Nodes, describe_all, members, numbered, parts

_GPUS = Path("/proc/driver/nvidia/gpus")
UNBOUND = -1  # domain of a process that is not bound to one, as far as Linux says


class Topology(NamedTuple):
    """The placement of a communicator's ranks, equal on all ranks but for ``rank``.

    Ranks of a cache domain are bound to cores that share a last-level cache. A node is one domain where one of its ranks is not bound so,
    or where its ranks share no memory.
    """

    rank: int  # this one
    nodes: Nodes  # number of each rank's node, whose ranks share memory, in the order of their lowest ranks
    domains: Nodes  # number of each rank's cache domain, over all nodes
    hosts: tuple[str, ...]  # of each rank
    gpus: tuple[int, ...]  # GPUs that Linux lists on each rank's host

    @property
    def nranks(self) -> int:
        """The number of ranks."""
        return len(self.nodes)

    @property
    def parts(self) -> Nodes:
        """The parts that hierarchical algorithms use, as `hpcoll.schedules.placement.parts`."""
        return parts(self.nodes, self.domains)

    def __str__(self) -> str:
        words = [describe_all(self.nodes, self.domains)]
        nhosts = len(set(self.hosts))
        if nhosts != max(self.nodes) + 1:
            words.append(f"on {nhosts} host" + "s" * (nhosts > 1))
        if any(self.gpus):
            least, most = min(self.gpus), max(self.gpus)
            words.append(f"{most} GPUs per host" if least == most else f"{least} to {most} GPUs per host")
        return "; ".join(words)


class Process(NamedTuple):
    """A rank's process, as other ranks know it."""

    host: str
    pid: int  # in its own namespace
    domain: int  # number of its cache domain on its host, or `UNBOUND`
    ngpus: int  # on its host
    has_gpu: bool  # probably
    word: ProbeWord  # in its memory, by which others find out whether they can read there


def this_process(has_gpu: bool) -> Process:
    """Return this process; MPI must be initialised."""
    host, domain = host_name(), bound_to(frozenset(os.sched_getaffinity(0)))
    return Process(host, os.getpid(), domain, _ngpus(), has_gpu, word())


def find_topology(
    rank: int,
    processes: Sequence[Process],
    firsts: Sequence[tuple[int, bool]],
    per_domain: Sequence[int] = (),
) -> Topology:
    """Return the topology of a communicator, as ``rank`` has it.

    ``firsts`` has for each rank the lowest rank of its node, and whether it shares memory there. ``per_domain`` has sizes of cache domains,
    as in `dealt`, instead of those that Linux shows.
    """
    hosts, _, bound, ngpus, *_ = zip(*processes, strict=True)
    nodes = numbered(first for first, _ in firsts)
    named = dealt(nodes, per_domain) if per_domain else list(bound)
    sharing = [domain if shares else UNBOUND for domain, (_, shares) in zip(named, firsts, strict=True)]
    return Topology(rank, nodes, domains_of(nodes, sharing), hosts, ngpus)


def domains_of(nodes: Nodes, bound: Sequence[int]) -> Nodes:
    """Number the cache domains over all nodes, given each rank's on its host; a node with an `UNBOUND` rank is one domain.

    >>> domains_of((0, 0, 0, 1, 1, 2), (0, 0, 8, 0, 8, 8)), domains_of((0, 0, 1, 1), (0, UNBOUND, 0, 8))
    ((0, 0, 1, 2, 3, 4), (0, 0, 1, 2))
    """
    whole = {node for node, domain in zip(nodes, bound, strict=True) if domain == UNBOUND}
    return numbered(
        (node, UNBOUND if node in whole else domain) for node, domain in zip(nodes, bound, strict=True)
    )


def dealt(nodes: Nodes, per_domain: Sequence[int]) -> list[int]:
    """Deal the ranks of each node to domains in order; ``per_domain`` has the domains' sizes, which repeat.

    >>> dealt((0, 0, 0, 0, 0, 1), (3, 1)), dealt((0, 1, 0, 1, 0), (2,))
    ([0, 0, 0, 1, 2, 0], [0, 0, 0, 0, 1])
    """
    turns = list(
        islice(
            chain.from_iterable(repeat(domain, size) for domain, size in enumerate(cycle(per_domain))),
            len(nodes),
        )
    )
    dealt_to = {rank: turns[turn] for ranks in members(nodes) for turn, rank in enumerate(ranks)}
    return [dealt_to[rank] for rank in range(len(nodes))]


@lru_cache(maxsize=1)
def _ngpus() -> int:
    try:
        return sum(1 for _ in _GPUS.iterdir())
    except OSError:
        return 0


@lru_cache(maxsize=16)
def bound_to(cores: frozenset[int], cpus: Path = CPUS) -> int:
    """Return the number, which is the lowest core, of the cache domain that has all these cores; `UNBOUND` where there is none."""
    domain = domain_of(min(cores), cpus)
    return min(domain) if cores <= domain else UNBOUND
