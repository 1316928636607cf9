"""Binomial reduce: the binomial broadcast backwards.

    round   0                                 1                  2
            1 -> 0   3 -> 2   5 -> 4   7 -> 6    2 -> 0   6 -> 4    4 -> 0

Source: classic; Thakur, Rabenseifner and Gropp, IJHPCA 2005.
"""

from hpcoll.schedules.builders.reduce_tree import combine
from hpcoll.schedules.ir import Writer, outputs
from hpcoll.schedules.patterns import binomial
from hpcoll.schedules.patterns.tree import TreeNode


def reduce_binomial(w: Writer) -> None:
    """q rounds of m; the root receives q times. Commutative operators (rank order only from root 0)."""
    parent = w.peer(binomial.parent(w.vrank)) if w.vrank else None
    children = tuple(w.peer(child) for child in binomial.children(w.vrank, w.nranks))
    combine(w, TreeNode(parent, children), 0, into=None if w.vrank else outputs(0))
