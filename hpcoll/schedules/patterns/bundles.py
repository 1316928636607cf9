"""Bundles: what ranks of a node send to ranks of another node along the edges of a graph, as one message.

A ring of 4 ranks on 2 nodes, in turn; blocks as source>target:

    collected on the node    between the nodes            handed out on the node
    2: 2>1 2>3 to rank 0     0: 0>3 0>1 2>1 2>3 to 1      1: 0>3 2>3 to rank 3
    3: 3>2 3>0 to rank 1     1: 1>0 1>2 3>2 3>0 to 0      0: 1>2 3>2 to rank 2

Of the ranks that have edges to the other node, one that carries the fewest bundles sends, or receives.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from hpcoll.schedules.graph import Graph
from hpcoll.schedules.placement import Nodes

Block = tuple[int, int]  # the rank that sends it, and its number there
Message = tuple[int, int, int]  # sender, receiver, blocks


class Bundle(NamedTuple):
    """The message from a node to another.

    Attributes:
        sender: Rank that collects the blocks and sends them.
        receiver: Rank that receives the blocks and hands them out.
        given: Blocks of each rank of the sending node, in the order in which they travel.
        taken: Blocks for each rank of the receiving node, in that order too, each with its places among the blocks that this rank receives.
    """

    sender: int
    receiver: int
    given: dict[int, list[Block]]
    taken: dict[int, dict[Block, list[int]]]

    @property
    def blocks(self) -> list[Block]:
        """All blocks, in the order in which they travel."""
        return [block for blocks in self.given.values() for block in blocks]


class Bundles(NamedTuple):
    """All bundles of a graph, by the number of the node that they leave, and of the node where they arrive."""

    leaving: list[list[Bundle]]
    arriving: list[list[Bundle]]


@lru_cache(maxsize=32)
def bundles(graph: Graph, nodes: Nodes, once: bool) -> Bundles:
    """Return the bundles of a graph on nodes; ``once``: all blocks that a rank sends are its block 0, which is in a bundle once."""
    between: dict[tuple[int, int], tuple[dict[int, list[Block]], dict[int, dict[Block, list[int]]]]] = {}
    for rank, ends in enumerate(graph.targets):
        for index, end in enumerate(ends):
            if end is None or nodes[end[0]] == nodes[rank]:
                continue
            given, taken = between.setdefault((nodes[rank], nodes[end[0]]), ({}, {}))
            block, theirs = (rank, 0 if once else index), given.setdefault(rank, [])
            if theirs[-1:] != [block]:
                theirs.append(block)
            taken.setdefault(end[0], {}).setdefault(block, []).append(end[1])
    nnodes = max(nodes) + 1
    # so that no two nodes begin with the same one
    pairs = sorted(between, key=lambda pair: ((pair[1] - pair[0]) % nnodes, pair))
    senders, receivers = (_carriers([between[pair][end] for pair in pairs]) for end in (0, 1))
    result = Bundles([[] for _ in range(nnodes)], [[] for _ in range(nnodes)])
    for (source, target), sender, receiver in zip(pairs, senders, receivers, strict=True):
        bundle = Bundle(sender, receiver, *between[source, target])
        result.leaving[source].append(bundle)
        result.arriving[target].append(bundle)
    return result


def _carriers(ranks: Iterable[Mapping[int, Collection[Block]]]) -> list[int]:
    """Return for each bundle the rank that carries it: of those with blocks in it one that carries least, and has most blocks."""
    load, carriers = Counter[int](), list[int]()
    for blocks in ranks:
        carriers.append(min(blocks, key=lambda rank: (load[rank], -len(blocks[rank]), rank)))
        load[carriers[-1]] += 1
    return carriers


class GraphTraffic(NamedTuple):
    """Messages and blocks of a neighbourhood collective on a graph and nodes, by their names in formulas."""

    d: int  # blocks of m: the most that a rank sends to its neighbours, or receives
    a: int  # messages that the busiest rank sends to other nodes, or receives from there
    e: int  # messages that the busiest rank sends to ranks of its node, or receives from them
    i: int  # blocks in these
    w: int  # blocks of the longest message between nodes
    x: int  # blocks that the busiest node sends to others, or receives
    b: int  # blocks that the busiest rank sends
    y: int  # blocks that the busiest rank receives


@lru_cache(maxsize=256)
def graph_traffic(graph: Graph, nodes: Nodes, once: bool, bundled: bool) -> GraphTraffic:
    """Count what ranks send and receive, with a message for each edge or in bundles; ``once`` as in `bundles`."""
    messages = list(_messages(graph, nodes, once, bundled))
    near, far = (
        [bundle for bundle in messages if (nodes[bundle[0]] == nodes[bundle[1]]) is same]
        for same in (True, False)
    )
    return GraphTraffic(
        d=graph.degree,
        a=max(_most((bundle[end], 1) for bundle in far) for end in (0, 1)),
        e=max(_most((bundle[end], 1) for bundle in near) for end in (0, 1)),
        i=max(_most((bundle[end], bundle[2]) for bundle in near) for end in (0, 1)),
        w=max((bundle[2] for bundle in far), default=0),
        x=max(_most((nodes[bundle[end]], bundle[2]) for bundle in far) for end in (0, 1)),
        b=_most((bundle[0], bundle[2]) for bundle in messages),
        y=_most((bundle[1], bundle[2]) for bundle in messages),
    )


def _messages(graph: Graph, nodes: Nodes, once: bool, bundled: bool) -> Iterator[Message]:
    for rank in range(len(graph.targets)):
        for peer, blocks in graph.sent(rank).items():
            if peer != rank and not (bundled and nodes[peer] != nodes[rank]):
                n = 1 if once else len(blocks)
                yield from [(rank, peer, n)] if bundled else [(rank, peer, 1)] * n
    collected, handed_out = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for bundle in (
        (one for leaving in bundles(graph, nodes, once).leaving for one in leaving) if bundled else ()
    ):
        yield bundle.sender, bundle.receiver, len(bundle.blocks)
        collected.update({(rank, bundle.sender): len(blocks) for rank, blocks in bundle.given.items()})
        handed_out.update({(bundle.receiver, rank): len(blocks) for rank, blocks in bundle.taken.items()})
    yield from (
        (source, target, n)
        for part in (collected, handed_out)
        for (source, target), n in part.items()
        if source != target
    )


def _most(weights: Iterable[tuple[int, int]]) -> int:
    """Return the largest sum of the weights of a number."""
    sums: Counter[int] = Counter()
    for number, weight in weights:
        sums[number] += weight
    return max(sums.values(), default=0)
