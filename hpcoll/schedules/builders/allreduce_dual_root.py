"""Dual-root allreduce: each half of the ranks reduces up a binary tree of its own, the roots exchange, and both broadcast down.

8 ranks, a..h their contributions:

        2 <-----> 6          up            2: abcd     6: efgh
       / \\       / \\         exchange      2, 6: abcdefgh
      1   3     5   7        down          all
     /         /
    0         4

Each tree is one level lower than a tree of all ranks. Of two nodes with the same number of ranks each has a tree of its own.

Source: Traeff, arXiv 2109.12626; his trees are numbered in postorder, these in order.
"""

from hpcoll.schedules.builders.bcast_tree import distribute
from hpcoll.schedules.builders.reduce_tree import combine
from hpcoll.schedules.ir import Writer, inputs, outputs
from hpcoll.schedules.patterns.trees import binary


def allreduce_dual_root(w: Writer) -> None:
    """Write 2 floor(log2 p) - 1 rounds of m where p is a power of two; no rank sends more than 3 m; keeps rank order."""
    half = w.nranks // 2
    first, size = (0, half) if w.rank < half else (half, w.nranks - half)
    node = binary(w.rank - first, size, size // 2).renamed(lambda rank: first + rank)
    combine(w, node, into=outputs(0))
    if node.parent is None:
        other = half // 2 if first else half + (w.nranks - half) // 2
        own, received = outputs(0) if node.children else inputs(0), w.scratch(0)
        w.send(other, own)
        w.recv(other, received)
        w.reduce(*((received, own) if other < w.rank else (own, received)), dst=outputs(0))
    distribute(w, node)
