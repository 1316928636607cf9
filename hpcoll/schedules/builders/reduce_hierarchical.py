"""Hierarchical reduce: every node folds the stripes of the message, each stripe goes to the root's node by itself, then to the root.

2 nodes of 2 ranks, root 0, a..d their contributions, 2 stripes:

    start         folded on the node    between the nodes    at the root
    0: a  a       ab .                  abcd .               abcd abcd
    1: b  b       .  ab                 .    abcd            .
    2: c  c       cd .                  .    .               .
    3: d  d       .  cd                 .    .               .

Source: Traeff and Hunold, arXiv 1910.13373 (full-lane collectives), with the double-tree reduce between nodes.
"""

from hpcoll.schedules.composition import Node, always, compose
from hpcoll.schedules.ir import Chunk, Writer, inputs, outputs


def reduce_hierarchical(w: Writer) -> None:
    """Write 2 rounds on the node and ceil(log2 h) between the nodes, in two channels of half the message each. Commutative operators."""
    node = Node(w, rooted=True)
    home = w.nodes[w.rank] == node.root
    halves = w.nchunks // node.nstripes

    def room(run: Chunk) -> Chunk:
        return outputs(run.index) if w.rank == w.root else w.scratch(run.index)

    for half in range(halves):

        def stripe_of(stripe: int, half: int = half) -> Chunk:
            return inputs(stripe * halves + half)

        w.channel(half)
        folded = node.fold(stripe_of, into=room)
        if folded is not None:
            result = outputs(stripe_of(0).index) if w.rank == w.root else folded
            chunks = [[stripe_of(node.local, k).index] for k in range(halves)]
            compose(
                w,
                "reduce/double_tree",
                node.stripe,
                chunks,
                always(folded),
                always(result),
                root=node.root,
                channel=half,
            )
            if home and w.rank != w.root:
                w.send(w.root, result)
        if w.rank == w.root:
            for peer in reversed(node.others(node.owners())):
                w.recv(peer, outputs(stripe_of(node.mates.index(peer)).index))
