"""Direct exscan: every rank sends its message to all ranks above it, and folds those from below, in rank order.

    round 0: 0 -> 1 2 3    1 -> 2 3    2 -> 3        then: nothing, a, a op b, a op b op c

In place OUTPUT is INPUT, which is passed on first.

Source: classic (linear).
"""

from hpcoll.schedules.ir import Chunk, Writer, inputs, outputs


def exscan_direct(w: Writer) -> None:
    """Write one round, in which rank 0 sends (p-1) m; each rank combines once."""
    for peer in range(w.rank + 1, w.nranks):
        w.send(peer, inputs(0))
    if w.rank == 1:
        w.recv(0, outputs(0))
        return
    below: list[Chunk] = []
    for peer in reversed(range(w.rank)):
        below.insert(0, w.scratch(0))
        w.recv(peer, below[0])
    if below:
        w.reduce(*below, dst=outputs(0))
