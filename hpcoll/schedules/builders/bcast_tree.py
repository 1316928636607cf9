"""Tree broadcast: a 4-nomial tree, half as deep as a binomial one, with up to three children per level.

    round   0                  1
            0 -> 4 8 12        0 -> 1 2 3   4 -> 5 6 7   8 -> 9 10 11   12 -> 13 14 15
            (16 ranks)

For networks where a message takes long to arrive and little to post: three sends leave one after another and travel together.
"""

from hpcoll.schedules.ir import Writer, outputs
from hpcoll.schedules.patterns.trees import TreeNode, knomial

RADIX = 4


def bcast_tree(w: Writer) -> None:
    """Write at most ceil(q/2) rounds of m; the root sends it up to 3 times in each."""
    distribute(w, knomial(w.rank, w.nranks, w.root, RADIX))


def distribute(w: Writer, node: TreeNode, chunk: int = 0) -> None:
    """Write the descent of a tree: receive a chunk of OUTPUT from the parent, send it to the children, largest subtree first."""
    if node.parent is not None:
        w.recv(node.parent, outputs(chunk))
    for child in node.children:
        w.send(child, outputs(chunk))
