"""Binomial scatter: every rank receives its subtree's blocks as one message and sends each child its share.

    round   0              1              2                    (8 ranks, root 0)
            0 -> 4..7      0 -> 2,3       0 -> 1   2 -> 3
                           4 -> 6,7       4 -> 5   6 -> 7

Scratch keeps a subtree in vrank order. The root sends from INPUT; the one message that passes the last rank goes in two runs.
"""

from hpcoll.schedules.ir import Writer, cell, cyclic_runs, inputs, outputs
from hpcoll.schedules.patterns.trees import binomial_span, knomial


def scatter_binomial(w: Writer) -> None:
    """Write q rounds; every block moves once per tree edge on its way."""
    p, v = w.nranks, w.vrank
    node, n = knomial(v, p, 0, 2), binomial_span(v, p)
    mine = w.scratch(*(w.peer(v + i) for i in range(n))) if v and n > 1 else outputs(0)
    if node.parent is not None:
        runs = [mine] if node.parent else [cell(mine, (first - w.rank) % p, size) for first, size in cyclic_runs(w.rank, n, p)]
        for run in runs:
            w.recv(w.peer(node.parent), run)
    for child in node.children:
        size = binomial_span(child, p)
        runs = [cell(mine, child - v, size)] if v else [inputs(*run) for run in cyclic_runs(w.peer(child), size, p)]
        for run in runs:
            w.send(w.peer(child), run)
    if n > 1:
        w.copy(cell(mine, 0) if v else inputs(w.rank), outputs(0))
