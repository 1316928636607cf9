"""Binomial gather: every rank collects its subtree's blocks and sends them to its parent as one message.

    round   0                 1              2           (8 ranks, root 0)
            1 -> 0   3 -> 2   2,3 -> 0       4..7 -> 0
            5 -> 4   7 -> 6   6,7 -> 4

Scratch keeps a subtree in vrank order. The root receives into OUTPUT; the one message that passes the last rank comes in two runs.
"""

from collections.abc import Callable

from hpcoll.schedules.ir import Chunk, Writer, cell, cyclic_runs, inputs, outputs
from hpcoll.schedules.patterns.trees import TreeNode, binomial_span, knomial


def gather_binomial(w: Writer) -> None:
    """Write q rounds; every block moves once per tree edge on its way."""
    gather(w, knomial(w.vrank, w.nranks, 0, 2), binomial_span)


def gather(w: Writer, node: TreeNode, span: Callable[[int, int], tuple[int, int]]) -> None:
    """Write the ascent of a tree of vranks whose subtrees are cyclic ranges; ``span`` returns the first vrank and the size of one."""
    p, v = w.nranks, w.vrank
    start, n = span(v, p)
    mine = w.scratch(*(w.peer(start + i) for i in range(n))) if v and n > 1 else inputs(0)
    if n > 1:
        w.copy(inputs(0), cell(mine, v - start) if v else outputs(w.rank))
    for child in reversed(node.children):
        first, size = span(child, p)
        far = cyclic_runs(w.peer(first), size, p)
        for run in [cell(mine, first - start, size)] if v else [outputs(*run) for run in far]:
            w.recv(w.peer(child), run)
    if node.parent is not None:
        for run in upward(w, node.parent, start, mine):
            w.send(w.peer(node.parent), run)


def upward(w: Writer, parent: int, start: int, mine: Chunk) -> list[Chunk]:
    """Return the runs in which a subtree's blocks, of cyclic ranks from a vrank on, travel to or from its parent: the root has two."""
    if parent:
        return [mine]
    first = w.peer(start)
    return [cell(mine, (rank - first) % w.nranks, n) for rank, n in cyclic_runs(first, mine.n, w.nranks)]
