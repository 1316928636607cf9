"""Tree allreduce: reduce up an in-order binary tree, broadcast down the same tree.

4 ranks, a..d their contributions:

        2         start       up 1         up 2        down 1         down 2
       / \\        0: a        .            .           .              abcd
      1   3       1: b        ab           .           abcd
     /            2: c        .            abcd
    0             3: d        .            .           abcd
"""

from hpcoll.schedules.builders.bcast_tree import distribute
from hpcoll.schedules.builders.reduce_tree import combine
from hpcoll.schedules.ir import Writer, outputs
from hpcoll.schedules.patterns.trees import binary


def allreduce_tree(w: Writer) -> None:
    """Write 2 floor(log2 p) rounds of m; keeps rank order."""
    node = binary(w.rank, w.nranks, w.nranks // 2)
    combine(w, node, into=outputs(0))
    distribute(w, node)
