"""Direct scan: every rank sends its message to all ranks above it, and folds those from below with its own, in rank order.

    round 0: 0 -> 1 2 3    1 -> 2 3    2 -> 3        then: a, a op b, a op b op c, a op b op c op d

Source: classic (linear).
"""

from hpcoll.schedules.builders.reduce_direct import fold
from hpcoll.schedules.ir import Writer, inputs, outputs


def scan_direct(w: Writer) -> None:
    """Write one round, in which rank 0 sends (p-1) m; each rank combines once."""
    for peer in range(w.rank + 1, w.nranks):
        w.send(peer, inputs(0))
    if w.rank:
        fold(w, reversed(range(w.rank)), inputs(0), outputs(0))
    else:
        w.copy(inputs(0), outputs(0))
