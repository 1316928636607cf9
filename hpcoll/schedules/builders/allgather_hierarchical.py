"""Hierarchical allgather: a rank of each stripe gathers that stripe's blocks from all nodes; then the ranks of a node exchange the stripes.

2 nodes of 2 ranks, 2 stripes; blocks held:

    start      between the nodes    spread on the node
    0: 0       0 . 2 .              0 1 2 3
    1: 1       . 1 . 3              0 1 2 3
    2: 2       0 . 2 .              0 1 2 3
    3: 3       . 1 . 3              0 1 2 3

A block goes to every other node once. On larger nodes than the smallest the ranks beyond the stripes first send their block
to an owner.

Source: Traeff and Hunold, arXiv 1910.13373 (full-lane collectives), with the circulant allgather between nodes.
"""

from hpcoll.schedules.composition import Node, compose, joined
from hpcoll.schedules.ir import Writer, inputs, outputs


def allgather_hierarchical(w: Writer) -> None:
    """Write at most 2 rounds on the node, the blocks one by one, and ceil(log2 h) between the nodes."""
    node = Node(w)
    held = {peer: node.packed(peer) for peer in (w.rank, *reversed(node.others(node.owners())))}
    mine = held[w.rank]
    w.copy(inputs(0), outputs(w.rank))
    if node.owner:
        w.copy(inputs(0), mine[w.rank])
    else:
        w.send(node.owner_of(w.rank), inputs(0))
    for rank in node.stripe_mates():
        w.recv(rank, mine[rank])
    if node.owner:
        compose(
            w, "allgather/circulant", node.stripe, node.blocks(node.local), mine.__getitem__, mine.__getitem__
        )
    for peer in node.others(node.mates) if node.owner else ():
        w.send(peer, joined(mine))
    for peer in reversed(node.others(node.owners())):
        w.recv(peer, joined(held[peer]))
    for blocks in held.values():
        for block in blocks:
            if block != w.rank:
                w.copy(blocks[block], outputs(block))
