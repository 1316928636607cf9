"""Chain reduce: partial results run up a line of ranks towards the root; segments follow one another.

4 ranks, root 1; a..d their contributions:

    0 -> 3 -> 2 -> 1          start   0: a     3: d     2: c      1: b
                              then             da       cda       bcda

Source: classic (linear pipeline).
"""

from hpcoll.schedules.builders.reduce_tree import combine
from hpcoll.schedules.ir import Writer, outputs
from hpcoll.schedules.patterns.tree import TreeNode


def reduce_chain(w: Writer) -> None:
    """p-1 rounds of m; nobody sends or receives more than m. Commutative operators (rank order only from root 0)."""
    parent = w.peer(w.vrank - 1) if w.vrank else None
    children = (w.peer(w.vrank + 1),) if w.vrank < w.nranks - 1 else ()
    combine(w, TreeNode(parent, children), 0, into=None if w.vrank else outputs(0))
