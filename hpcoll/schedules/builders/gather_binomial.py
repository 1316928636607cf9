"""Binomial gather: every rank collects its subtree's blocks and sends them to its parent as one message.

    round   0                 1              2           (8 ranks, root 0)
            1 -> 0   3 -> 2   2,3 -> 0       4..7 -> 0
            5 -> 4   7 -> 6   6,7 -> 4

Scratch keeps a subtree in vrank order. The root receives into OUTPUT; the one message that passes the last rank comes in two runs.
"""

from hpcoll.schedules.ir import Writer, cell, cyclic_runs, inputs, outputs
from hpcoll.schedules.patterns.trees import binomial_span, knomial


def gather_binomial(w: Writer) -> None:
    """Write q rounds; every block moves once per tree edge on its way."""
    p, v = w.nranks, w.vrank
    node, n = knomial(v, p, 0, 2), binomial_span(v, p)
    mine = w.scratch(*(w.peer(v + i) for i in range(n))) if v and n > 1 else inputs(0)
    if n > 1:
        w.copy(inputs(0), cell(mine, 0) if v else outputs(w.rank))
    for child in reversed(node.children):
        size = binomial_span(child, p)
        runs = [cell(mine, child - v, size)] if v else [outputs(*run) for run in cyclic_runs(w.peer(child), size, p)]
        for run in runs:
            w.recv(w.peer(child), run)
    if node.parent is not None:
        runs = [mine] if node.parent else [cell(mine, (first - w.rank) % p, size) for first, size in cyclic_runs(w.rank, n, p)]
        for run in runs:
            w.send(w.peer(node.parent), run)
