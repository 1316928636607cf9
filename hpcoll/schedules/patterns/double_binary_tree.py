"""Two binary trees over the same ranks, in which hardly any rank is an inner node twice.

Each tree carries half of the message, so no rank sends more than a whole message down. Tree A hangs an in-order tree over 1..nranks-1,
in which odd ranks are leaves, below rank 0. Tree B is A with ranks renamed:

    A of 7          mirrored          A of 8             mirrored            rooted: 0 stays, the
                    (r -> -r)                            (r -> 7 - r)        others shift by one
    0               0                 0                            7         0
     \\               \\                 \\                        /             \\
       4               3                 4                   3                 5
     /   \\           /   \\             /   \\               /   \\             /   \\
    2     6         1     5           2     6             1     5           3     7
   / \\   /           \\   / \\         / \\   / \\           / \\   / \\         / \\   / \\
  1   3 5             2 4   6       1   3 5   7         0   2 4   6       2   4 6   1

- Depth is ceil(log2 nranks) for every tree here.
- A rank has at most 2 children over both trees. Only rank 0 can be an inner node of both: with one child in each, in
  rooted pairs, and in mirrored pairs of odd nranks; in mirrored pairs of even nranks no rank is.
- In A and in mirrored trees every subtree is an interval of ranks, so reductions keep rank order.
"""

from hpcoll.schedules.patterns.trees import TreeNode


def mirrored(rank: int, nranks: int) -> tuple[TreeNode, TreeNode]:
    """Return a rank's nodes in A and in B = A mirrored, whose roots are 0 and 0 (odd nranks), or 0 and nranks - 1 (even).

    >>> mirrored(4, 7)
    (TreeNode(parent=0, children=(2, 6)), TreeNode(parent=5, children=()))
    >>> mirrored(3, 8)
    (TreeNode(parent=2, children=()), TreeNode(parent=7, children=(5, 1)))
    """
    middle = -1 if nranks % 2 == 0 else 0
    mirror = _tree_a((middle - rank) % nranks, nranks).renamed(lambda other: (middle - other) % nranks)
    return _tree_a(rank, nranks), mirror


def rooted(rank: int, nranks: int, root: int) -> tuple[TreeNode, TreeNode]:
    """Return a rank's nodes in two trees that have the same root.

    >>> rooted(0, 8, 0)
    (TreeNode(parent=None, children=(4,)), TreeNode(parent=None, children=(5,)))
    >>> rooted(7, 8, 4)
    (TreeNode(parent=6, children=()), TreeNode(parent=1, children=(6, 0)))
    """
    vrank = (rank - root) % nranks
    if nranks % 2:
        a, b = mirrored(vrank, nranks)
    else:
        shifted = _tree_a(_shifted(vrank, -1, nranks), nranks)
        a, b = _tree_a(vrank, nranks), shifted.renamed(lambda other: _shifted(other, 1, nranks))
    return a.rotated(root, nranks), b.rotated(root, nranks)


def _shifted(vrank: int, by: int, nranks: int) -> int:
    """Shift 1..nranks-1 cyclically; 0 stays."""
    return 1 + (vrank - 1 + by) % (nranks - 1) if vrank else 0


def _tree_a(rank: int, nranks: int) -> TreeNode:
    """Return a rank's node in A, where a rank r > 0 is as many levels above the leaves as r has trailing zero bits."""
    if rank == 0:
        return TreeNode(None, (1 << (nranks - 1).bit_length() - 1,) if nranks > 1 else ())
    low = rank & -rank
    parent = rank ^ low | low << 1
    children = [rank - low // 2] if low > 1 else []
    right = low // 2
    while right and rank + right >= nranks:
        right //= 2
    if right:
        children.append(rank + right)
    return TreeNode(parent if parent < nranks else rank ^ low, tuple(children))
