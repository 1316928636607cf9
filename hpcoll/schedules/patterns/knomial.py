"""k-nomial tree: a vrank's parent is itself with its lowest digit that is not zero, to the base k, set to zero.

    base 3, 9 vranks:

               0
        /   /  |    \\
       1   2   3     6
              / \\   / \\
             4   5 7   8

With k = 2 it is the binomial tree. A larger k makes it flatter, with more children for each inner vrank.
"""

from hpcoll.schedules.patterns.tree import TreeNode


def node(rank: int, nranks: int, root: int, radix: int) -> TreeNode:
    """Place of a rank, after rotating the root to vrank 0.

    >>> node(0, 9, 0, 3), node(3, 9, 0, 3)
    (TreeNode(parent=None, children=(3, 6, 1, 2)), TreeNode(parent=0, children=(4, 5)))
    >>> node(4, 9, 1, 3)
    TreeNode(parent=1, children=(5, 6))
    """
    vrank, weight = (rank - root) % nranks, 1
    while weight < nranks and vrank // weight % radix == 0:
        weight *= radix
    parent = vrank - vrank // weight % radix * weight
    children: list[int] = []
    while weight > 1:
        weight //= radix
        children += range(vrank + weight, min(vrank + radix * weight, nranks), weight)
    return TreeNode((parent + root) % nranks if vrank else None, tuple((child + root) % nranks for child in children))
