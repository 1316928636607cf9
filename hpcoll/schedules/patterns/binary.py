"""In-order binary tree with any rank for its root: left subtrees hold lower ranks, right subtrees higher ones.

    root 3 of 7       root 0 of 7       root 5 of 7

         3            0                      5
       /   \\            \\                  /   \\
      1     5             4               2     6
     / \\   / \\          /   \\            / \\
    0   2 4   6        2     6          1   4
                      / \\   /          /   /
                     1   3 5          0   3

Every subtree is an interval of ranks, so a reduction towards the root keeps rank order. Depth: floor(log2 nranks) for
the root nranks // 2, at most ceil(log2 nranks) for any.
"""

from hpcoll.schedules.patterns.tree import TreeNode


def node(rank: int, nranks: int, root: int) -> TreeNode:
    """Place of a rank: the root splits the ranks in two, then every interval has its middle for root.

    >>> node(3, 7, 3), node(1, 7, 3)
    (TreeNode(parent=None, children=(1, 5)), TreeNode(parent=3, children=(0, 2)))
    >>> node(2, 7, 5)
    TreeNode(parent=5, children=(1, 4))
    """
    parent, middle = None, root
    lo, hi = 0, nranks
    while rank != middle:
        parent = middle
        lo, hi = (lo, middle) if rank < middle else (middle + 1, hi)
        middle = (lo + hi) // 2
    halves = sorted(((lo, middle), (middle + 1, hi)), key=lambda half: half[0] - half[1])
    return TreeNode(parent, tuple((first + last) // 2 for first, last in halves if first < last))
