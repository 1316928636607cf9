"""Binomial allreduce: reduce up a binomial tree to rank 0, broadcast down the same tree.

4 ranks, a..d their contributions:

    start      up 1       up 2        down 1      down 2
    0: a       ab         abcd
    1: b                                          abcd
    2: c       cd                     abcd
    3: d                                          abcd

The result is the canonical expression (`hpcoll.base.canonical`) for any number of ranks, because the subtrees are its subtrees.

Source: classic (binomial reduce, binomial broadcast).
"""

from hpcoll.schedules.builders.bcast_tree import distribute
from hpcoll.schedules.builders.reduce_tree import combine
from hpcoll.schedules.ir import Writer, outputs
from hpcoll.schedules.patterns.trees import binomial_in_order


def allreduce_binomial(w: Writer) -> None:
    """Write 2 floor(log2 p) rounds of m; rank 0 receives and sends q times. Keeps rank order."""
    node = binomial_in_order(w.rank, w.nranks, 0)
    combine(w, node, into=outputs(0))
    distribute(w, node)
