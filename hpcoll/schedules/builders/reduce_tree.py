"""Tree reduce: partial results climb an in-order binary tree below any root, in rank order.

8 ranks, root 4; a..h are the ranks' contributions:

             4             start   0:a  1:b   2:c     3:d  4:e       5:f  6:g    7:h
          /     \\          up 1         1:ab                              6:fgh
         2       6         up 2               2:abcd
        / \\     / \\        up 3                            4:abcdefgh
       1   3   5   7
      /
     0
"""

from hpcoll.schedules.ir import Chunk, Writer, inputs, outputs
from hpcoll.schedules.patterns.trees import TreeNode, binary


def reduce_tree(w: Writer) -> None:
    """Write at most q rounds of m; keeps rank order for every root."""
    combine(w, binary(w.rank, w.nranks, w.root))


def combine(w: Writer, node: TreeNode, chunk: int = 0, into: Chunk | None = None) -> None:
    """Write the ascent of a tree: combine the children's partial results with the own contribution, and send that to the parent.

    The smallest subtree comes first, because it is ready first. Rank order is kept where subtrees are intervals of ranks. Partial results
    go to OUTPUT at the root, elsewhere ``into`` a chunk; None: scratch, if there are children.
    """
    partial = inputs(chunk)
    into = outputs(chunk) if node.parent is None else into
    for child in reversed(node.children):
        into = into or w.scratch(chunk)
        w.recv_reduce(child, partial, into, received_first=child < w.rank)
        partial = into
    if node.parent is not None:
        w.send(node.parent, partial)
