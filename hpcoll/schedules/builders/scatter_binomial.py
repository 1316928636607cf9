"""Binomial scatter: every rank receives its subtree's blocks as one message and sends each child its share.

    round   0              1              2                    (8 ranks, root 0)
            0 -> 4..7      0 -> 2,3       0 -> 1   2 -> 3
                           4 -> 6,7       4 -> 5   6 -> 7

Scratch keeps a subtree in vrank order. The root sends from INPUT; the one message that passes the last rank goes in two runs.
"""

from collections.abc import Callable

from hpcoll.schedules.builders.gather_binomial import upward
from hpcoll.schedules.ir import Writer, cell, cyclic_runs, inputs, outputs
from hpcoll.schedules.patterns.trees import TreeNode, binomial_span, knomial


def scatter_binomial(w: Writer) -> None:
    """Write q rounds; every block moves once per tree edge on its way."""
    scatter(w, knomial(w.vrank, w.nranks, 0, 2), binomial_span)


def scatter(w: Writer, node: TreeNode, span: Callable[[int, int], tuple[int, int]]) -> None:
    """Write the descent of a tree of vranks whose subtrees are cyclic ranges; ``span`` returns the first vrank and the size of one."""
    p, v = w.nranks, w.vrank
    start, n = span(v, p)
    mine = w.scratch(*(w.peer(start + i) for i in range(n))) if v and n > 1 else outputs(0)
    if node.parent is not None:
        for run in upward(w, node.parent, start, mine):
            w.recv(w.peer(node.parent), run)
    for child in node.children:
        first, size = span(child, p)
        far = cyclic_runs(w.peer(first), size, p)
        for run in [cell(mine, first - start, size)] if v else [inputs(*run) for run in far]:
            w.send(w.peer(child), run)
    if n > 1:
        w.copy(cell(mine, v - start) if v else inputs(w.rank), outputs(0))
