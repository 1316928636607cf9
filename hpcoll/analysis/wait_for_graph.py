"""The wait-for graph: ranks that wait in calls, and the ranks that they await. All waiting hangs on its roots; a circle is a deadlock.

`hpcoll inspect` makes one of the records of a program that hung, or of the status pages of ranks that run. The watchdog looks for circles
as it hears of its peers. This module knows none of them, and no MPI.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from hpcoll.base.text import ranks_in_words

_LINKS = 4  # of a long chain that are told from either end

Node = TypeVar("Node", bound=Hashable)


@dataclass(frozen=True)
class Wait:
    """A rank that waits in a call."""

    rank: int
    # communicator, lane and number: equal for the calls of all ranks that belong together
    call: tuple[str, str, int]
    awaits: tuple[int, ...]  # ranks that it waits for; a negative one is of another program
    text: str  # the call in words
    step: str  # the row of its program that it has come to, in words
    since: float  # when the wait began, in seconds


class WaitForGraph:
    """The waits of some ranks; an edge leads from a rank that waits to each other rank of this program that it awaits.

    Attributes:
        waits: The waits of each rank that has some.
        awaited: The ranks that each of these awaits.
    """

    def __init__(self, waits: Iterable[Wait]) -> None:
        self.waits: dict[int, list[Wait]] = {}
        self.awaited: dict[int, set[int]] = {}
        for wait in waits:
            self.waits.setdefault(wait.rank, []).append(wait)
            self.awaited.setdefault(wait.rank, set()).update(
                peer for peer in wait.awaits if peer >= 0 and peer != wait.rank
            )

    def awaited_by(self) -> dict[tuple[int, ...], list[int]]:
        """Return awaited ranks by the ranks that wait for them; both ascend, and so do the lowest ranks of the lists."""
        waiters: dict[int, list[int]] = {}
        for rank in sorted(self.awaited):
            for peer in self.awaited[rank]:
                waiters.setdefault(peer, []).append(rank)
        peers: dict[tuple[int, ...], list[int]] = {}
        for peer in sorted(waiters):
            peers.setdefault(tuple(waiters[peer]), []).append(peer)
        return peers

    def roots(self) -> list[tuple[list[int], set[int]]]:
        """Return awaited ranks that do not wait, each list with the ranks that wait for it, directly or through others."""
        groups = [(set(waiters), ranks) for waiters, ranks in self.awaited_by().items()]
        backward = {rank: waiters for waiters, ranks in groups for rank in ranks}
        ends = [
            ([rank for rank in ranks if rank not in self.waits], _reached(waiters, backward))
            for waiters, ranks in groups
        ]
        return sorted((end for end in ends if end[0]), key=lambda end: end[0])

    def circles(self) -> Iterator[list[Wait]]:
        """Yield a circle of each set of ranks that all wait for each other; one across several calls where there is such a one."""
        forward = {rank: peers & set(self.waits) for rank, peers in self.awaited.items()}
        for ranks in _mutual(forward):
            inside = {rank: forward[rank] & ranks for rank in sorted(ranks)}
            calls = {
                rank: {wait.call for wait in self.waits[rank] if ranks & set(wait.awaits)} for rank in inside
            }
            edges = [(rank, peer) for rank, peers in inside.items() for peer in sorted(peers)]
            crossing = [(rank, peer) for rank, peer in edges if calls[rank] != calls[peer]]
            start, peer = min(crossing or edges, key=lambda edge: (edge[0] not in inside[edge[1]], edge))
            way = shortest_path(peer, lambda rank: sorted(inside[rank]), lambda rank: rank == start)  # noqa: B023
            path = [start, *way]
            yield [next(wait for wait in self.waits[a] if b in wait.awaits) for a, b in pairwise(path)]

    def chain(self, start: Wait) -> tuple[list[Wait], int | None]:
        """Follow a wait down to a rank that does not wait, and return the waits on the way and that rank.

        The rank is None where the last wait awaits nobody, or only ranks on the way.
        """
        waits, seen = [start], {start.rank}
        while ahead := [rank for rank in waits[-1].awaits if rank not in seen]:
            rank = next((rank for rank in ahead if rank not in self.waits), ahead[0])
            if rank not in self.waits:
                return waits, rank
            waits.append(
                next((wait for wait in self.waits[rank] if wait.call == start.call), self.waits[rank][-1])
            )
            seen.add(rank)
        return waits, None


def shortest_path(
    start: Node,
    following: Callable[[Node], Iterable[Node]],
    ends: Callable[[Node], bool],
    most: int | None = None,
) -> list[Node]:
    """Return a shortest path of at least one edge to a node that ends it, which may be the start; nothing where none is found.

    ``following`` returns the nodes to which edges lead; it is called once for each of at most ``most`` nodes.
    """
    before: dict[Node, Node | None] = {start: None}
    queue = [start]
    for node in queue:  # which gets longer
        for neighbour in following(node):
            if ends(neighbour):
                path = [neighbour, node]
                while (earlier := before[path[-1]]) is not None:
                    path.append(earlier)
                return path[::-1]
            if neighbour not in before and (most is None or len(before) < most):
                before[neighbour] = node
                queue.append(neighbour)
    return []


def chain_text(waits: Sequence[Wait], end: str = "") -> str:
    """Say who waits for whom along a chain; in which call only where that is not the first one's.

    ``end`` says what the rank at the end does. Where it is empty, and ranks of the chain wait for each other, that is said.
    """
    texts = shortened([wait_text(wait, wait.awaits, in_call=wait.call != waits[0].call) for wait in waits])
    circle = next((waits[i:] for i, wait in enumerate(waits) if wait.rank in waits[-1].awaits), [])
    return "; ".join([*texts, *filter(None, [end or together([wait.rank for wait in circle])])])


def shortened(links: list[str]) -> list[str]:
    """Return the links of a chain; of a long one the first and the last, and between them how many are left out."""
    left_out = len(links) - 2 * _LINKS
    return [*links[:_LINKS], f"{left_out} more in between", *links[-_LINKS:]] if left_out > 1 else links


def wait_text(wait: Wait, awaits: Sequence[int], *, in_call: bool = True) -> str:
    """Say that a rank waits, in which call, and for which ranks."""
    return (
        f"rank {wait.rank} waits"
        + (f" in {wait.text}," if in_call else "")
        + f" for {in_words(awaits) or 'nobody that is known'}"
    )


def together(ranks: Sequence[int]) -> str:
    """Say that ranks wait for each other; of fewer than two there is nothing to say.

    >>> together([1, 0]), together([3, 1, 2])
    ('ranks 0 and 1 wait for each other', 'ranks 1-3 wait for each other')
    """
    if len(ranks) < 2:
        return ""
    return (
        f"ranks {min(ranks)} and {max(ranks)}" if len(ranks) == 2 else ranks_in_words(ranks)
    ) + " wait for each other"


def in_words(ranks: Sequence[int]) -> str:
    """Return ranks in words; the negative ones, of another program, have no number here.

    >>> in_words([0, 1, -1]), in_words([-1])
    ('ranks 0-1 and ranks of another program', 'ranks of another program')
    """
    own = [rank for rank in ranks if rank >= 0]
    texts = [ranks_in_words(own)] if own else []
    return " and ".join(texts + ["ranks of another program"] * (len(own) < len(ranks)))


def _reached(start: Iterable[int], edges: Mapping[int, Set[int]]) -> set[int]:
    """Return the ranks to which edges lead from some ranks, and these."""
    reached, left = set(start), list(start)
    while left:
        new = edges.get(left.pop(), set()) - reached
        reached |= new
        left += new
    return reached


def _mutual(edges: Mapping[int, Set[int]]) -> list[set[int]]:
    """Return the sets of two or more ranks in which each reaches each, the one with the lowest rank first."""
    backward: dict[int, set[int]] = {}
    for rank, peers in edges.items():
        for peer in peers:
            backward.setdefault(peer, set()).add(rank)
    left, groups = set(edges), []
    while ends := {rank for rank in left if not edges[rank] & left}:
        left -= ends
    for rank in sorted(left):
        if rank in left:
            ranks = _reached([rank], edges) & _reached([rank], backward)
            left -= ranks
            if len(ranks) > 1:
                groups.append(ranks)
    return groups
