"""Binomial broadcast: a rank that has the message sends it to the root of the largest subtree that has not.

round   0          1             2
        0 -> 4     0 -> 2        0 -> 1
                   4 -> 6        2 -> 3   4 -> 5   6 -> 7
"""

from hpcoll.schedules.builders.bcast_tree import distribute
from hpcoll.schedules.ir import Writer
from hpcoll.schedules.patterns.trees import knomial


def bcast_binomial(w: Writer) -> None:
    """Write q rounds of m; the root sends it q times."""
    distribute(w, knomial(w.rank, w.nranks, w.root, 2))
