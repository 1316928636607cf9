"""Chain reduce: partial results run up a line of ranks towards the root; segments follow one another.

4 ranks, root 1; a..d their contributions:

    0 -> 3 -> 2 -> 1          start   0: a     3: d     2: c      1: b
                              then             da       cda       bcda
"""

from hpcoll.schedules.builders.reduce_tree import combine
from hpcoll.schedules.ir import Writer
from hpcoll.schedules.patterns.trees import chain


def reduce_chain(w: Writer) -> None:
    """Write p-1 rounds of m; no rank sends or receives more than m. Commutative operators (rank order only from root 0)."""
    combine(w, chain(w.rank, w.nranks, w.root))
