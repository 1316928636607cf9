"""Circulant n-block broadcast: every rank forwards one block per round, always over the same q links.

4 ranks, 3 blocks, root 0 (skips 1, 2, then 4); blocks held:

    start       skip 1      skip 2      skip 1      skip 2
    0: 0 1 2    0 1 2       0 1 2       0 1 2       0 1 2
    1: . . .    0 . .       0 . .       0 . 2       0 1 2
    2: . . .    . . .       . 1 .       0 1 .       0 1 2
    3: . . .    . . .       0 . .       0 1 .       0 1 2
"""

from hpcoll.schedules.ir import Writer, outputs
from hpcoll.schedules.patterns import circulant


def bcast_circulant(w: Writer) -> None:
    """Write n - 1 + q rounds of m/n, the fewest possible on one port, for any p and n."""
    for turn in circulant.rounds(w.vrank, w.nranks, w.nchunks):
        if turn.sent is not None:
            w.send(w.peer(turn.right), outputs(turn.sent))
        if turn.received is not None:
            w.recv(w.peer(turn.left), outputs(turn.received))
