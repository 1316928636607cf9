"""Binomial reduce: the binomial broadcast backwards.

    round   0                                 1                  2
            1 -> 0   3 -> 2   5 -> 4   7 -> 6    2 -> 0   6 -> 4    4 -> 0
"""

from hpcoll.schedules.builders.reduce_tree import combine
from hpcoll.schedules.ir import Writer
from hpcoll.schedules.patterns.trees import knomial


def reduce_binomial(w: Writer) -> None:
    """Write q rounds of m; the root receives q times. Commutative operators (rank order only from root 0)."""
    combine(w, knomial(w.rank, w.nranks, w.root, 2))
