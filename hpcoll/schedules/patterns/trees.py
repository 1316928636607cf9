"""Trees of ranks for any root.

    in-order binary tree, root 3 of 7       root 5 of 7          k-nomial tree with base 3, 9 vranks

             3                                      5                      0
           /   \\                                  /   \\              /   /  |    \\
          1     5                                2     6            1   2   3     6
         / \\   / \\                             / \\                       / \\   / \\
        0   2 4   6                            1   4                      4   5 7   8
                                              /   /
                                             0   3

In-order: left subtrees hold lower ranks, right ones higher. Every subtree is an interval of ranks, so a reduction to the root keeps
rank order. The depth is floor(log2 nranks) for the root nranks // 2, at most ceil(log2 nranks) for any.

k-nomial: a vrank's parent is the vrank with its lowest nonzero digit in base k set to 0. Base 2 is the binomial tree. A larger base makes
the tree flatter, with more children for each inner vrank.
"""

from typing import NamedTuple


class TreeNode(NamedTuple):
    """The neighbours of a rank in a rooted tree."""

    parent: int | None
    children: tuple[int, ...]  # largest subtree first; one that the last rank cuts short keeps its place


def binary(rank: int, nranks: int, root: int) -> TreeNode:
    """Return a rank's node in the in-order tree: the root splits the ranks in two, then each interval's middle is its root.

    >>> binary(3, 7, 3), binary(1, 7, 3)
    (TreeNode(parent=None, children=(1, 5)), TreeNode(parent=3, children=(0, 2)))
    >>> binary(2, 7, 5)
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


def knomial(rank: int, nranks: int, root: int, radix: int) -> TreeNode:
    """Return a rank's node in the k-nomial tree with base ``radix``; vrank 0 is the root.

    >>> knomial(0, 9, 0, 3), knomial(3, 9, 0, 3)
    (TreeNode(parent=None, children=(3, 6, 1, 2)), TreeNode(parent=0, children=(4, 5)))
    >>> knomial(4, 9, 1, 3)
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


def binomial_span(vrank: int, nranks: int) -> int:
    """Return the size of a vrank's subtree in the binomial tree, which has consecutive vranks.

    >>> [binomial_span(v, 7) for v in range(7)]
    [7, 1, 2, 1, 3, 1, 1]
    """
    return min(vrank & -vrank, nranks - vrank) if vrank else nranks


def chain(rank: int, nranks: int, root: int) -> TreeNode:
    """Return a rank's node in the line of ranks that begins at the root.

    >>> chain(1, 4, 1), chain(0, 4, 1)
    (TreeNode(parent=None, children=(2,)), TreeNode(parent=3, children=()))
    """
    left, right = (rank - 1) % nranks, (rank + 1) % nranks
    return TreeNode(None if rank == root else left, () if right == root else (right,))
