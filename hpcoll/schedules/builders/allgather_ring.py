"""Ring allgather: every block travels once round the ring.

Blocks held by 4 ranks:

    start       after round 0    after round 1    after round 2
    0: a . . .  a . . d          a . c d          a b c d
    1: . b . .  a b . .          a b . d          a b c d
    2: . . c .  . b c .          a b c .          a b c d
    3: . . . d  . . c d          . b c d          a b c d
"""

from hpcoll.schedules.ir import Writer, inputs, outputs


def allgather_ring(w: Writer) -> None:
    """Write p-1 rounds of one block, to the right neighbour only."""
    p, r = w.nranks, w.rank
    left, right = (r - 1) % p, (r + 1) % p
    w.copy(inputs(0), outputs(r))
    for t in range(p - 1):
        w.send(right, outputs((r - t) % p) if t else inputs(0))
        w.recv(left, outputs((r - t - 1) % p))
