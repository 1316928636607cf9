"""Tree reduce: an in-order binary tree below the root, whatever the root; partial results climb it in rank order.

8 ranks, root 4; a..h are the ranks' contributions:

             4             start   0:a  1:b   2:c     3:d  4:e       5:f  6:g    7:h
          /     \\          up 1         1:ab                              6:fgh
         2       6         up 2               2:abcd
        / \\     / \\        up 3                            4:abcdefgh
       1   3   5   7
      /
     0

Source: classic; in-order numbering as in Sanders, Speck and Traeff, Parallel Computing 2009.
"""

from hpcoll.schedules.ir import Chunk, Writer, inputs, outputs
from hpcoll.schedules.patterns import binary
from hpcoll.schedules.patterns.tree import TreeNode


def reduce_tree(w: Writer) -> None:
    """At most q rounds of m; keeps rank order for every root."""
    combine(w, binary.node(w.rank, w.nranks, w.root), 0, into=outputs(0) if w.rank == w.root else None)


def combine(w: Writer, node: TreeNode, chunk: int, *, into: Chunk | None) -> None:
    """Climb a tree: own contribution and the children's partial results, handed to the parent.

    Smallest subtree first, because it is ready first. Leaves send from INPUT. Keeps rank order where subtrees are intervals.

    Args:
        chunk: Which chunk of the message climbs.
        into: Where partial results go; None for a scratch cell, taken only where there are children.
    """
    partial = inputs(chunk)
    for child in reversed(node.children):
        into = into or w.scratch(chunk)
        w.recv_reduce(child, into, partial, received_first=child < w.rank)
        partial = into
    if node.parent is not None:
        w.send(node.parent, partial)
