"""Binomial reduce: aligned blocks of ranks join in pairs, in rank order below any root.

8 ranks, root 5; a..h are the ranks' contributions:

    round   0                                   1                    2
            1 -> 0   3 -> 2   4 -> 5   7 -> 6   2 -> 0   6 -> 5      0 -> 5
            0: ab    2: cd    5: ef    6: gh    0: abcd  5: efgh     5: abcdefgh

The result is the canonical expression (`hpcoll.base.canonical`), because the blocks are its subtrees.

Source: classic; Thakur, Rabenseifner and Gropp, IJHPCA 2005. The rule for roots that keeps rank order is ours.
"""

from hpcoll.schedules.builders.reduce_tree import combine
from hpcoll.schedules.ir import Writer
from hpcoll.schedules.patterns.trees import binomial_in_order


def reduce_binomial(w: Writer) -> None:
    """Write q rounds of m; a root receives up to q times. Keeps rank order for every root."""
    combine(w, binomial_in_order(w.rank, w.nranks, w.root))
