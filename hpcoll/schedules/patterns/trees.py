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

Bine: the ranks are halved again and again, and each half's top is a third of the half away from the other half. Ways are two thirds of the
binomial tree's, which halves likewise, with the tops at the lower ends. Source: De Sensi et al., arXiv 2508.17311; the rule for any number
of ranks is ours.

Binomial in rank order: in each round aligned blocks of 2^k ranks join in pairs. A block's result is at its first rank, or at the root if
that is in the block. So subtrees are those of the canonical expression (`hpcoll.base.canonical`), whatever the root.

    root 2 of 6, rounds:    0 <- 1   2 <- 3   4 <- 5        2 <- 0        2 <- 4

k-nomial: a vrank's parent is the vrank with its lowest nonzero digit in base k set to 0. Base 2 is the binomial tree. A larger base makes
the tree flatter, with more children for each inner vrank.
"""

from collections.abc import Callable
from typing import NamedTuple


class TreeNode(NamedTuple):
    """The neighbours of a rank in a rooted tree."""

    parent: int | None
    children: tuple[int, ...]  # largest subtree first; one that the last rank cuts short keeps its place

    def renamed(self, name: Callable[[int], int]) -> "TreeNode":
        """Return the node with other numbers for all ranks."""
        return TreeNode(None if self.parent is None else name(self.parent), tuple(map(name, self.children)))

    def rotated(self, root: int, nranks: int) -> "TreeNode":
        """Return the node with the ranks of these vranks."""
        return self.renamed(lambda vrank: (vrank + root) % nranks)


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
    return TreeNode(parent if vrank else None, tuple(children)).rotated(root, nranks)


def binomial_in_order(rank: int, nranks: int, root: int) -> TreeNode:
    """Return a rank's node in the binomial tree of aligned blocks of ranks.

    >>> binomial_in_order(2, 6, 2), binomial_in_order(0, 6, 2)
    (TreeNode(parent=None, children=(4, 0, 3)), TreeNode(parent=2, children=(1,)))
    >>> binomial_in_order(4, 5, 4), binomial_in_order(0, 5, 4)
    (TreeNode(parent=None, children=(0,)), TreeNode(parent=4, children=(2, 1)))
    """

    def top(block: int, k: int) -> int:
        """Return the rank with the result of a block of 2^k ranks."""
        return root if root >> k == block else block << k

    children: list[int] = []
    for k in range((nranks - 1).bit_length()):
        other = rank >> k ^ 1
        if other << k < nranks and top(rank >> k + 1, k + 1) != rank:
            return TreeNode(top(other, k), tuple(reversed(children)))
        children += [top(other, k)] if other << k < nranks else []
    return TreeNode(None, tuple(reversed(children)))


def binomial_span(vrank: int, nranks: int) -> tuple[int, int]:
    """Return the first vrank and the size of a vrank's subtree in the binomial tree, which has consecutive vranks.

    >>> [binomial_span(v, 7) for v in range(7)]
    [(0, 7), (1, 1), (2, 2), (3, 1), (4, 3), (5, 1), (6, 1)]
    """
    return vrank, min(vrank & -vrank, nranks - vrank) if vrank else nranks


def bine(rank: int, nranks: int, root: int) -> TreeNode:
    """Return a rank's node in the Bine tree.

    >>> bine(0, 8, 0), bine(3, 8, 0)
    (TreeNode(parent=None, children=(3, 7, 1)), TreeNode(parent=0, children=(4, 2)))
    """
    parent, children, _ = _bine((rank - root) % nranks, nranks)
    return TreeNode(parent, tuple(children)).rotated(root, nranks)


def bine_span(vrank: int, nranks: int) -> tuple[int, int]:
    """Return the first vrank, from ``vrank - nranks`` on, and the size of a vrank's subtree in the Bine tree, modulo nranks consecutive.

    >>> [bine_span(v, 8) for v in (0, 3, 7, 6)]
    [(-2, 8), (2, 4), (6, 2), (6, 1)]
    """
    return _bine(vrank, nranks)[2]


def _bine(vrank: int, nranks: int) -> tuple[int | None, list[int], tuple[int, int]]:
    """Return parent and children of a vrank, and its span."""
    parent, children, top = None, list[int](), 0
    lo, hi = -(nranks // 3), nranks - nranks // 3
    wanted = vrank if vrank < hi else vrank - nranks
    span = lo, nranks
    while hi - lo > 1:
        # the half with the top is none smaller, and each half's top a mirror image of the other's
        n, left = (
            hi - lo,
            top - lo < hi - top,
        )
        middle = lo + (n + left) // 2
        other = max(lo, min(hi - 1, 2 * middle - 1 - top))
        if top == wanted:
            children.append(other % nranks)
        elif (wanted < middle) != left:
            parent, top, left = top % nranks, other, not left
            span = ((lo, middle - lo) if left else (middle, hi - middle)) if other == wanted else span
        lo, hi = (lo, middle) if left else (middle, hi)
    return parent, children, (span[0] + vrank - wanted, span[1])


def chain(rank: int, nranks: int, root: int) -> TreeNode:
    """Return a rank's node in the line of ranks that begins at the root.

    >>> chain(1, 4, 1), chain(0, 4, 1)
    (TreeNode(parent=None, children=(2,)), TreeNode(parent=3, children=()))
    """
    left, right = (rank - 1) % nranks, (rank + 1) % nranks
    return TreeNode(None if rank == root else left, () if right == root else (right,))
