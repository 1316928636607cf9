"""Pairwise alltoall: in round t every rank exchanges one block with one peer, and no rank has two peers in a round.

round      t=1                 t=2                 t=3
4 ranks    0<->1   2<->3       0<->2   1<->3       0<->3   1<->2
3 ranks    0->1->2->0          0->2->1->0
"""

from hpcoll.schedules.ir import Writer, inputs, outputs


def alltoall_pairwise(w: Writer) -> None:
    """Write p-1 rounds of one block; each block moves once."""
    p, r = w.nranks, w.rank
    paired = p & (p - 1) == 0
    w.copy(inputs(r), outputs(r))
    for t in range(1, p):
        to, source = (r ^ t, r ^ t) if paired else ((r + t) % p, (r - t) % p)
        w.send(to, inputs(to))
        w.recv(source, outputs(source))
