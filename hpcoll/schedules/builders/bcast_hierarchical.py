"""Hierarchical broadcast: the root scatters the stripes of the message on its node, and each stripe is broadcast between nodes by itself.

2 nodes of 2 ranks, root 0, 2 stripes of x y:

    start       scattered    between the nodes    spread
    0: x y      x y          x y                  x y
    1: . .      . y          . y                  x y
    2: . .      . .          x .                  x y
    3: . .      . .          . y                  x y

Every node receives m once and sends at most m; between nodes the halves of a stripe go down the two trees of the double tree.

Source: Traeff and Hunold, arXiv 1910.13373 (full-lane collectives), with the double-tree broadcast between nodes.
"""

from hpcoll.schedules.composition import Node, compose
from hpcoll.schedules.ir import Chunk, Writer, outputs


def bcast_hierarchical(w: Writer) -> None:
    """Write 2 rounds on the node and ceil(log2 h) between the nodes, in two channels of half the message each."""
    node = Node(w, rooted=True)
    home = w.nodes[w.rank] == node.root
    halves = w.nchunks // node.nstripes
    for half in range(halves):

        def stripe_of(stripe: int, half: int = half) -> Chunk:
            return outputs(stripe * halves + half)

        w.channel(half)
        if w.rank == w.root:
            for peer in node.others(node.owners()):
                w.send(peer, stripe_of(node.mates.index(peer)))
        elif home and node.owner:
            w.recv(w.root, stripe_of(node.local))
        if node.owner:
            chunks = [[stripe_of(node.local, k).index] for k in range(halves)]
            compose(
                w, "bcast/double_tree", node.stripe, chunks, outputs, outputs, root=node.root, channel=half
            )
        node.spread(stripe_of, but=w.root if home else -1)
