"""Hierarchical reduce_scatter: every node folds its contributions, then the owners of a stripe combine the sums between the nodes.

2 nodes of 2 ranks, a..d their contributions, 2 stripes; block by block:

    start             folded on the node    between the nodes
    0: a a a a        ab .  ab .            abcd .    .    .
    1: b b b b        .  ab .  ab           .    abcd .    .
    2: c c c c        cd .  cd .            .    .    abcd .
    3: d d d d        .  cd .  cd           .    .    .    abcd

Of each block one partial sum leaves a node instead of one per rank. On larger nodes than the smallest the ranks beyond the
stripes receive their block from an owner.

Source: Traeff and Hunold, arXiv 1910.13373 (full-lane collectives), with the circulant reduce_scatter between nodes.
"""

from hpcoll.schedules.composition import Node, cells, compose
from hpcoll.schedules.ir import Writer, inputs, outputs


def reduce_scatter_hierarchical(w: Writer) -> None:
    """Write at most 2 rounds on the node, the blocks one by one, and ceil(log2 h) between the nodes. Commutative operators."""
    node = Node(w)
    blocks = node.stripe_blocks(w.rank)
    contributions = {block: {w.rank: inputs(block)} for block in blocks}
    into = node.packed(w.rank)

    def add(peer: int, turn: int) -> None:
        block = blocks[turn]
        known = contributions[block]
        known[peer] = w.scratch(block)
        w.recv(peer, known[peer])
        if len(known) == len(node.mates):
            w.reduce(*(known[rank] for rank in sorted(known)), dst=into[block])

    node.exchange(
        lambda peer: [inputs(block) for block in node.stripe_blocks(peer)], lambda peer: len(blocks), add
    )
    if not node.owner:
        w.recv(node.owner_of(w.rank), outputs(0))
        return
    for block in blocks if len(node.mates) == 1 else ():
        w.copy(inputs(block), into[block])
    mine = [w.rank, *node.stripe_mates()]
    results = {w.rank: outputs(0)} if len(mine) == 1 else dict(zip(mine, cells(w.scratch(*mine))))
    compose(
        w,
        "reduce_scatter/circulant",
        node.stripe,
        node.blocks(node.local),
        into.__getitem__,
        results.__getitem__,
    )
    for rank in mine[1:]:
        w.send(rank, results[rank])
    if len(mine) > 1:
        w.copy(results[w.rank], outputs(0))
