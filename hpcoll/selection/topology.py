"""The topology of a communicator: the ranks of each node and of each cache domain, and the GPUs of each host."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain, cycle, islice, repeat
from typing import NamedTuple

import numpy as np

from hpcoll.schedules.placement import Nodes, describe_all, members, numbered, parts
from hpcoll.selection.processes import UNBOUND, Processes


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


def find_topology(
    rank: int,
    processes: Processes,
    firsts: np.ndarray,
    sharing: np.ndarray,
    per_domain: Sequence[int] = (),
) -> Topology:
    """Return the topology of a communicator, as ``rank`` has it.

    Args:
        rank: This rank.
        processes: Process of each rank.
        firsts: Of each rank the lowest rank of its node.
        sharing: Says of each rank whether it shares memory there.
        per_domain: Sizes of cache domains, as in `dealt`, instead of those that Linux shows.
    """
    nodes = numbered(firsts.tolist())
    named = np.array(dealt(nodes, per_domain)) if per_domain else processes.rows["domain"]
    domains = domains_of(nodes, np.where(sharing, named, UNBOUND).tolist())
    return Topology(rank, nodes, domains, processes.hosts, tuple(processes.rows["ngpus"].tolist()))


def grouped(firsts: np.ndarray, most: int | None) -> np.ndarray:
    """Return of each rank the lowest rank of its node, where nodes are cut into groups of at most so many ranks; None: they are not.

    >>> grouped(np.array([0, 0, 2, 0, 2]), 2).tolist()
    [0, 0, 2, 3, 2]
    """
    if not most:
        return firsts
    seen = Counter[int]()
    leaders: dict[int, int] = {}
    found = firsts.copy()
    for rank, first in enumerate(firsts.tolist()):
        if seen[first] % most == 0:
            leaders[first] = rank
        seen[first] += 1
        found[rank] = leaders[first]
    return found


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
